"""What compilers do to collectives, each quirk with the compiler in which it was seen and the test that shows it.

`QUIRKS` lists them. Each names a test that compiles the smallest program that shows it. If that test fails for a new release, the
quirk is gone, and its workaround can go too. A machine's file switches a workaround on (`collective_forms` and others).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from meshbridge.ir.registry import Registry

WorkaroundT = TypeVar("WorkaroundT", bound=Callable[..., object])


@dataclass(frozen=True)
class Quirk:
    """What a compiler does that no specification asks for."""

    compiler: str
    "Its name, and the release in which it was last seen."
    test: str
    "The file of the test that shows it, from the repository's root."
    workaround: str
    "What the code does about it, from its docstring."


QUIRKS: Registry[str, Quirk] = Registry("quirk", lambda quirk: quirk.workaround)
"""By the name of what works around them."""


def quirk(compiler: str, test: str) -> Callable[[WorkaroundT], WorkaroundT]:
    """A decorator that registers a function or pass as what works around a quirk of `compiler`, which `test` shows."""

    def enter(workaround: WorkaroundT) -> WorkaroundT:
        QUIRKS.add(workaround.__name__, Quirk(compiler, test, workaround.__doc__ or ""))
        return workaround

    return enter
