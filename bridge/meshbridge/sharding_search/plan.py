"""The result of a search: shardings to paste, to pickle and to print, and the prediction for the program partitioned with
them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from meshbridge.dialect.module_mesh import mesh_or_single
from meshbridge.ir.mlir import main_function
from meshbridge.read.formats import Program, pack
from meshbridge.reports.report import sharded_arrays
from meshbridge.sharding_search.boundary import named_text, partition_spec
from meshbridge.sharding_search.constraints import Constraint
from meshbridge.sharding_search.mesh_search import SearchResult
from meshbridge.text import Tabular, joined, public, size_text, table, time_text

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec


@dataclass(frozen=True)
class Leaf:
    """An argument or result, and its sharding."""

    name: str
    "Its path; `argument 3` for one without a path."
    shape: tuple[int, ...]
    element_type: str
    sharding: tuple[tuple[str, ...], ...]
    "Per dimension, the names of the axes that split it."

    @property
    def spec(self) -> PartitionSpec:
        """The sharding as a `PartitionSpec`."""
        return partition_spec(self.sharding)

    @property
    def text(self) -> str:
        """The sharding as text to paste."""
        return named_text(self.sharding)


@public
@dataclass(frozen=True, repr=False)
class SearchedPlan(Tabular):
    """The fastest plan of a search. Seconds are those of a predicted step, bytes those of a device."""

    mesh: Mapping[str, int]
    "The sizes of its axes by name."
    machine: str
    arguments: tuple[Leaf, ...]
    results: tuple[Leaf, ...]
    seconds: float
    exposed_seconds: float
    "The time in which a device waits for communication."
    wire_bytes: float
    peak_bytes: float
    bound_seconds: float
    "The step, less the most that another plan in the search space could save, by prices (docs/search.md)."
    tried: int
    "The number of plans that were partitioned."
    program: Program
    "The program with these shardings."
    constraints: tuple[Constraint, ...] = ()
    "Lines to write into the model, the one that saves most first, if asked for."
    propagated_seconds: float | None = None
    "If constraints were asked for: the step if only arguments and results are sharded, and the rest propagated."
    constrained_seconds: float | None = None
    "The step with the constraints."
    unconstrained: str = ""
    "Why no constraints are named: what keeps propagation alone from partitioning the program."
    solving_seconds: float = field(default=0.0, compare=False)
    "The time in which the relaxed problem was built and solved."
    hint: str = ""
    "What else to ask for: sub-axes, if no axis divides the experts of a mixture."
    divided: str = ""
    "Which axis the search split without being asked, and why: where that makes the step shorter."

    @property
    def annotated(self) -> Any:
        """The program with these shardings, as a value of the kind that was passed: to partition, save or export."""
        return pack(self.program)

    @property
    def headline(self) -> str:
        """The mesh and the predicted step."""
        return f"mesh {self._mesh_text} on {self.machine}: a step of {time_text(self.seconds)}"

    @property
    def _mesh_text(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in self.mesh.items())

    @property
    def gap(self) -> float:
        """The most that another plan could save, as a fraction of the step."""
        return max(0.0, 1 - self.bound_seconds / self.seconds) if self.seconds else 0.0

    @property
    def in_shardings(self) -> Any:
        """PartitionSpecs in the tree of the positional arguments, as `jax.jit` takes them under a mesh of these axes; a tuple of
        them if the program's trees are unknown."""
        return self._trees[0]

    @property
    def kwarg_shardings(self) -> Mapping[str, Any]:
        """PartitionSpecs of the keyword arguments, by name."""
        shardings: Mapping[str, Any] = self._trees[1]
        return shardings

    @property
    def out_shardings(self) -> Any:
        """PartitionSpecs in the tree of the results."""
        return self._trees[2]

    @property
    def _trees(self) -> tuple[Any, Mapping[str, Any], Any]:
        from jax.sharding import PartitionSpec

        arguments, results = ([leaf.spec for leaf in side] for side in (self.arguments, self.results))
        calling = self.program.calling
        if calling is None:
            return tuple(arguments), {}, tuple(results)
        return calling.in_place(arguments, results, PartitionSpec())

    def table(self) -> str:
        """The shardings and the prediction, as text."""
        rows = [("", "shape", "sharding")]
        rows += [(leaf.name, _type(leaf), leaf.text) for leaf in (*self.arguments, *self.results)]
        lines = [
            *table(rows, left={0, 1, 2}).splitlines(),
            *self._constraint_lines(),
            *(["", f"hint: {self.hint}"] if self.hint else []),
        ]
        divided = [self.divided] if self.divided else []
        return joined(
            (
                f"{self.headline}, of which {time_text(self.exposed_seconds)} wait for communication; "
                f"{size_text(self.wire_bytes)} sent and {size_text(self.peak_bytes)} needed by a device",
                f"by prices no plan takes less than {time_text(self.bound_seconds)}, a gap of {self.gap:.1%}; {self.tried} tried",
                *divided,
                "",
                *lines,
            )
        )

    def _constraint_lines(self) -> list[str]:
        if self.unconstrained:
            return ["", f"no constraints are named, since propagation alone does not partition the program: {self.unconstrained}"]
        if self.propagated_seconds is None or self.constrained_seconds is None:
            return []
        steps = f"by propagation alone a step takes {time_text(self.propagated_seconds)}"
        if not self.constraints:
            return ["", f"{steps}; no constraints that were tried make it shorter"]
        rows = [("", "of", "saves", "write")]
        rows += [(line.location.short, line.op, time_text(line.saves), line.text) for line in self.constraints]
        steps_text = f"{steps}, with these constraints {time_text(self.constrained_seconds)}:"
        return ["", steps_text, "", *table(rows, left={0, 1, 3}).splitlines()]

    def to_json(self) -> str:
        """The plan as JSON. Shardings are lists of axis names by dimension."""
        figures = ("machine", "seconds", "exposed_seconds", "wire_bytes", "peak_bytes", "bound_seconds", "gap", "tried")
        return json.dumps(
            {
                "mesh": dict(self.mesh),
                **{name: getattr(self, name) for name in figures},
                "in_shardings": [asdict(leaf) for leaf in self.arguments],
                "out_shardings": [asdict(leaf) for leaf in self.results],
                "propagated_seconds": self.propagated_seconds,
                "constrained_seconds": self.constrained_seconds,
                "constraints": [asdict(constraint) for constraint in self.constraints],
                "unconstrained": self.unconstrained,
                "hint": self.hint,
                "divided": self.divided,
            },
            indent=2,
        )


