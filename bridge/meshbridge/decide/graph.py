"""The graph of one function: tensors and nodes as plain Python values (`build_graph.py` makes them in one walk).

A `Tensor` has one sharding to decide: a value with the `mesh.shard` on its definition, or all values of a loop that must be
sharded alike (a carried value, its region arguments, its result). A `Node` relates tensors: an op with its sharding rule, or an
identity (a use annotated by the user, a loop's initial value, a yielded value).

Equal descriptions of tensors are one object, and so are equal kinds of nodes: results computed for a kind and its tensors are
looked up by identity. The layers of a model are equal, so nearly every lookup succeeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import chain
from typing import Any, NamedTuple, final

from meshbridge.decide.choice import Pricing, TensorType, pricing_of
from meshbridge.ir.mlir import inside, ir
from meshbridge.ir.sharding import Axes, Mesh, Sharding, Split
from meshbridge.ir.subaxes import parts_of
from meshbridge.ops.linear import carried_axes
from meshbridge.ops.option import Option, sharding_of, with_partial, with_split
from meshbridge.ops.rule import ShardingRule
from meshbridge.resharding import ALONE, Concurrency


@final
@dataclass(frozen=True, eq=False)
class Tensor:
    """A description of one tensor's sharding. `open` says per dimension whether propagation may add axes."""

    mesh: str
    shape: tuple[int, ...]
    dtype: str
    split: Split
    open: tuple[bool, ...]
    banned: frozenset[int] = frozenset()
    priorities: tuple[int, ...] = ()
    "Per dimension, the priority of the user's annotation in propagation: 0 first. () is 0 for all."
    decided: tuple[bool, ...] = ()
    "Per dimension, whether annotations of a higher priority have decided it; () is False for all."
    layout: Sharding | None = None
    "The user's annotation, if it has more than splits: a partial value, halo sizes, offsets."
    annotated: bool = False
    "Whether the user annotated it."
    written: Split = ()
    """Per dimension, the axes that the user wrote: an open dimension may be split further along axes after these."""
    tied: bool = False
    """Whether several values share it (carried by a loop, a branch's result): all are sharded exactly as decided."""
    region_axes: frozenset[int] = frozenset()
    "The manual axes of a region that takes or returns it: each dimension's split begins with its manual axes."
    boundary: bool = False
    "Whether it is an argument or a result of the function: it is sharded along no more axes than propagation found."
    propagated_axes: frozenset[int] = frozenset()
    "At the boundary, the axes along which propagation has split it."
    gathered: Concurrency = ALONE
    "The concurrency of its gather, see `concurrency.py`."
    reduced: Concurrency = ALONE
    "The concurrency of its reduction."
    _by_split: dict[Split, Tensor] = field(default_factory=dict, repr=False)
    "The tensors that differ from it in the split alone, by split."

    @cached_property
    def type(self) -> TensorType:
        return self.shape, self.dtype

    @cached_property
    def axes(self) -> int:
        """The axes that its sharding uses, as bits."""
        return sum(1 << axis for axis in {*self.sharding.used_axes, *self.sharding.partial_axes})

    @cached_property
    def summed_axes(self) -> Axes:
        """The axes along which the user declared it a partial sum."""
        return self.layout.summed_axes if self.layout is not None else ()

    @cached_property
    def sharding(self) -> Sharding:
        """Its sharding: its split, and what else its annotation says."""
        if self.layout is None:
            return sharding_of(self.mesh, self.split)
        return with_split(self.layout, self.split) if self.layout.is_plain else self.layout

    @cached_property
    def movable(self) -> tuple[bool, ...]:
        """Per dimension, whether refinement may change the split of propagation."""
        return (
            tuple(may and not closed for may, closed in zip(self.open, self.decided, strict=True)) if self.decided else self.open
        )

    def written_along(self, dim: int) -> Axes:
        """The axes that the user wrote on a dimension."""
        return self.written[dim] if self.written else ()

    def free_along(self, dim: int) -> Axes:
        """The axes that the user wrote on a dimension, without the manual axes of adjacent regions."""
        return tuple(axis for axis in self.written_along(dim) if axis not in self.region_axes)

    def allows(self, split: Sequence[Axes]) -> bool:
        """Whether every dimension of `split` begins with the axes that the user wrote there, and no axis is used twice."""
        axes = [axis for along in split for axis in along]
        return not self.written or (
            len(set(axes)) == len(axes)
            and all(along[: len(written)] == written for along, written in zip(split, self.written, strict=True))
        )

    def with_split(self, split: Split) -> Tensor:
        """The same tensor with that split."""
        tensor = self._by_split.get(split)
        if tensor is None:
            tensor = self._by_split[split] = object.__new__(Tensor)
            tensor.__dict__.update({name: value for name, value in self.__dict__.items() if name not in _OF_SPLIT}, split=split)
        return tensor

    def renumbered(self, parts: Sequence[Axes]) -> Tensor:
        """The same tensor on a mesh where each axis becomes its `parts`."""
        layout = self.layout
        if layout is not None:
            split, partial = _split_in_parts(layout.split_axes, parts), _in_parts(layout.partial_axes, parts)
            layout = replace(layout, split_axes=split, partial_axes=partial)
        return replace(
            self,
            split=_split_in_parts(self.split, parts),
            written=_split_in_parts(self.written, parts),
            layout=layout,
            banned=frozenset(_in_parts(self.banned, parts)),
            region_axes=frozenset(_in_parts(self.region_axes, parts)),
            propagated_axes=frozenset(_in_parts(self.propagated_axes, parts)),
            _by_split={},
        )

    @property
    def signature(self) -> tuple[object, ...]:
        """All fields but the split."""
        annotated = (self.priorities, self.decided, self.layout, self.annotated, self.written, self.region_axes)
        values = (self.tied, self.boundary, self.propagated_axes, self.gathered, self.reduced)
        return (self.mesh, self.shape, self.dtype, self.open, self.banned, *annotated, *values)


