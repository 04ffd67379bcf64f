"""lit's tests in the process that asks for them: lit reads the files and their RUN lines, Python functions run the commands.

A command that is a Python function here takes milliseconds; as a process of its own it imports everything first, a second each.
`lit tests/lit` runs the same lines as processes.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filecheck.main
import lit.discovery
import lit.LitConfig
import lit.Test
import lit.TestRunner
from lit.ShCommands import Command, Pipeline, Seq
from lit.ShUtil import ShParser

import meshbridge.tools.cli
import meshbridge.tools.mesh_opt

ROOT = Path(__file__).parent


@dataclass(frozen=True)
class Done:
    """How a command ended: its exit status, and what it wrote on each stream."""

    status: int
    out: bytes = b""
    err: bytes = b""


def tests() -> dict[str, lit.Test.Test]:
    """Every test under tests/lit by its path there."""
    names = ("progname", "path", "diagnostic_level", "useValgrind", "valgrindLeakCheck", "valgrindArgs", "noExecute", "debug")
    plain = dict.fromkeys(names, False) | {"progname": "lit", "path": [], "diagnostic_level": "note", "valgrindArgs": []}
    config = lit.LitConfig.LitConfig(**plain, isWindows=False, order="smart", params={})
    return {"/".join(test.path_in_suite): test for test in lit.discovery.find_tests_for_inputs(config, [str(ROOT)])}


def run(test: lit.Test.Test, scratch: Path) -> lit.Test.Result:
    """Runs a test's RUN lines until one fails; files that they write go to `scratch`."""
    script = lit.TestRunner.parseIntegratedTestScript(test)
    if isinstance(script, lit.Test.Result):
        return script
    substitutions = lit.TestRunner.getDefaultSubstitutions(test, str(scratch), str(scratch / test.path_in_suite[-1]))
    lines = lit.TestRunner.applySubstitutions(script, [*substitutions, *test.config.substitutions])
    for line in lines:
        command = re.fullmatch(lit.TestRunner.kPdbgRegex, line)[2]
        done = shell(command, scratch)
        if done.status:
            said = (done.out + done.err).decode(errors="replace")
            return lit.Test.Result(lit.Test.FAIL, f"{command}\nexit status {done.status}\n{said}")
    return lit.Test.Result(lit.Test.PASS)


def shell(line: str, folder: Path) -> Done:
    """Runs one line of shell; patterns of file names are looked up in `folder`. A pipeline fails if one of its commands does."""
    return _run(ShParser(line, False, True).parse(), str(folder))


def _run(node: Seq | Pipeline, folder: str) -> Done:
    if isinstance(node, Seq):
        first = _run(node.lhs, folder)
        goes_on = {"&&": first.status == 0, "||": first.status != 0, ";": True}[node.op]
        return _run(node.rhs, folder) if goes_on else first
    given, err, failed = b"", b"", 0
    for command in node.commands:
        words = lit.TestRunner.expand_glob_expressions(command.args, folder)
        done = _redirected(Command(words, command.redirects), given)
        given, err = done.out, err + done.err
        failed = done.status or failed
    return Done(int(not failed) if node.negate else failed, given, err)


def _redirected(command: Command, given: bytes) -> Done:
    """A command with `2>&1`, `< file` and `> file`; no test redirects anything else."""
    merged, target = False, None
    for (operator, *number), name in command.redirects:
        if (operator, number, name) == (">&", [2], "1"):
            merged = True
        elif operator == "<":
            given = Path(name).read_bytes()
        elif operator == ">" and not number:
            target = Path(name)
        else:
            raise ValueError(f"a redirection that tests/lit/lit_commands.py does not know: {operator}{name}")
    done = _execute(command.args, given, merged)
    if target is None:
        return done
    target.write_bytes(done.out)
    return Done(done.status, b"", done.err)


def _execute(words: Sequence[str], given: bytes, merged: bool) -> Done:
    name, *arguments = words
    if name == "not":
        done = _execute(arguments, given, merged)
        return Done(int(not done.status), done.out, done.err)
    if name in COMMANDS:
        return _call(COMMANDS[name], arguments, given, merged)
    err = subprocess.STDOUT if merged else subprocess.PIPE
    child = subprocess.run([name, *arguments], input=given, stdout=subprocess.PIPE, stderr=err, check=False)
    return Done(child.returncode, child.stdout, child.stderr or b"")


COMMANDS: dict[str, Callable[[list[str]], int | None]] = {
    "mesh-opt": meshbridge.tools.mesh_opt.main,
    "meshbridge": meshbridge.tools.cli.main,
    "filecheck": lambda arguments: filecheck.main.main(["filecheck", *arguments]),
}


def _call(command: Callable[[list[str]], int | None], arguments: list[str], given: bytes, merged: bool) -> Done:
    out = io.BytesIO()
    err = out if merged else io.BytesIO()
    with _streams(io.BytesIO(given), out, err):
        try:
            status = command(arguments)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) or end.code is None else 1
    return Done(status or 0, out.getvalue(), b"" if merged else err.getvalue())


@contextlib.contextmanager
def _streams(given: io.BytesIO, out: io.BytesIO, err: io.BytesIO) -> Iterator[None]:
    """Stands in for the standard streams; what a command wrote is in `out` and `err` when it ends, in the order of writing."""
    before = sys.stdin, sys.stdout, sys.stderr
    wrapped: list[Any] = [io.TextIOWrapper(stream, write_through=True) for stream in (given, out, err)]
    sys.stdin, sys.stdout, sys.stderr = wrapped
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
        for stream in wrapped:
            stream.detach()
