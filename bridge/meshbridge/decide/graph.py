"""One function as tensors and nodes: plain Python values beside the IR (`build_graph.py` makes them in one walk).

A `Tensor` is what a sharding is decided for: a value with the `mesh.shard` on its definition, or all values of a loop that must
be sharded alike (a carried value, its region arguments, its result). A `Node` relates tensors: an op with its sharding rule, or
an identity (a use annotated by the user, a loop's initial value, a yielded value).

Tensors of which the same is known are one object, and so are the kinds of nodes: what has been computed once for a kind and its
tensors is found again by looking these up, which compares objects. The layers of a model are alike, so nearly all of them is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import chain
from typing import Any, final

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
    """What is known of one tensor's sharding. `open` says per dimension whether propagation may add axes."""

    mesh: str
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
    gathered: Concurrency = ALONE
    "What goes on while it is gathered, see `beside.py`."
    reduced: Concurrency = ALONE
    "What goes on while it is reduced."
    _otherwise: dict[Split, Tensor] = field(default_factory=dict, repr=False)
    "The tensors of which the same is known but for the split, by that."

    @cached_property
    def type(self) -> TensorType:
        return self.shape, self.dtype

    @cached_property
    def axes(self) -> int:
        """The axes that its sharding names, a bit for each."""
        return sum(1 << axis for axis in {*self.sharding.used_axes, *self.sharding.partial_axes})

    @cached_property
    def summed_axes(self) -> Axes:
        """The axes along which it is declared a partial sum."""
        return self.layout.summed_axes if self.layout is not None else ()

    @cached_property
    def sharding(self) -> Sharding:
        """As it is decided: its split, and what its annotation says beside that."""
        if self.layout is None:
            return sharding_of(self.mesh, self.split)
        return with_split(self.layout, self.split) if self.layout.is_plain else self.layout

    @cached_property
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

    def with_split(self, split: Split) -> Tensor:
        """The same tensor split so."""
        found = self._otherwise.get(split)
        if found is None:
            found = self._otherwise[split] = object.__new__(Tensor)
            found.__dict__.update({name: said for name, said in self.__dict__.items() if name not in _OF_SPLIT}, split=split)
        return found

    def renumbered(self, parts: Sequence[Axes]) -> Tensor:
        """The same tensor where each axis is in `parts`."""
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
            found=frozenset(_in_parts(self.found, parts)),
            _otherwise={},
        )

    @property
    def signature(self) -> tuple[object, ...]:
        """All that is known of it but its split."""
        annotated = (self.priorities, self.decided, self.layout, self.user, self.written, self.region_axes)
        others = (self.tied, self.boundary, self.found, self.gathered, self.reduced)
        return (self.mesh, self.shape, self.dtype, self.open, self.banned, *annotated, *others)


_OF_SPLIT = ("axes", "sharding")
"""What is computed of a tensor from its split: all else holds for tensors that are like it but for the split."""


