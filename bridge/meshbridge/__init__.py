"""meshbridge partitions sharded StableHLO programs on MLIR's mesh dialect, with every collective explicit.

    import meshbridge
    partitioned = meshbridge.partition(exported)      # jax.export.Exported in, jax.export.Exported out
    executable = meshbridge.compile(exported)         # runs through PJRT, called as the function itself
    step = meshbridge.jit(step, in_shardings=…)       # jax.jit, partitioned by meshbridge

A program is a `jax.export.Exported`, a `jax.jit` function with arguments for it, a `jax.stages.Lowered`, an MLIR module
(`jaxlib.mlir.ir.Module`), or a `Program` that `load` reads from a file of any known format.
Every error that the user can fix is a `MeshError`, a ValueError whose text is the diagnostic.
"""

import importlib
from typing import TYPE_CHECKING, Any

from meshbridge.api import (
    assert_same_plan,
    compile,
    convert,
    diff,
    explain,
    install,
    jit,
    load,
    mutate,
    operations,
    partition,
    patch,
    pipelined,
    report,
    save,
    search,
    search_pipeline,
    symbolic_report,
)
from meshbridge.ir.errors import MemoryWarning, MeshError, ParseError, ShardingWarning
from meshbridge.trials import compare, compile_for, measure, reshard, run, verify, verify_passes

if TYPE_CHECKING:
    from meshbridge.decide.mutations import Mutation, Operation
    from meshbridge.ir.mlir import OpError, VerifyError
    from meshbridge.ops.rule_notation import LoopsAndMaps
    from meshbridge.ops.sharding_rules import register_sharding_rule
    from meshbridge.pipelines.layer_stack import LayerStack
    from meshbridge.pipelines.searched import SearchedPipeline
    from meshbridge.pipelines.stage import stage
    from meshbridge.read.formats import Program
    from meshbridge.reports import Difference, Explanation, Report
    from meshbridge.reports.measured import Measured
    from meshbridge.reports.symbolic import Formulas
    from meshbridge.sharding_search.plan import SearchedPlan
    from meshbridge.tools.compare.comparison import Comparison, TargetComparison
    from meshbridge.tools.pass_verdicts import PassVerdicts
    from meshbridge.tools.reshard import ReshardReport
    from meshbridge.tools.trial import RunResult
    from meshbridge.verification.verdict import Verdict

    __version__: str

__all__ = [
    "Comparison",
    "Difference",
    "Explanation",
    "Formulas",
    "LayerStack",
    "LoopsAndMaps",
    "Measured",
    "MemoryWarning",
    "MeshError",
    "Mutation",
    "OpError",
    "Operation",
    "ParseError",
    "PassVerdicts",
    "Program",
    "Report",
    "ReshardReport",
    "RunResult",
    "SearchedPipeline",
    "SearchedPlan",
    "ShardingWarning",
    "TargetComparison",
    "Verdict",
    "VerifyError",
    "__version__",
    "assert_same_plan",
    "compare",
    "compile",
    "compile_for",
    "convert",
    "diff",
    "explain",
    "install",
    "jit",
    "load",
    "measure",
    "mutate",
    "operations",
    "partition",
    "patch",
    "pipelined",
    "register_sharding_rule",
    "report",
    "reshard",
    "run",
    "save",
    "search",
    "search_pipeline",
    "stage",
    "symbolic_report",
    "verify",
    "verify_passes",
]

_HOMES = {
    "Comparison": "meshbridge.tools.compare.comparison",
    "Difference": "meshbridge.reports",
    "Explanation": "meshbridge.reports",
    "Formulas": "meshbridge.reports.symbolic",
    "LayerStack": "meshbridge.pipelines.layer_stack",
    "LoopsAndMaps": "meshbridge.ops.rule_notation",
    "Measured": "meshbridge.reports.measured",
    "Mutation": "meshbridge.decide.mutations",
    "OpError": "meshbridge.ir.mlir",
    "Operation": "meshbridge.decide.mutations",
    "PassVerdicts": "meshbridge.tools.pass_verdicts",
    "Program": "meshbridge.read.formats",
    "Report": "meshbridge.reports",
    "ReshardReport": "meshbridge.tools.reshard",
    "RunResult": "meshbridge.tools.trial",
    "SearchedPipeline": "meshbridge.pipelines.searched",
    "SearchedPlan": "meshbridge.sharding_search.plan",
    "TargetComparison": "meshbridge.tools.compare.comparison",
    "Verdict": "meshbridge.verification.verdict",
    "VerifyError": "meshbridge.ir.mlir",
    "register_sharding_rule": "meshbridge.ops.sharding_rules",
    "stage": "meshbridge.pipelines.stage",
}
"""By name, the modules that are imported on first use: their imports take half a second."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("meshbridge")
    if name not in _HOMES:
        raise AttributeError(f"module 'meshbridge' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
