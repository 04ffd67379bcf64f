"""Reads and writes MLIR text with mesh operations in the dialect's own syntax.

The bindings only know the mesh dialect in generic form: the reader rewrites each mesh operation into generic form in place and
lets MLIR parse the module; the printer does the reverse. Both use the table `formats`, like upstream's `assemblyFormat`.
"""

from meshbridge.dialect.assembly.printer import write
from meshbridge.dialect.assembly.reader import read, split_input

__all__ = ["read", "split_input", "write"]
