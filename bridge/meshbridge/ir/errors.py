"""Errors and warnings that users see. Nothing is imported here, so that a command can fail before it has loaded anything."""


class MeshError(ValueError):
    """Something the user can repair: in the program, its shardings, or the command line. Its text is the diagnostic."""


class ParseError(MeshError):
    """The input is not a program: `file:line:col: error: what was found, what was expected`."""


class ShardingWarning(UserWarning):
    """Annotations that contradict each other, and how they were taken. Its text is the diagnostic."""
