"""One diagnostic where MLIR's readers crash or never come back, as its bytecode reader does on some damaged files.

A command may end its process, a library may not: only commands use this. Handlers in Python's own sense do not help, as they run
between two steps of Python code; these are C functions, which run where the reader has crashed.
"""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from meshbridge.text import visible
from meshbridge.tools.progress import RESTORED

READING_SECONDS = 6
"""How long an input may take to read, in CPU time, and a second more for each MiB. A thousand operations take 4 ms."""

_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGPROF)
"""What a crash raises, and what the timer of CPU time does."""

_STACK_BYTES = 1 << 20
_SA_ONSTACK = 0x08000000
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int)


class _Action(ctypes.Structure):
    """`struct sigaction` of Linux's C libraries."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_byte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class _SignalStack(ctypes.Structure):
    """`stack_t` of Linux."""

    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextmanager
def guarded(name: str, size: int) -> Iterator[None]:
    """Ends the process with a diagnostic and exit status 1 where reading an input, called `name` and of `size` bytes, crashes.

    It does so on Linux alone; elsewhere a crash is a crash.
    """
    if sys.platform != "linux" or sys.stderr is None:
        yield
        return
    diagnostic = f"{visible(name)}: error: damaged input: MLIR's reader crashes or hangs on it\n".encode()
    if sys.stderr.isatty():
        diagnostic = RESTORED.encode() + diagnostic
    with _stderr_held_back() as stderr:

        def end(_: int) -> None:
            try:
                os.write(stderr, diagnostic)
            finally:  # where the reader has left a Python exception pending, the call above ends in a SystemError
                os._exit(1)

        with _handled_by(end):
            signal.setitimer(signal.ITIMER_PROF, READING_SECONDS + size // 2**20)
            try:
                yield
            except Exception as error:
                _release(error)
                raise
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)


def _release(error: BaseException) -> None:
    """Lets go of what the frames of a failed reader hold: a context that a damaged file has left behind may crash as it goes."""
    each: BaseException | None = error
    while each is not None:
        traceback.clear_frames(each.__traceback__)
        before, each.__context__ = each.__context__, None
        each = before
    gc.collect()


@contextmanager
def _handled_by(end: Callable[[int], None]) -> Iterator[None]:
    """Has `end` called for each of _SIGNALS, on a stack of its own: the usual one may be what has overflowed."""
    libc = ctypes.CDLL(None)
    memory = ctypes.create_string_buffer(_STACK_BYTES)
    handler = _Handler(end)
    action = _Action(handler=ctypes.cast(handler, ctypes.c_void_p), flags=_SA_ONSTACK)
    stack, stack_before = _SignalStack(ctypes.addressof(memory), 0, _STACK_BYTES), _SignalStack()
    libc.sigaltstack(ctypes.byref(stack), ctypes.byref(stack_before))
    before = {number: _Action() for number in _SIGNALS}
    for number, old in before.items():
        libc.sigaction(number, ctypes.byref(action), ctypes.byref(old))
    try:
        yield
    finally:
        for number, old in before.items():
            libc.sigaction(number, ctypes.byref(old), None)
        libc.sigaltstack(ctypes.byref(stack_before), None)


@contextmanager
def _stderr_held_back() -> Iterator[int]:
    """Gives the file descriptor of standard error, and keeps what is written meanwhile until the end: a crash writes much."""
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as held, open(terminal, "wb") as stderr:
        os.dup2(held.fileno(), 2)
        try:
            yield terminal
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            held.seek(0)
            shutil.copyfileobj(held, stderr)