_OF_SPLIT = ("axes", "sharding")
"""Properties computed from the split; all others are equal for tensors that differ in the split alone."""


@dataclass(frozen=True, eq=False)
class NodeKind:
    """All properties of a node but its tensors."""

    rule: ShardingRule
    weight: int
    "Number of executions: the product of the trip counts of the loops around it."
    is_identity: bool = False
    fixed_option: Option | None = None
    reduce_weight: int = 0
    "How often a partial result is reduced, if less often: a loop that only accumulates reduces once, at the end."
    region_axes: frozenset[int] = frozenset()
    "For identities into and out of a manual computation: its axes. Only the tensor outside is split along them."
    is_entry: bool = False
    "Whether such an identity leads into the computation."
    forward: bool = True
    "Whether an identity propagates splits from its operand to its result, and `backward` from its result to its operand."
    backward: bool = True
    unreduced: tuple[Axes, ...] = ()
    "Per operand, the axes along which the op passes on a declared partial sum (`unreduced.py`); () for no operand."
    loop_carried: frozenset[int] = frozenset()
    "Operands that a loop around it carries: it reads the value of the iteration, not the final one."
    requires_subaxes: bool = False
    "Whether axes are split into sub-axes to fit its loops, see `cut_axes.py`."
    sharing: int = 1
    "The number of devices among which the propagated annotations share its work."

    @property
    def signature(self) -> tuple[object, ...]:
        """All fields, as a key."""
        identity = (self.is_identity, self.region_axes, self.is_entry, self.forward, self.backward)
        executions = (self.weight, self.reduce_weight, self.sharing)
        return (self.rule, *executions, self.fixed_option, self.unreduced, self.loop_carried, self.requires_subaxes, *identity)

    def renumbered(self, parts: Sequence[Axes]) -> NodeKind:
        """The same kind on a mesh where each axis becomes its `parts`."""
        option = _split_in_parts(self.fixed_option, parts) if self.fixed_option is not None else None
        unreduced, region_axes = _split_in_parts(self.unreduced, parts), frozenset(_in_parts(self.region_axes, parts))
        return replace(self, fixed_option=option, unreduced=unreduced, region_axes=region_axes)

    @cached_property
    def reduce_share(self) -> float:
        """The share of its executions after which a partial value is reduced."""
        return self.reduce_weight / self.weight if self.reduce_weight else 1.0

    @cached_property
    def passes_through(self) -> bool:
        """Whether no loop is a reduction and every tensor has all loops: elementwise ops, transposes, identities."""
        rule = self.rule
        return not rule.reduces and len({sum(map(len, dims)) for dims in (*rule.operands, *rule.results) if dims}) <= 1

    @cached_property
    def batch(self) -> frozenset[int]:
        """The loops that all tensors of at least one dimension have."""
        dims = [
            {loop for loops in tensor_dims for loop in loops[:1]}
            for tensor_dims in (*self.rule.operands, *self.rule.results)
            if tensor_dims
        ]
        return frozenset(set.intersection(*dims)) if dims else frozenset()