@dataclass(frozen=True, eq=False)
class Kind:
    """All that decides about a node, apart from its tensors."""

    rule: ShardingRule
    weight: int
    "How often it runs: trip counts of the loops around it."
    is_identity: bool = False
    fixed_option: Option | None = None
    reduce_weight: int = 0
    "How often a partial value that it leaves is reduced, if less often: a loop that only adds up reduces once, in the end."
    region_axes: frozenset[int] = frozenset()
    "For identities into and out of a manual computation: its axes. Only the side outside is split along them."
    is_entry: bool = False
    "Whether such an identity leads into the computation."
    forward: bool = True
    "Whether an identity hands splits from its operand to its result, and `backward` from its result to its operand."
    backward: bool = True
    kept: tuple[Axes, ...] = ()
    "Per operand, the axes along which it is taken and passed on as a declared partial sum (`unreduced.py`); () for no operand."
    inside: frozenset[int] = frozenset()
    "Operands that a loop around it carries: what it reads is this trip's value, not the one that the loop ends with."
    cuts: bool = False
    "Whether axes are cut to fit its loops, see `cut_axes.py`."
    sharing: int = 1
    "Among how many devices the annotations share what it computes, as far as they have been propagated."

    @property
    def signature(self) -> tuple[object, ...]:
        """All of that, to be compared."""
        handed_on = (self.is_identity, self.region_axes, self.is_entry, self.forward, self.backward)
        running = (self.weight, self.reduce_weight, self.sharing)
        return (self.rule, *running, self.fixed_option, self.kept, self.inside, self.cuts, *handed_on)

    def renumbered(self, parts: Sequence[Axes]) -> Kind:
        """The same kind where each axis is in `parts`."""
        option = _split_in_parts(self.fixed_option, parts) if self.fixed_option is not None else None
        kept, region_axes = _split_in_parts(self.kept, parts), frozenset(_in_parts(self.region_axes, parts))
        return replace(self, fixed_option=option, kept=kept, region_axes=region_axes)

    @cached_property
    def reduce_share(self) -> float:
        """The part of its runs after which a partial value is reduced."""
        return self.reduce_weight / self.weight if self.reduce_weight else 1.0

    @cached_property
    def passes_through(self) -> bool:
        """Whether no loop is a reduction and every tensor has them all: elementwise ops, transposes, identities."""
        rule = self.rule
        return not rule.reduces and len({sum(map(len, dims)) for dims in (*rule.operands, *rule.results) if dims}) <= 1

    @cached_property
    def batch(self) -> frozenset[int]:
        """The loops that every tensor has along which there are any."""
        dims = [{loop for loops in each for loop in loops[:1]} for each in (*self.rule.operands, *self.rule.results) if each]
        return frozenset(set.intersection(*dims)) if dims else frozenset()


@dataclass(slots=True)
class Node:
    """An op, or an identity of an operand and a result (then `op` is the annotation, call or terminator behind it)."""

    op: ir.Operation
    name: str
    "That of `op`."
    kind: Kind
    operands: tuple[int, ...]
    results: tuple[int, ...]
    operand_index: int = 0
    "For identities: the operand of `op` that carries the value."
    manual: frozenset[int] = frozenset()
    "The axes of the manual computations around it, which do not exist there."
    scope: tuple[int, ...] = ()
    "The regions around it, outermost first: what is computed in one scope can be used in it and below."

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

    def carried(self, partial: Sequence[Axes]) -> Axes:
        """The axes along which its result stays a partial sum because its operands are, given theirs. None if the program gives
        an option that splits along some of them: an axis either splits a value or sums it."""
        axes = carried_axes(self.op, self.rule, partial)
        given = self.kind.fixed_option
        return () if given is not None and not set(axes).isdisjoint(chain.from_iterable(given)) else axes


