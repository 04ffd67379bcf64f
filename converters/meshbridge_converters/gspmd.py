"""The GSPMD end: StableHLO with `mhlo.sharding` in, annotated mesh IR out (`import_module`), and back (`export_module`)."""

from __future__ import annotations

from meshbridge.ir.mlir import ir
from meshbridge_converters import gspmd_export, gspmd_import, sdy

__all__ = ["export_module", "import_module"]


def import_module(module: ir.Module) -> None:
    """Turns every GSPMD annotation of `module` into mesh annotations, in place. A module without any is left as it is.

    Raises OpError, with the location of the offender, for annotations that are not HloShardings, do not fit their values, or that
    no mesh of axes can express.
    """
    gspmd_import.to_sdy(module)
    sdy.import_module(module)


def export_module(module: ir.Module, *, closed: bool = False, plain: bool = False) -> None:
    """Turns every mesh annotation of `module` into GSPMD's, in place. A module without a mesh is left as it is.

    `closed` writes what the annotations say as final. Shardings name the axes of a mesh that has names for them (HloSharding's
    version 3). `plain` and `closed`, the form for XLA's partitioner, write tilings by device numbers all the same: XLA before
    jaxlib 0.10 reads no names, and that of 0.10 ends the process over some programs that have them.
    Raises OpError for what neither sdy nor GSPMD can say.
    """
    sdy.export_module(module, closed=closed)
    gspmd_export.from_sdy(module, plain=plain or closed)
