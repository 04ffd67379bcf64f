"""What children do in the tests of their server; the first argument says what."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from meshbridge.tools.compare import process

IMPORTED = os.getpid()
"""The process that has imported this module."""


def main(arguments: Sequence[str]) -> int:
    """Does what it is told."""
    process.end_with_parent()
    what, *more = arguments
    if what == "write":
        Path(more[0]).write_text(f"{IMPORTED} {os.getpid()} {os.getppid()} {os.environ.get('WRITTEN')}")
    elif what == "abort":
        print("F1121 07:00:00 spmd.cc:7] Check failed: sharding", file=sys.stderr, flush=True)
        os.abort()
    elif what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "exit":
        sys.exit(int(more[0]))
    elif what == "raise":
        raise ValueError("not so")
    elif what == "fill":
        filled = b"x" * int(more[0])
        time.sleep(600)
        print(len(filled))
    elif what == "hang":
        Path(more[0]).write_text(str(os.getpid()))
        time.sleep(600)
    return 0
