"""The GSPMD end: StableHLO with `mhlo.sharding` in, annotated mesh IR out (`import_module`)."""

from __future__ import annotations

from meshbridge.mlir import ir
from meshbridge_converters import gspmd_import, sdy

__all__ = ["import_module"]


def import_module(module: ir.Module) -> None:
    """Turns every GSPMD annotation of `module` into mesh annotations, in place. A module without any is left as it is.

    Raises OpError, with the location of the offender, for annotations that are not HloShardings, do not fit their values, or that
    no mesh of axes can express.
    """
    gspmd_import.to_sdy(module)
    sdy.import_module(module)
