"""Errors and warnings that users see. Nothing large is imported here, so that a command can fail before it has loaded anything.

The text of each is `visible`: it names what the user's program names, in any characters.
"""

from __future__ import annotations

from meshbridge.text import visible


class MeshError(ValueError):
    """Something the user can repair: in the program, its shardings, or the command line. Its text is the diagnostic."""

    def __str__(self) -> str:
        return visible(super().__str__())


class ParseError(MeshError):
    """The input is not a program: `file:line:col: error: what was found, what was expected`."""


class ShardingWarning(UserWarning):
    """What is right, and perhaps not what was meant: annotations that contradict each other and how they are taken, what is
    dropped, and what is gathered where passes are left out. Its text is the diagnostic."""

    def __str__(self) -> str:
        return visible(super().__str__())


class MemoryWarning(ShardingWarning):
    """A plan that needs more memory than a device of the machine has, and by how much. Its text is the diagnostic."""
