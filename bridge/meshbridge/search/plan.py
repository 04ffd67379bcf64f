"""What a search gives: shardings to paste, to pickle and to print, and what is predicted of the program that is partitioned with
them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from meshbridge.dialect.module_mesh import mesh_or_single
from meshbridge.ir.mlir import main_function
from meshbridge.read.formats import Program, pack
from meshbridge.reports.report import held
from meshbridge.search.boundary import partition_spec, pasted
from meshbridge.search.constraints import Constraint
from meshbridge.search.seeking import Searched
from meshbridge.text import joined, size_text, table, time_text

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec


@dataclass(frozen=True)
class Leaf:
    """An argument or result, and how it is to be sharded."""

    name: str
    "Its path, or `argument 3` where it has none."
    shape: tuple[int, ...]
    element_type: str
    sharding: tuple[tuple[str, ...], ...]
    "By dimension, the names of the axes that split it."

    @property
    def spec(self) -> PartitionSpec:
        """As JAX says it."""
        return partition_spec(self.sharding)

    @property
    def text(self) -> str:
        """The same as it is pasted."""
        return pasted(self.sharding)


@dataclass(frozen=True)
class SearchedPlan:
    """The fastest plan that was found. Seconds are those of a predicted step, bytes those of a device."""

    mesh: Mapping[str, int]
    "The sizes of its axes by name."
    machine: str
    arguments: tuple[Leaf, ...]
    results: tuple[Leaf, ...]
    seconds: float
    exposed_seconds: float
    "In which a device waits for communication."
    wire_bytes: float
    peak_bytes: float
    bound_seconds: float
    "The step, less what prices say that any plan which was open to the search could save at most (docs/search.md)."
    tried: int
    "Plans that were partitioned."
    program: Program
    "The program, sharded so."
    constraints: tuple[Constraint, ...] = ()
    "Lines to write into the model, the one that saves most first, if they were asked for."
    propagated_seconds: float | None = None
    "Where they were: the step if all but arguments and results is left to propagation."
    constrained_seconds: float | None = None
    "The same with the constraints."
    unconstrained: str = ""
    "Why no constraints could be looked for: what keeps propagation alone from partitioning the program."
    solving_seconds: float = field(default=0.0, compare=False)
    "Of the search, those in which the relaxed problem was made and solved."
    hint: str = ""
    "What else to ask for: parts of an axis, where no axis divides the experts of a mixture."
    divided: str = ""
    "Which axis is in parts though nobody has asked for that, and why: where that makes the step shorter."

    @property
    def annotated(self) -> Any:
        """The program, sharded so, as a value of the kind that was given: to be partitioned, saved or exported."""
        return pack(self.program)

    @property
    def gap(self) -> float:
        """The part of the step by which another plan could be faster at most."""
        return max(0.0, 1 - self.bound_seconds / self.seconds) if self.seconds else 0.0

    @property
    def in_shardings(self) -> Any:
        """PartitionSpecs in the tree of the positional arguments, as `jax.jit` takes them under a mesh of these axes; a tuple of
        them for a program whose trees are not known."""
        return self._trees[0]

    @property
    def kwarg_shardings(self) -> Mapping[str, Any]:
        """Those of the arguments that are given by name, by these."""
        found: Mapping[str, Any] = self._trees[1]
        return found

    @property
    def out_shardings(self) -> Any:
        """The same in the tree of the results."""
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
        """For people: the shardings, and what is predicted."""
        rows = [("", "shape", "sharding")]
        rows += [(leaf.name, _type(leaf), leaf.text) for leaf in (*self.arguments, *self.results)]
        axes = ", ".join(f"{name}={size}" for name, size in self.mesh.items())
        lines = [
            *table(rows, left={0, 1, 2}).splitlines(),
            *self._constraint_lines(),
            *(["", f"hint: {self.hint}"] if self.hint else []),
        ]
        divided = [self.divided] if self.divided else []
        return joined(
            (
                f"mesh {axes} on {self.machine}: a step of {time_text(self.seconds)}, of which {time_text(self.exposed_seconds)} "
                f"wait for communication; {size_text(self.wire_bytes)} sent and {size_text(self.peak_bytes)} needed by a device",
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
        rows += [(each.location.short, each.op, time_text(each.saves), each.text) for each in self.constraints]
        said = f"{steps}, with these constraints {time_text(self.constrained_seconds)}:"
        return ["", said, "", *table(rows, left={0, 1, 3}).splitlines()]

    def to_json(self) -> str:
        """For programs. Shardings are lists by dimension of the names of axes."""
        figures = ("machine", "seconds", "exposed_seconds", "wire_bytes", "peak_bytes", "bound_seconds", "gap", "tried")
        return json.dumps(
            {
                "mesh": dict(self.mesh),
                **{name: getattr(self, name) for name in figures},
                "in_shardings": [asdict(leaf) for leaf in self.arguments],
                "out_shardings": [asdict(leaf) for leaf in self.results],
                "propagated_seconds": self.propagated_seconds,
                "constrained_seconds": self.constrained_seconds,
                "constraints": [asdict(each) for each in self.constraints],
                "unconstrained": self.unconstrained,
                "hint": self.hint,
                "divided": self.divided,
            },
            indent=2,
        )


def plan_of(found: Searched, program: Program) -> SearchedPlan:
    """What was found, for the user; `program` is the one that was searched, in its own format, sharded so."""
    main = main_function(found.partitioned)
    best, mesh, said = found.best, mesh_or_single(found.partitioned), found.constraints
    arguments, results = (
        tuple(
            Leaf(each.name or f"{side[:-1]} {number}", each.shape, each.element_type, each.sharding)
            for number, each in enumerate(held(main, side, mesh, getattr(found.names, side)))
        )
        for side in ("arguments", "results")
    )
    return SearchedPlan(
        mesh=dict(found.mesh.named_axes),
        machine=found.asked.machine,
        arguments=arguments,
        results=results,
        seconds=best.seconds,
        exposed_seconds=best.exposed_seconds,
        wire_bytes=best.wire_bytes,
        peak_bytes=best.peak_bytes,
        bound_seconds=found.bound,
        tried=found.tried,
        program=program,
        constraints=said.all if said is not None else (),
        propagated_seconds=said.propagated_seconds if said is not None else None,
        constrained_seconds=said.seconds if said is not None else None,
        unconstrained=found.unconstrained,
        solving_seconds=found.solving_seconds,
        hint=found.hint,
        divided=found.divided,
    )


def _type(leaf: Leaf) -> str:
    return "x".join((*map(str, leaf.shape), leaf.element_type))
