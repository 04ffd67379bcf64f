"""`meshbridge reshard`: the plan between two shardings, its cost beside the lower bound, and pictures of both shardings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from meshbridge.ir.mlir import MeshError
from meshbridge.resharding.bound import Bound, bound
from meshbridge.resharding.notation import parse_mesh, parse_shape, parse_sharding, sharding_text
from meshbridge.resharding.plan import DEFAULTS, PlanOptions, ReshardingPlan
from meshbridge.resharding.planner import plan
from meshbridge.text import Tabular, counted, public, size_text
from meshbridge.tools.reshard_picture import picture


@public
@dataclass(frozen=True, repr=False)
class ReshardReport(Tabular):
    """The plan between two shardings of an array, beside the lower bound. `ran`: every device held its shard after a run."""

    plan: ReshardingPlan
    bound: Bound
    ran: bool = False

    @property
    def headline(self) -> str:
        """What the busiest device receives, in how many steps, and the lower bound."""
        received = f"a device receives {size_text(self.plan.wire_bytes)} in {counted(self.plan.collectives, 'collective')}"
        return f"{received}, lower bound {size_text(self.bound.busiest)}"

    def table(self) -> str:
        """The steps, their cost, and pictures of both shardings."""
        plan, bound = self.plan, self.bound
        received, needed = plan.wire_bytes, bound.busiest
        ratio = "at the bound" if received <= needed else f"{received / needed:.2f} times" if needed else "needs none"
        lines = [
            str(plan),
            "",
            f"busiest device receives {size_text(received)}, lower bound {size_text(needed)} ({ratio})",
            f"all devices receive     {size_text(plan.total_bytes)}, lower bound {size_text(bound.total)}",
            f"memory at most          {size_text(plan.peak_bytes)}; "
            f"both shards and the smaller again {size_text(plan.peak_bound)}",
        ]
        if self.ran:
            lines.append(f"ran on {plan.mesh.size} devices: every device holds its shard")
        for name, sharding in (("before", plan.source), ("after", plan.target)):
            lines += ["", f"{name}: {sharding_text(sharding)}", picture(plan.shape, plan.mesh, sharding)]
        return "\n".join(lines)

    def to_json(self) -> str:
        """The plan and the bound as JSON."""
        return json.dumps(_record(self.plan, self.bound, self.ran), indent=2)


def reshard(
    shape_text: str, mesh_text: str, source_text: str, target_text: str, options: PlanOptions = DEFAULTS, *, run: bool = False
) -> ReshardReport:
    """The plan between two shardings. With `run`, it is also executed on JAX's devices, and the data compared.

    Raises MeshError for an invalid shape, mesh or sharding, for a pair without a plan, and for a run with wrong data.
    """
    (shape, dtype), mesh = parse_shape(shape_text), parse_mesh(mesh_text)
    source, target = parse_sharding(source_text, mesh), parse_sharding(target_text, mesh)
    try:
        resharding = plan(shape, dtype, mesh, source, target, options)
    except MeshError as error:  # passes prefix it with the operation
        raise MeshError(f"error: cannot be resharded: {error}") from None
    least = bound(shape, dtype, mesh, resharding.source, resharding.target)
    if run:
        from meshbridge.tools.reshard_trial import try_on_devices  # imports JAX

        try_on_devices(resharding)
    return ReshardReport(resharding, least, run)


def _record(plan: ReshardingPlan, least: Bound, ran: bool) -> dict[str, Any]:
    return {
        "shape": list(plan.shape),
        "element_type": plan.dtype,
        "mesh": list(plan.mesh.shape),
        "from": sharding_text(plan.source),
        "to": sharding_text(plan.target),
        "steps": [_step(plan, number) for number in range(len(plan.steps))],
        "collectives": plan.collectives,
        "received_bytes": plan.wire_bytes,
        "sent_bytes": plan.sent_bytes,
        "total_bytes": plan.total_bytes,
        "peak_bytes": plan.peak_bytes,
        "peak_bound": plan.peak_bound,
        "bound": {"received_bytes": least.busiest, "total_bytes": least.total},
        "ran": ran,
    }


def _step(plan: ReshardingPlan, number: int) -> dict[str, Any]:
    step = plan.steps[number]
    return {
        "step": step.text(plan.mesh),
        "collectives": step.collectives,
        "received_bytes": plan.received_by_step[number],
        "shape": list(step.shape),
    }
