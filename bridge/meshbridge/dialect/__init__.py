"""The mesh dialect: operations (`ops`), their builders (`build`), assembly, verifier and folds."""

from meshbridge.dialect import ops as ops
from meshbridge.ir.mlir import _cext

# Without a module of the dialect's name the bindings search the disk for one at every operation that they hand out (60 us each).
_cext.globals.append_dialect_search_prefix("meshbridge.dialect")
