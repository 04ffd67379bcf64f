"""Errors and warnings for users. This module imports nothing large, so that a command can fail before it loads anything.

Each text is `visible`: it shows the names of the user's program in any characters.
"""

from __future__ import annotations

from meshbridge.text import public, visible


@public
class MeshError(ValueError):
    """An error that the user can fix: in the program, its shardings, or the command line. Its text is the diagnostic."""

    def __str__(self) -> str:
        return visible(super().__str__())


@public
class ParseError(MeshError):
    """The input is not a program: `file:line:col: error: what was found, what was expected`."""


@public
class ShardingWarning(UserWarning):
    """A program that is right, but perhaps not as intended: contradicting annotations, dropped annotations, or gathers because
    passes are left out. Its text is the diagnostic."""

    def __str__(self) -> str:
        return visible(super().__str__())


@public
class MemoryWarning(ShardingWarning):
    """A plan that needs more memory than a device of the machine has. Its text is the diagnostic."""
