"""`lower-collectives`: mesh collectives to StableHLO collectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.dialect.module_mesh import mesh_ops
from meshbridge.ir.groups import Form, Groups, Spelling
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import Pass, register
from meshbridge.lowering.blocks import lower_module
from meshbridge.machines.compile_target import DEFAULT_TARGET, CompileTarget
from meshbridge.machines.stages import forms


@register
@dataclass(frozen=True)
class LowerCollectives(Pass):
    """Replaces every mesh operation that runs on devices by StableHLO operations that XLA compiles.

    Input:   %1 = mesh.all_gather %0 on @m mesh_axes = [1] gather_axis = 0 : tensor<2xf32> -> tensor<8xf32>
    Output:  %1 = "stablehlo.all_gather"(%0) <{all_gather_dim = 0 : i64, channel_handle = …,
               replica_groups = dense<[[0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>, use_global_device_ids}>
               : (tensor<2xf32>) -> tensor<8xf32>

    `mesh.mesh`, annotations and the `meshbridge.*` attributes of arguments and results stay: later writers need them.
    """

    name: ClassVar[str] = "lower-collectives"
    replica_groups: Spelling = "auto"
    "How device groups are written: `dense` numbers; `mesh-axes` where XLA reads them right; `auto`: these on many devices."
    form: Form = "exported"
    "`exported`: devices are partitions, for a body under `sdy.manual_computation`; `local`: devices are replicas, for PJRT."
    collective_broadcast: bool = False
    "Write a broadcast as one `stablehlo.collective_broadcast`, which XLA's CPU backend lacks, instead of a tree of permutes."

    target: CompileTarget = DEFAULT_TARGET
    "Whose compiler reads the collectives: they are written in the forms that it keeps (docs/targets.md)."

    def run(self, module: ir.Module) -> None:
        """Raises OpError for an operation that cannot be executed coherently."""
        kept_forms = forms(self.target, max((op.value.size for op in mesh_ops(module.body)), default=1))
        lower_module(module, Groups(self.form, self.replica_groups, self.collective_broadcast, kept_forms))
