"""Runs what a page of the documentation shows, as a reader does: block by block, in one folder, in one Python process.

python tests/documents.py PAGE            runs its blocks in the current folder, and fails where one does
python tests/documents.py --write PAGE    the same, and writes what they print into the page's output blocks

What is done with a block, its fence says:

    ```python                    runs, in the process of the page's other Python blocks
    ```sh                        runs, by bash, which stops at the first command that fails
    ```python title="step.py"    is a file for the blocks that follow; so is any other block with a title
    ```text                      is shown, as is any other kind; below `<!-- output -->` it is what the block before it prints

`<!-- not run: REASON -->` above a block leaves it out. The file imports nothing but Python's own library, so that any environment
can run it, also one that has meshbridge's wheel and nothing else.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RUN = ("python", "sh")
"""Kinds of blocks that run, unless they have a title."""

_BLOCK = re.compile(
    r"^(?:<!-- (?P<remark>output|not run: [^\n]+) -->\n+)?"
    r'^```(?P<kind>\w*)(?: title="(?P<title>[^"]+)")?\n(?P<code>.*?)^```$',
    re.M | re.S,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. `start` and `end` are where its code stands in the page's text."""

    kind: str
    title: str
    code: str
    remark: str
    line: int
    start: int
    end: int

    @property
    def reason(self) -> str:
        """Why the block is not run, empty if it is."""
        return self.remark.removeprefix("not run: ") if self.remark.startswith("not run: ") else ""

    @property
    def runs(self) -> bool:
        return self.kind in RUN and not self.title and not self.reason

    @property
    def is_output(self) -> bool:
        return self.remark == "output"


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("code"))
        remark, title = found["remark"] or "", found["title"] or ""
        yield Block(found["kind"], title, found["code"], remark, line, found.start("code"), found.end("code"))


def run(text: str, name: str) -> list[tuple[Block, str]]:
    """Runs a page's blocks in the current folder. Returns each output block with what is printed in its place.

    `name` is what tracebacks call the page. Raises what a block raises, and CalledProcessError for a command that fails.
    """
    page = types.ModuleType("__main__")
    sys.modules["__main__"] = page  # where libraries look for the module of a class that a block defines
    printed = ""
    outputs: list[tuple[Block, str]] = []
    for block in blocks(text):
        if block.is_output:
            outputs.append((block, printed))
        elif block.runs:
            printed = _python(block, name, page.__dict__) if block.kind == "python" else _shell(block)
            sys.stdout.write(printed)
            sys.stdout.flush()
        elif block.title:
            Path(block.title).write_text(block.code)
    return outputs


def _python(block: Block, name: str, names: dict[str, object]) -> str:
    code = compile("\n" * block.line + block.code, name, "exec")  # so that a traceback has the page's line numbers
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        exec(code, names)
    return stream.getvalue()


def _shell(block: Block) -> str:
    command = ["bash", "-euo", "pipefail", "-c", block.code]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def written(text: str, outputs: list[tuple[Block, str]]) -> str:
    """The page with what its blocks printed in its output blocks."""
    for block, printed in reversed(outputs):
        text = text[: block.start] + _shown(printed) + text[block.end :]
    return text


def _shown(printed: str) -> str:
    """Trailing spaces, which no reader sees, are not shown."""
    return "".join(f"{line.rstrip()}\n" for line in printed.rstrip().splitlines())


def main(arguments: list[str]) -> int:
    path = Path(arguments[-1])
    text = path.read_text()
    new = written(text, run(text, path.name))
    if arguments[0] == "--write":
        path.write_text(new)
        return 0
    if new != text:
        print(f"{path}: its output blocks show something else than its code prints", file=sys.stderr)
        sys.stderr.writelines(difflib.unified_diff(text.splitlines(True), new.splitlines(True), "shown", "printed"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