@dataclass
class Graph:
    """A function's tensors and nodes in program order. Tensor -1 stands for values that are no ranked tensors."""

    function: ir.Operation
    mesh: Mesh
    pricing: Pricing
    tensors: list[Tensor] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    tensor_of: dict[ir.Value, int] = field(default_factory=dict)
    statements: dict[ir.Block, list[int | ir.Operation]] = field(default_factory=dict)
    "Per block, what stands there in order: the node of an op that is split by its loops, or another op."
    has_naming_nodes: bool = False
    "Whether ops that are split by their loops, or what is below them, name axes: in options that the program gives, for one."
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
    uses: list[int] = field(default_factory=list)
    "Per tensor, how many operands and returned values it is."
    _tensors: dict[tuple[object, ...], Tensor] = field(default_factory=dict)
    _changed: dict[tuple[object, ...], Tensor] = field(default_factory=dict)
    _kinds: dict[tuple[object, ...], Kind] = field(default_factory=dict)

    def add(self, tensor: Tensor) -> int:
        """The number of a new tensor of which that is known."""
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def known(self, tensor: Tensor) -> Tensor:
        """The one object for what is known of a tensor."""
        return self._tensors.setdefault(tensor.signature, tensor).with_split(tensor.split)

    def describe(self, index: int, **changed: Any) -> None:
        """Changes what is known of a tensor."""
        before = self.tensors[index]
        key = (before, *changed.items())
        after = self._changed.get(key)
        if after is None:
            after = self._changed[key] = self.known(replace(before, _otherwise={}, **changed))
        self.tensors[index] = after

    def kind(self, rule: ShardingRule, weight: int, **more: Any) -> Kind:
        """The one object for a kind of node."""
        found = Kind(rule, weight, **more)
        return self._kinds.setdefault(found.signature, found)

    def change_kind(self, node: Node, **changed: Any) -> None:
        """Gives a node another kind."""
        node.kind = self.changed_kind(node.kind, **changed)

    def changed_kind(self, kind: Kind, **changed: Any) -> Kind:
        """The one object for a kind that differs so."""
        found = replace(kind, **changed)
        return self._kinds.setdefault(found.signature, found)

    def may_name_axes(self) -> list[ir.Operation]:
        """The ops below the function that may name an axis of the mesh."""
        if self.has_naming_nodes:
            return inside(self.function)
        return [said for block in self.statements.values() for said in block if not isinstance(said, int)]

    def renumber(self, after: Mesh) -> Callable[[Tensor], Tensor]:
        """Goes over to the mesh `after`, in which axes are cut; returns what is known then of a tensor, by what was known."""
        parts = parts_of(self.mesh, after)
        self.mesh, self.pricing = after, pricing_of(after, self.pricing.objective, self.pricing.work)
        for memo in (self._tensors, self._changed, self._kinds):
            memo.clear()
        renumbered = cache(lambda tensor: self.known(tensor.renumbered(parts)))
        self.tensors = [renumbered(tensor) for tensor in self.tensors]
        kinds = {kind: kind.renumbered(parts) for kind in {node.kind for node in self.nodes}}
        kinds = {kind: self._kinds.setdefault(found.signature, found) for kind, found in kinds.items()}
        manual = cache(lambda axes: frozenset(_in_parts(axes, parts)))
        for node in self.nodes:
            node.kind, node.manual = kinds[node.kind], manual(node.manual)
        return renumbered

    def identity_need(self, kind: Kind, source: Tensor, target: Tensor) -> Sharding:
        """What an identity needs of its operand to be its result. Within a manual computation, the terms of a sum along its axes
        are what the devices hold."""
        if not kind.region_axes:
            return target.sharding
        split = across_region(target.split, source.split, kind.region_axes)
        summed = (source if kind.is_entry else target).summed_axes
        terms = tuple(axis for axis in summed if (axis in kind.region_axes) == kind.is_entry)
        return with_partial(sharding_of(self.mesh.name, split), terms)

    def connect(self, returned: Iterable[int] = ()) -> None:
        """Fills `users` and each tensor's use count once all nodes are known; the function returns some tensors."""
        used = Counter(chain(returned, chain.from_iterable([node.operands for node in self.nodes])))
        self.uses = [used.get(tensor, 0) for tensor in range(len(self.tensors))]
        users: list[list[int]] = [[] for _ in range(len(self.tensors) + 1)]  # the last ones are tensor -1's
        for index, node in enumerate(self.nodes):
            for tensor in {*node.operands, *node.results}:
                users[tensor].append(index)
        self.users = users[:-1]
        for tensor, body in self.carried.items():
            for index in users[tensor]:
                node = self.nodes[index]
                if body in node.scope:
                    inside = {number for number, read in enumerate(node.operands) if read == tensor}
                    self.change_kind(node, inside=node.kind.inside | inside)


def _in_parts(axes: Iterable[int], parts: Sequence[Axes]) -> Axes:
    return tuple(chain.from_iterable([parts[axis] for axis in axes]))


def _split_in_parts(split: Split, parts: Sequence[Axes]) -> Split:
    return tuple([_in_parts(axes, parts) for axes in split])


def across_region(split: Split, own: Split, axes: frozenset[int]) -> Split:
    """`split` on the other side of where a manual computation along `axes` begins or ends; those stay as in `own`."""
    return tuple(
        (*[axis for axis in present if axis in axes], *[axis for axis in along if axis not in axes])
        for along, present in zip(split, own, strict=True)
    )


def wanted_layout(results: Iterable[Tensor | None]) -> Sharding | None:
    """The user's annotation of a result of an op as partial."""
    for tensor in results:
        if tensor is not None and tensor.layout is not None and tensor.layout.partial_axes:
            return tensor.layout
    return None


def wanted_partial(kind: Kind, results: Iterable[Tensor | None]) -> Axes:
    """The axes along which the user wants a result of an op partial, other than by passing on an operand that is so."""
    wanted = wanted_layout(results)
    return wanted.partial_axes if wanted is not None and not kind.kept else ()
