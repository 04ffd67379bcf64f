"""The module, named after the dialect, under whose search prefix the bindings find the classes of the mesh operations."""

from meshbridge.dialect import ops as ops