def plan_of(result: SearchResult, program: Program) -> SearchedPlan:
    """The user's plan for a search result; `program` is the searched program in its own format, with the plan's shardings."""
    main = main_function(result.partitioned)
    best, mesh, constraints = result.best, mesh_or_single(result.partitioned), result.constraints
    arguments, results = (
        tuple(
            Leaf(leaf.name or f"{side[:-1]} {number}", leaf.shape, leaf.element_type, leaf.sharding)
            for number, leaf in enumerate(sharded_arrays(main, side, mesh, getattr(result.names, side)))
        )
        for side in ("arguments", "results")
    )
    return SearchedPlan(
        mesh=dict(result.mesh.named_axes),
        machine=result.request.target.name,
        arguments=arguments,
        results=results,
        seconds=best.seconds,
        exposed_seconds=best.exposed_seconds,
        wire_bytes=best.wire_bytes,
        peak_bytes=best.peak_bytes,
        bound_seconds=result.bound,
        tried=result.tried,
        program=program,
        constraints=constraints.all if constraints is not None else (),
        propagated_seconds=constraints.propagated_seconds if constraints is not None else None,
        constrained_seconds=constraints.seconds if constraints is not None else None,
        unconstrained=result.unconstrained,
        solving_seconds=result.solving_seconds,
        hint=result.hint,
        divided=result.divided,
    )


def _type(leaf: Leaf) -> str:
    return "x".join((*map(str, leaf.shape), leaf.element_type))
