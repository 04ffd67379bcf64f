"""Where the bindings look for the mesh dialect's operation classes: a module named after the dialect, under a search prefix."""

from meshbridge.dialect import ops as ops
