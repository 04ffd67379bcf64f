"""meshbridge partitions sharded StableHLO programs on MLIR's mesh dialect, with every collective explicit.

    import meshbridge
    partitioned = meshbridge.partition(exported)      # jax.export.Exported in, jax.export.Exported out
    executable = meshbridge.compile(exported)         # runs through PJRT, called as the function itself

A program is a `jax.export.Exported`, a function that `jax.jit` made together with arguments for it, a `jax.stages.Lowered`, an
MLIR module (`jaxlib.mlir.ir.Module`), or a `Program` that `load` read from a file of any known format.
Every error that the user can repair is a `MeshError`, a ValueError whose text is the diagnostic.
"""

from importlib.metadata import version

from meshbridge.api import compile, convert, load, partition, report, save
from meshbridge.ir.mlir import MeshError, OpError, ParseError, ShardingWarning, VerifyError
from meshbridge.ops.rule_notation import LoopsAndMaps
from meshbridge.ops.sharding_rules import register_sharding_rule
from meshbridge.read.formats import Program
from meshbridge.report import Report

__all__ = [
    "LoopsAndMaps",
    "MeshError",
    "OpError",
    "ParseError",
    "Program",
    "Report",
    "ShardingWarning",
    "VerifyError",
    "__version__",
    "compile",
    "convert",
    "load",
    "partition",
    "register_sharding_rule",
    "report",
    "save",
]

__version__ = version("meshbridge")