@dataclass(slots=True)
class Node:
    """An op, or an identity from an operand to a result (then `op` is the annotation, call or terminator that causes it)."""

    op: ir.Operation
    name: str
    "The name of `op`."
    kind: NodeKind
    operands: tuple[int, ...]
    results: tuple[int, ...]
    operand_index: int = 0
    "For identities: the operand of `op` that carries the value."
    manual: frozenset[int] = frozenset()
    "The axes of the manual computations around it, which do not exist inside."
    scope: tuple[int, ...] = ()
    "The regions around it, outermost first: a value of one scope can be used in that scope and below."

    @property
    def rule(self) -> ShardingRule:
        return self.kind.rule

    @property
    def is_identity(self) -> bool:
        return self.kind.is_identity

    @property
    def only_result(self) -> int:
        """The tensor of its result; -1 if it has none, several, or one that is no ranked tensor."""
        return self.results[0] if len(self.results) == 1 else -1

    def of_kind(self, kind: NodeKind) -> Node:
        """The same node with other properties."""
        return Node(self.op, self.name, kind, self.operands, self.results, self.operand_index, self.manual, self.scope)

    def carried(self, partial: Sequence[Axes]) -> Axes:
        """The axes along which its result stays a partial sum, given those of its operands. None if the program gives an option
        that splits along some of them: an axis either splits a value or sums it."""
        axes = carried_axes(self.op, self.rule, partial)
        fixed_option = self.kind.fixed_option
        return () if fixed_option is not None and not set(axes).isdisjoint(chain.from_iterable(fixed_option)) else axes


class LoopInvariant(NamedTuple):
    """What is known of a tensor that a loop carries unchanged (`loop_invariant.py`)."""

    origin: int
    "The tensor that it is passed on from, perhaps converted or transposed before its loop."
    executions: int
    "Executions of the innermost loops that carry a tensor of this origin."


