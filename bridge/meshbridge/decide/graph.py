"""One function as tensors and nodes: plain Python values beside the IR (`build_graph.py` makes them in one walk).

A `Tensor` is what a sharding is decided for: a value with the `mesh.shard` on its definition, or all values of a loop that must
be sharded alike (a carried value, its region arguments, its result). A `Node` relates tensors: an op with its sharding rule, or
an identity (a use annotated by the user, a loop's initial value, a yielded value).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from meshbridge.ir.mlir import MANUAL, ir
from meshbridge.ir.sharding import Axes, Mesh, Sharding, Split
from meshbridge.ops.option import split_sharding, with_partial, with_split
from meshbridge.ops.rule import ShardingRule


@dataclass
class Tensor:
    """One tensor: what is known of its sharding. `open` says per dimension whether propagation may add axes."""

    shape: tuple[int, ...]
    dtype: str
    split: Split
    open: tuple[bool, ...]
    banned: frozenset[int] = frozenset()
    priorities: tuple[int, ...] = ()
    "Per dimension, when the user's annotation of it takes part in propagation: 0 first. () is 0 for all."
    decided: tuple[bool, ...] = ()
    "Per dimension, whether annotations of a higher priority than others have decided it; () is False for all."
    layout: Sharding | None = None
    "The user's annotation if it says more than a split: a partial value, halo sizes, offsets."
    user: bool = False
    "Whether the user annotated it."
    written: Split = ()
    "Per dimension, the axes of that annotation: an open dimension may be split further along others, which come after these."
    tied: bool = False
    "Whether several values share it (a loop's carried value, a branch's result): its definitions are sharded exactly as decided."
    region_axes: frozenset[int] = frozenset()
    "The axes along which a region beside it is local: there each dimension's split begins with its own of them."
    boundary: bool = False
    "Whether it is an argument or a result of the function: it is not sharded along more axes than propagation found."
    found: frozenset[int] = frozenset()
    "At the boundary, the axes along which the sweeps have split it."
    uses: int = 0

    @property
    def summed_axes(self) -> Axes:
        """The axes along which it is declared a partial sum."""
        return self.layout.summed_axes if self.layout is not None else ()

    def sharding(self, mesh: str) -> Sharding:
        """As it is decided: its split, and what its annotation says beside that."""
        if self.layout is None:
            return split_sharding(mesh, self.split)
        return with_split(self.layout, self.split) if self.layout.is_plain else self.layout

    @property
    def movable(self) -> tuple[bool, ...]:
        """Per dimension, whether refinement may split it otherwise than propagation has."""
        return (
            tuple(may and not closed for may, closed in zip(self.open, self.decided, strict=True)) if self.decided else self.open
        )

    def written_along(self, dim: int) -> Axes:
        """The axes that the user wrote on a dimension."""
        return self.written[dim] if self.written else ()

    def free_along(self, dim: int) -> Axes:
        """Those of them along which no region beside it is local."""
        return tuple(axis for axis in self.written_along(dim) if axis not in self.region_axes)

    def is_kept_by(self, split: Sequence[Axes]) -> bool:
        """Whether every dimension of `split` begins with the axes that the user wrote there, and names no axis twice."""
        axes = [axis for along in split for axis in along]
        return not self.written or (
            len(set(axes)) == len(axes)
            and all(along[: len(kept)] == kept for along, kept in zip(split, self.written, strict=True))
        )

    @property
    def signature(self) -> tuple[object, ...]:
        """All that decides about it, apart from its neighbours."""
        sharding = (self.split, self.open, self.decided, self.banned, self.layout, self.written, self.region_axes)
        return (self.shape, self.dtype, *sharding, self.user, self.tied, self.boundary)


@dataclass
class Node:
    """An op, or an identity of an operand and a result (then `op` is the annotation, call or terminator behind it)."""

    op: ir.Operation
    rule: ShardingRule
    operands: tuple[int, ...]
    results: tuple[int, ...]
    is_identity: bool = False
    operand_index: int = 0
    "For identities: the operand of `op` that carries the value."
    fixed_option: tuple[Axes, ...] | None = None
    weight: int = 1
    "How often it runs: trip counts of the loops around it."
    reduce_weight: int = 0
    "How often a partial value that it leaves is reduced, if less often: a loop that only adds up reduces once, in the end."
    region_axes: frozenset[int] = frozenset()
    "For identities into and out of a manual computation: its axes. Only the side outside is split along them."
    forward: bool = True
    "Whether an identity hands splits from its operand to its result, and `backward` from its result to its operand."
    backward: bool = True
    manual: frozenset[int] = frozenset()
    "The axes of the manual computations around it, which do not exist there."
    scope: tuple[int, ...] = ()
    "The regions around it, outermost first: what is computed in one scope can be used in it and below."
    kept: tuple[Axes, ...] = ()
    "Per operand, the axes along which it is taken and passed on as a declared partial sum (`unreduced.py`); () for no operand."
    inside: frozenset[int] = frozenset()
    "Operands that a loop around it carries: what it reads is this trip's value, not the one that the loop ends with."

    @property
    def signature(self) -> tuple[object, ...]:
        """All that decides about it, apart from its tensors."""
        shape = (self.rule, self.fixed_option, self.kept, self.region_axes, self.inside)
        return (*shape, self.weight, self.reduce_weight, self.is_identity, self.forward, self.backward)

    @property
    def only_result(self) -> int:
        """The tensor of its result; -1 if it has none, several, or one that is no ranked tensor."""
        return self.results[0] if len(self.results) == 1 else -1

    @property
    def reduce_share(self) -> float:
        """The part of its runs after which a partial value is reduced."""
        return self.reduce_weight / self.weight if self.reduce_weight else 1.0


@dataclass
class Graph:
    """A function's tensors and nodes in program order. Tensor -1 stands for values that are no ranked tensors."""

    function: ir.Operation
    mesh: Mesh
    tensors: list[Tensor] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    tensor_of: dict[ir.Value, int] = field(default_factory=dict)
    carried: dict[int, int] = field(default_factory=dict)
    "Per tensor that a loop carries, the scope of the loop's body."
    accumulated: set[int] = field(default_factory=set)
    "Tensors that go by linear ops alone into what a loop only adds up."
    returned_partial: set[int] = field(default_factory=set)
    "Tensors that a body may return partial: whatever else it computes, it returns reduced."
    warnings: list[str] = field(default_factory=list)
    "What the user should know of annotations that were not followed to the letter."
    users: list[list[int]] = field(default_factory=list)
    "Per tensor, the nodes that mention it."

    def identity_need(self, node: Node) -> Sharding:
        """What an identity needs of its operand to be its result. Within a manual computation, the terms of a sum along its axes
        are what the devices hold."""
        source, target = self.tensors[node.operands[0]], self.tensors[node.results[0]]
        if not node.region_axes:
            return target.sharding(self.mesh.name)
        split = across_region(target.split, source.split, node.region_axes)
        enters = node.op.name == MANUAL
        terms = tuple(axis for axis in (source if enters else target).summed_axes if (axis in node.region_axes) == enters)
        return with_partial(split_sharding(self.mesh.name, split), terms)

    def wanted_partial(self, node: Node) -> Axes:
        """The axes along which the user wants the node's result partial, other than by passing on an operand that is so."""
        wanted = self.wanted_layout(node)
        return wanted.partial_axes if wanted is not None and not node.kept else ()

    def wanted_layout(self, node: Node) -> Sharding | None:
        """The user's annotation of a result as partial."""
        layouts = (self.tensors[tensor].layout for tensor in node.results if tensor >= 0)
        return next((layout for layout in layouts if layout is not None and layout.partial_axes), None)

    def connect(self) -> None:
        """Fills `users` and each tensor's use count once all nodes are known."""
        self.users = [[] for _ in self.tensors]
        for index, node in enumerate(self.nodes):
            for tensor in {*node.operands, *node.results} - {-1}:
                self.users[tensor].append(index)
            for tensor in node.operands:
                if tensor >= 0:
                    self.tensors[tensor].uses += 1
        for tensor, body in self.carried.items():
            for index in self.users[tensor]:
                node = self.nodes[index]
                if body in node.scope:
                    node.inside |= {number for number, read in enumerate(node.operands) if read == tensor}


def across_region(split: Split, own: Split, axes: frozenset[int]) -> Split:
    """`split` on the other side of where a manual computation along `axes` begins or ends; those stay as in `own`."""
    return tuple(
        (*[axis for axis in present if axis in axes], *[axis for axis in along if axis not in axes])
        for along, present in zip(split, own, strict=True)
    )
