"""`meshbridge reshard`: the plan between two shardings, what it costs against the bound, and who holds what before and after."""

from __future__ import annotations

import json
from typing import Any

from meshbridge.ir.mlir import MeshError
from meshbridge.resharding.bound import Bound, bound
from meshbridge.resharding.notation import parse_mesh, parse_shape, parse_sharding, sharding_text
from meshbridge.resharding.plan import DEFAULTS, PlanOptions, ReshardingPlan
from meshbridge.resharding.planner import plan
from meshbridge.text import size_text
from meshbridge.tools.reshard_picture import picture


def run(
    shape_text: str, mesh_text: str, source_text: str, target_text: str, run: bool, as_json: bool, options: PlanOptions = DEFAULTS
) -> str:
    """The command's output. With `run`, the plan is also executed on as many virtual devices and the data compared.

    Raises MeshError for text that is no shape, mesh or sharding, for a pair without a plan, and for a run that gives wrong data.
    """
    (shape, dtype), mesh = parse_shape(shape_text), parse_mesh(mesh_text)
    source, target = parse_sharding(source_text, mesh), parse_sharding(target_text, mesh)
    try:
        found = plan(shape, dtype, mesh, source, target, options)
    except MeshError as error:  # which the passes prefix with the operation
        raise MeshError(f"error: cannot be resharded: {error}") from None
    least = bound(shape, dtype, mesh, found.source, found.target)
    if run:
        from meshbridge.tools.reshard_trial import try_on_devices  # imports JAX, which only this needs

        try_on_devices(found)
    return json.dumps(_record(found, least, run), indent=2) if as_json else _report(found, least, run)


def _report(found: ReshardingPlan, least: Bound, ran: bool) -> str:
    received, needed = found.wire_bytes, least.busiest
    ratio = "at the bound" if received <= needed else f"{received / needed:.2f} times" if needed else "needs none"
    lines = [
        str(found),
        "",
        f"busiest device receives {size_text(received)}, lower bound {size_text(needed)} ({ratio})",
        f"all devices receive     {size_text(found.total_bytes)}, lower bound {size_text(least.total)}",
        f"memory at most          {size_text(found.peak_bytes)}; both shards and the smaller again {size_text(found.peak_bound)}",
    ]
    if ran:
        lines.append(f"ran on {found.mesh.size} devices: every device holds its shard")
    for name, sharding in (("before", found.source), ("after", found.target)):
        lines += ["", f"{name}: {sharding_text(sharding)}", picture(found.shape, found.mesh, sharding)]
    return "\n".join(lines)


def _record(found: ReshardingPlan, least: Bound, ran: bool) -> dict[str, Any]:
    return {
        "shape": list(found.shape),
        "element_type": found.dtype,
        "mesh": list(found.mesh.shape),
        "from": sharding_text(found.source),
        "to": sharding_text(found.target),
        "steps": [_step(found, number) for number in range(len(found.steps))],
        "collectives": found.collectives,
        "received_bytes": found.wire_bytes,
        "sent_bytes": found.sent_bytes,
        "total_bytes": found.total_bytes,
        "peak_bytes": found.peak_bytes,
        "peak_bound": found.peak_bound,
        "bound": {"received_bytes": least.busiest, "total_bytes": least.total},
        "ran": ran,
    }


def _step(found: ReshardingPlan, number: int) -> dict[str, Any]:
    step = found.steps[number]
    return {
        "step": step.text(found.mesh),
        "collectives": step.collectives,
        "received_bytes": found.received_by_step[number],
        "shape": list(step.shape),
    }
