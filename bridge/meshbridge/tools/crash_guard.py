"""Prints a diagnostic if one of MLIR's readers crashes or hangs, as its bytecode reader does on some damaged files.

Only commands use this, because it ends the process. Python's signal handlers would not help, because they run between two steps
of Python code; these are C functions, which run at the crash.
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

from meshbridge.progress import RESTORED
from meshbridge.text import visible

READING_SECONDS = 6
"""The most CPU seconds for reading an input, plus one for each MiB. A thousand operations take 4 ms."""

_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGPROF)
"""The signals of a crash, and of the timer of CPU time."""

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
    """Ends the process with a diagnostic and exit status 1 if reading the input `name` of `size` bytes crashes or hangs.

    Only on Linux; does nothing elsewhere.
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
            finally:  # os.write raises SystemError if the reader has left a Python exception pending
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
    """Frees the values in the frames of a failed reader, under the guard: freeing a context of a damaged file may crash."""
    current: BaseException | None = error
    while current is not None:
        traceback.clear_frames(current.__traceback__)
        before, current.__context__ = current.__context__, None
        current = before
    gc.collect()


@contextmanager
def _handled_by(end: Callable[[int], None]) -> Iterator[None]:
    """Calls `end` for each of _SIGNALS, on a separate stack, because the usual one may have overflowed."""
    libc = ctypes.CDLL(None)
    memory = ctypes.create_string_buffer(_STACK_BYTES)
    handler = _Handler(end)
    action = _Action(handler=ctypes.cast(handler, ctypes.c_void_p), flags=_SA_ONSTACK)
    stack, stack_before = _SignalStack(ctypes.addressof(memory), 0, _STACK_BYTES), _SignalStack()
    libc.sigaltstack(ctypes.byref(stack), ctypes.byref(stack_before))
    before = {number: _Action() for number in _SIGNALS}
    for number, old_action in before.items():
        libc.sigaction(number, ctypes.byref(action), ctypes.byref(old_action))
    try:
        yield
    finally:
        for number, old_action in before.items():
            libc.sigaction(number, ctypes.byref(old_action), None)
        libc.sigaltstack(ctypes.byref(stack_before), None)


@contextmanager
def _stderr_held_back() -> Iterator[int]:
    """Yields the file descriptor of standard error, and buffers other output to it until the end, because a crash writes much."""
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as captured, open(terminal, "wb") as stderr:
        os.dup2(captured.fileno(), 2)
        try:
            yield terminal
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            captured.seek(0)
            shutil.copyfileobj(captured, stderr)