@dataclass
class Graph:
    """The tensors and nodes of a function in program order. Tensor -1 stands for values that are no ranked tensors."""

    function: ir.Operation
    mesh: Mesh
    pricing: Pricing
    tensors: list[Tensor] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    tensor_of: dict[ir.Value, int] = field(default_factory=dict)
    statements: dict[ir.Block, list[int | ir.Operation]] = field(default_factory=dict)
    "Per block, its statements in order: the node number of an op with a sharding rule, or another op."
    has_naming_nodes: bool = False
    "Whether ops with sharding rules, or ops below them, name axes, for example in options that the program gives."
    carried: dict[int, int] = field(default_factory=dict)
    "Per tensor that a loop carries, the scope of the loop's body."
    invariant: dict[int, LoopInvariant] = field(default_factory=dict)
    "Tensors that loops carry unchanged."
    accumulated: set[int] = field(default_factory=set)
    "Tensors that only pass through linear ops into values that loops accumulate."
    returned_partial: set[int] = field(default_factory=set)
    "Tensors that a body may return partial: it returns all others reduced."
    warnings: list[str] = field(default_factory=list)
    "Warnings for the user about annotations that were not followed exactly."
    users: list[list[int]] = field(default_factory=list)
    "Per tensor, the nodes that mention it."
    uses: list[int] = field(default_factory=list)
    "Per tensor, the number of operands and returned values that use it."
    _tensors: dict[tuple[object, ...], Tensor] = field(default_factory=dict)
    _changed: dict[tuple[object, ...], Tensor] = field(default_factory=dict)
    _kinds: dict[tuple[object, ...], NodeKind] = field(default_factory=dict)

    def copy(self) -> Graph:
        """The same graph, whose tensors can be changed."""
        return replace(self, tensors=list(self.tensors))

    def add(self, tensor: Tensor) -> int:
        """Adds a tensor and returns its number."""
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def unique(self, tensor: Tensor) -> Tensor:
        """The unique object equal to a tensor."""
        return self._tensors.setdefault(tensor.signature, tensor).with_split(tensor.split)

    def describe(self, index: int, **changed: Any) -> None:
        """Changes fields of a tensor."""
        before = self.tensors[index]
        key = (before, *changed.items())
        after = self._changed.get(key)
        if after is None:
            after = self._changed[key] = self.unique(replace(before, _by_split={}, **changed))
        self.tensors[index] = after

    def kind(self, rule: ShardingRule, weight: int, **fields: Any) -> NodeKind:
        """The unique object for a kind of node."""
        return self._unique_kind(NodeKind(rule, weight, **fields))

    def _unique_kind(self, kind: NodeKind) -> NodeKind:
        return self._kinds.setdefault(kind.signature, kind)

    def change_kind(self, node: Node, **changed: Any) -> None:
        """Changes fields of a node's kind."""
        node.kind = self.changed_kind(node.kind, **changed)

    def changed_kind(self, kind: NodeKind, **changed: Any) -> NodeKind:
        """The unique object for a kind that differs in some fields."""
        return self._unique_kind(replace(kind, **changed))

    def may_name_axes(self) -> list[ir.Operation]:
        """The ops below the function that may name an axis of the mesh."""
        if self.has_naming_nodes:
            return inside(self.function)
        return [statement for block in self.statements.values() for statement in block if not isinstance(statement, int)]

    def renumber(self, after: Mesh) -> Callable[[Tensor], Tensor]:
        """Changes to the mesh `after`, in which axes are split into sub-axes; returns the mapping of tensors from before."""
        parts = parts_of(self.mesh, after)
        self.mesh, self.pricing = after, pricing_of(after, self.pricing.objective, self.pricing.work)
        for memo in (self._tensors, self._changed, self._kinds):
            memo.clear()
        renumbered = cache(lambda tensor: self.unique(tensor.renumbered(parts)))
        self.tensors = [renumbered(tensor) for tensor in self.tensors]
        kinds = {kind: self._unique_kind(kind.renumbered(parts)) for kind in {node.kind for node in self.nodes}}
        manual = cache(lambda axes: frozenset(_in_parts(axes, parts)))
        for node in self.nodes:
            node.kind, node.manual = kinds[node.kind], manual(node.manual)
        return renumbered

    def identity_need(self, kind: NodeKind, source: Tensor, target: Tensor) -> Sharding:
        """The operand sharding that an identity needs. In a manual computation, partial sums along its axes are plain values."""
        if not kind.region_axes:
            return target.sharding
        split = across_region(target.split, source.split, kind.region_axes)
        summed = (source if kind.is_entry else target).summed_axes
        terms = tuple(axis for axis in summed if (axis in kind.region_axes) == kind.is_entry)
        return with_partial(sharding_of(self.mesh.name, split), terms)

    def connect(self, returned: Iterable[int] = ()) -> None:
        """Fills `users` and each tensor's number of uses once all nodes exist; the function returns some tensors."""
        used = Counter(chain(returned, chain.from_iterable([node.operands for node in self.nodes])))
        self.uses = [used.get(tensor, 0) for tensor in range(len(self.tensors))]
        users: list[list[int]] = [[] for _ in range(len(self.tensors) + 1)]  # the last ones are those of tensor -1
        for index, node in enumerate(self.nodes):
            for tensor in {*node.operands, *node.results}:
                users[tensor].append(index)
        self.users = users[:-1]
        for tensor, body in self.carried.items():
            for index in users[tensor]:
                node = self.nodes[index]
                if body in node.scope:
                    inside = {number for number, read in enumerate(node.operands) if read == tensor}
                    self.change_kind(node, loop_carried=node.kind.loop_carried | inside)


def _in_parts(axes: Iterable[int], parts: Sequence[Axes]) -> Axes:
    return tuple(chain.from_iterable([parts[axis] for axis in axes]))


def _split_in_parts(split: Split, parts: Sequence[Axes]) -> Split:
    return tuple([_in_parts(axes, parts) for axes in split])


def across_region(split: Split, own: Split, axes: frozenset[int]) -> Split:
    """`split` on the other side of the boundary of a manual computation along `axes`, which stay as in `own`."""
    return tuple(
        (*[axis for axis in present if axis in axes], *[axis for axis in along if axis not in axes])
        for along, present in zip(split, own, strict=True)
    )


def wanted_layout(results: Iterable[Tensor | None]) -> Sharding | None:
    """The user's annotation of an op's result as partial."""
    for tensor in results:
        if tensor is not None and tensor.layout is not None and tensor.layout.partial_axes:
            return tensor.layout
    return None


def wanted_partial(kind: NodeKind, results: Iterable[Tensor | None]) -> Axes:
    """The axes along which the user wants an op's result partial, unless it passes on a partial operand."""
    wanted = wanted_layout(results)
    return wanted.partial_axes if wanted is not None and not kind.unreduced else ()
