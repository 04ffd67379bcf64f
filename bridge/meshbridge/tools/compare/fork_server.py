"""A process that has imported what its children need, and forks one for each request: importing JAX takes longer than most of
what they do.

`python -m meshbridge.tools.compare.fork_server MODULE` imports MODULE, reads requests, each a line of JSON, from standard input,
and answers each by two lines: the number of the process in which `MODULE.main` runs, and how `waitpid` says that it ended. No
backend of JAX is started before the fork. The process ends with its parent.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TextIO


def main(module: str) -> int:
    """Serves requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed is no answer
    run: Callable[[Sequence[str]], int] = import_module(module).main
    while line := _request():
        _answer(answers, _started(run, json.loads(line)))
    return 0


def _request() -> str:
    """The next line of standard input, of which nothing is read ahead: a child waits for the end of the same stream."""
    line = b""
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return line.decode()


def _started(run: Callable[[Sequence[str]], int], request: dict[str, object]) -> int:
    """The number of the process that serves a request."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of threads, which it has none of before its first backend
        process = os.fork()
    if process == 0:
        _child(run, request)
    return process


def _child(run: Callable[[Sequence[str]], int], request: dict[str, object]) -> None:
    """Runs in a forked process, and ends it."""
    errors = os.open(str(request["errors"]), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(errors, 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    status = 1
    try:
        arguments = request["arguments"]
        assert isinstance(arguments, list)
        status = run(arguments)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:  # its last words, as those of any other process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _answer(answers: TextIO, process: int) -> None:
    """Says which process it is, and how it has ended."""
    answers.write(f"{process}\n")
    answers.flush()
    _, ended = os.waitpid(process, 0)
    answers.write(f"{os.waitstatus_to_exitcode(ended)}\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
