"""Proves that a pipeline computes what its source computes, by the exact evaluator.

The fragments, called in the order of the schedule, are one program on global shapes, in which a transfer changes nothing: that
program equals the source. Each fragment equals what it becomes on the mesh of its stage. Together they prove the whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from meshbridge.ir.builder import Builder, shape_of
from meshbridge.ir.mlir import copy_named_functions, function_type, ir, main_function
from meshbridge.pipelines.build import StagedPipeline
from meshbridge.pipelines.plan import Call, CallPlan, Slot
from meshbridge.pipelines.sites import Site
from meshbridge.pipelines.stacks import Part, Stacks
from meshbridge.pipelines.unreduced import reduced
from meshbridge.read.formats import copy_module
from meshbridge.text import Tabular
from meshbridge.verification.verdict import MEMORY, Verdict
from meshbridge.verification.verdict import verify as verify_programs


@dataclass(frozen=True, repr=False)
class Proof(Tabular):
    """The verdicts on the composition of fragments and on each partitioned fragment."""

    composition: Verdict
    fragments: Mapping[Site | str, Verdict]

    @property
    def equal(self) -> bool:
        """Whether the pipeline computes what its source computes."""
        return all(verdict.equal for verdict in self.verdicts.values())

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """The verdicts by what they are on."""
        fragments = {f"fragment {site}": verdict for site, verdict in self.fragments.items()}
        return {"the composition of fragments": self.composition} | fragments

    @property
    def headline(self) -> str:
        """Whether the pipeline is equal to its source, or what differs."""
        wrong = ", ".join(name for name, verdict in self.verdicts.items() if not verdict.equal)
        return f"different: {wrong}" if wrong else f"equal, fragments verified: {len(self.fragments)}"

    def table(self) -> str:
        """A line for each verdict, and what differs."""
        return "\n".join(f"{name}: {'equal' if each.equal else each.table()}" for name, each in self.verdicts.items())

    def to_json(self) -> str:
        """The verdicts as JSON."""
        verdicts = {name: verdict.record() for name, verdict in self.verdicts.items()}
        return json.dumps({"equal": self.equal, "verdicts": verdicts}, indent=2)


def verify(pipeline: StagedPipeline, *, source: ir.Module | None = None, seed: int = 0, memory: float = MEMORY) -> Proof:
    """Evaluates the source, its fragments in the order of the schedule, and each fragment on the devices of its stage.

    `source` is by default that of the pipeline; it may be of another context. `memory` is in gigabytes. Raises MeshError for a
    program that has no exact evaluation.
    """
    with pipeline.source.module.context:
        composition = verify_programs(source or pipeline.source.module, compose(pipeline), seed=seed, memory=memory)
        fragments: dict[Site | str, Verdict] = {}
        for fragment in pipeline.plan.fragments:
            source, partitioned = copy_module(fragment.module), pipeline.partitioned(fragment, "mesh").module
            reduced(source, partitioned)
            fragments[fragment.site] = verify_programs(source, partitioned, seed=seed, memory=memory)
    return Proof(composition, fragments)


def compose(pipeline: StagedPipeline) -> ir.Module:
    """The fragments of a pipeline as functions of one program on global shapes, whose `main` calls them in the plan's order."""
    return composed(pipeline.plan, pipeline.stacks, function_type(main_function(pipeline.source.module)))


def composed(plan: CallPlan, stacks: Stacks, kind: ir.FunctionType) -> ir.Module:
    """The same, of a plan whose arguments and results are parts of those of a step of that type."""
    first = plan.fragments[0].module
    with first.context, first.operation.location as location:
        module = ir.Module.create()
        end = ir.InsertionPoint(module.body)
        for view in first.body.operations:
            if view.operation.name == "mesh.mesh":
                view.operation.clone(ip=end)
        for fragment in plan.fragments:
            function = main_function(fragment.module).clone(ip=end)
            function.attributes["sym_name"] = ir.StringAttr.get(str(fragment.site))
            function.attributes["sym_visibility"] = ir.StringAttr.get("private")
            if "arg_attrs" in function.attributes:
                del function.attributes["arg_attrs"]
            copy_named_functions(fragment.module, module)
        _main(plan, stacks, kind, Builder(location, end))
    return module


def _main(plan: CallPlan, stacks: Stacks, kind: ir.FunctionType, end: Builder) -> None:
    named = {
        "sym_name": ir.StringAttr.get("main"),
        "function_type": ir.TypeAttr.get(kind),
    }
    main = ir.Operation.create("func.func", [], [], named, regions=1, ip=end.ip)
    block = main.regions[0].blocks.append(*kind.inputs)
    builder = Builder(end.loc, ir.InsertionPoint(block))

    def argument(part: Part) -> ir.Value:
        whole: ir.Value = block.arguments[part.number]
        if part.parts == 1:
            return whole
        start, end = part.bounds(shape_of(whole)[0])
        return builder.slice(whole, 0, start, end - start)

    values: dict[Slot, ir.Value] = {slot: argument(stacks.arguments[slot.source.number]) for slot in plan.arguments}
    for step in plan.steps:
        if isinstance(step, Call):
            callee: dict[str, ir.Attribute] = {"callee": ir.FlatSymbolRefAttr.get(str(step.fragment.site))}
            operands = [values[slot] for slot in step.inputs]
            call = builder.op("func.call", _types(step.fragment.module).results, operands, callee)
            values.update(zip(step.outputs, call.results, strict=True))
        else:
            values[step.target] = values[step.slot]
    returned = [values[slot] for slot in plan.results]
    results = [builder.concatenate([returned[own] for own in parts], 0) for parts in stacks.result_numbers()]
    ir.Operation.create("func.return", [], results, ip=builder.ip)


def _types(module: ir.Module) -> ir.FunctionType:
    return function_type(main_function(module))
