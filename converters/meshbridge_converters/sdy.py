"""The sdy end: StableHLO with Shardy's attributes in, annotated mesh IR out (`import_module`), and back (`export_module`)."""

from meshbridge_converters.sdy_export import export_module
from meshbridge_converters.sdy_import import import_module

__all__ = ["export_module", "import_module"]
