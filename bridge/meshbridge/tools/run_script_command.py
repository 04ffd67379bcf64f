"""The command `meshbridge run-script`: runs a script with every function that it compiles partitioned."""

from __future__ import annotations

import argparse
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from meshbridge import api
from meshbridge.ir.mlir import MeshError
from meshbridge.reports import Report
from meshbridge.reports.changes import spec_of
from meshbridge.text import counted, size_text, table
from meshbridge.tools import arguments, console

if TYPE_CHECKING:
    from meshbridge.jitted.plans import Planned


def add_options(parser: console.Parser) -> None:
    """The options of `meshbridge run-script`. Arguments after the script are passed to it."""
    arguments.add_machine(parser, None, "that of the devices")
    arguments.add_memory_limit(parser)
    help_ = "leave the function of that name to XLA's partitioner; * stands for any letters, and the option may be repeated"
    parser.add_argument("--leave-to-xla", action="append", default=[], metavar="NAME", help=help_)
    help_ = "write the report of the function that sends most as a page, one file that needs no network"
    parser.add_argument("--report", metavar="OUT.html", help=help_)
    parser.add_argument("script", metavar="SCRIPT.py", help="a Python script that trains or evaluates with JAX, as it is")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="what the script is given")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """The body of `meshbridge run-script`; returns the script's exit status."""
    script = Path(options.script)
    if not script.is_file():
        raise MeshError(f"meshbridge run-script: error: {options.script}: expected a Python script, found no such file")
    if b"\0" in script.read_bytes():
        hint = "meshbridge run takes a program in a file"
        raise MeshError(
            f"meshbridge run-script: error: {options.script}: expected a Python script, found a binary file\n  hint: {hint}"
        )
    console.refuse_outputs("meshbridge run-script", {"--report": options.report})
    chosen = {name: value for name in ("machine", "memory_limit") if (value := getattr(options, name)) is not None}
    with api.patch(leave_to_xla=options.leave_to_xla, **chosen) as planned:
        status = _status(script, options.arguments)
    _print_reports(planned, options.report)
    return status


def _status(script: Path, script_arguments: Sequence[str]) -> int:
    """Runs the script as Python does, and returns its exit status. Raises MeshError, which is printed as a diagnostic."""
    with _as_main(script, script_arguments):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except MeshError:
            raise
        except SystemExit as end:
            if isinstance(end.code, str):
                console.say(end.code, sys.stderr)
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        except Exception as error:
            traceback.print_exception(type(error), error, _script_frames(error.__traceback__, script))
            return 1
    return 0


@contextmanager
def _as_main(script: Path, script_arguments: Sequence[str]) -> Iterator[None]:
    before, path = sys.argv, sys.path[:]
    sys.argv = [str(script), *script_arguments]
    sys.path.insert(0, str(script.parent.resolve()))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before, path


def _script_frames(frames: TracebackType | None, script: Path) -> TracebackType | None:
    """The frames of a traceback from the script on."""
    while frames is not None and frames.tb_frame.f_code.co_filename != str(script):
        frames = frames.tb_next
    return frames


def _print_reports(planned: Sequence[Planned], page: str | None) -> None:
    """Prints a row for each partitioned function, and the report of the one that sends most."""
    reports = [(plan, plan.report()) for plan in planned]
    if not reports:
        console.say("meshbridge run-script: nothing was compiled for several devices")
        return
    sending = [entry for entry in reports if entry[1].wire_bytes]
    if sending:
        console.say(table([_HEADER, *(_row(*entry) for entry in sending)], left=(0,)))
    if silent := len(reports) - len(sending):
        console.say(f"{counted(silent, 'more function' if sending else 'function')} sent nothing")
    for line in _compiled_again(sending):
        console.say(line)
    busiest, report = max(reports, key=lambda entry: entry[1].wire_bytes)
    console.say(f"\n{busiest.name}\n{report.table()}")
    if page is not None:
        console.write_page(page, report.to_html(busiest.name))


def _compiled_again(sending: Sequence[tuple[Planned, Report]]) -> Iterator[str]:
    """A line for each function that was compiled again for arguments of the same shapes, with the first that was sharded
    differently: often a state that the first call returned."""
    latest: dict[tuple[str, tuple[tuple[int, ...], ...]], Report] = {}
    for planned, report in sending:
        key = planned.name, tuple(argument.shape for argument in report.arguments)
        before = latest.setdefault(key, report)
        latest[key] = report
        pairs = zip(before.arguments, report.arguments, strict=True)
        changed = [(old, new) for old, new in pairs if old.sharding != new.sharding]
        if changed:
            old, new = changed[0]
            more = f", and {len(changed) - 1:,} more" if len(changed) > 1 else ""
            came = f"{new.name or 'an argument'} came as {spec_of(new.sharding)}, before as {spec_of(old.sharding)}{more}"
            yield f"{planned.name} was compiled again: {came}"


_HEADER = ("function", "devices", "collectives", "sent per device")


def _row(planned: Planned, report: Report) -> tuple[str, ...]:
    executed = sum(collective.executions for collective in report.collectives)
    return planned.name, str(report.mesh.size), f"{executed:g}", size_text(report.wire_bytes)
