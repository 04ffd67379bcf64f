"""The mesh dialect's text: `read` and `write` MLIR whose mesh operations stand in the dialect's own syntax.

The bindings know the mesh dialect only in generic form, so reading rewrites each mesh operation into generic form where
it stands and lets MLIR parse the module; printing goes the other way. Both are driven by one table (`formats`), the
counterpart of upstream's `assemblyFormat`.
"""

from meshbridge.dialect.assembly.printer import write
from meshbridge.dialect.assembly.reader import read, split_input

__all__ = ["read", "split_input", "write"]
