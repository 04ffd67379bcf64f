"""`local-program`: makes one device's program a partitioned one by annotating the shardings of its arguments and results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from meshbridge.dialect import build
from meshbridge.dialect.constraints import check_split_axes
from meshbridge.dialect.module_mesh import find_mesh, is_partitioned
from meshbridge.dialect.ops import OPERATION_NAMES
from meshbridge.dialect.signature import Broken
from meshbridge.ir.builder import Builder, tensor
from meshbridge.ir.mlir import SIDES, OpError, find, function_type, ir, main_function, terminator, walk_all
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.sharding import Mesh, Sharding, Split
from meshbridge.legalize.inline_calls import InlineCalls
from meshbridge.lowering.replicas import NUMBERING, by_partition, count_devices
from meshbridge.lowering.scalars import is_scalar, without_index
from meshbridge.ops.boundary import set_boundary
from meshbridge.ops.traits import Trait, has
from meshbridge.resharding.notation import parse_sharding

MESH = "devices"
"""The name of the mesh of a program without one."""

_SIDE_NAMES = dict(zip(SIDES, (("argument", "in-shardings"), ("result", "out-shardings")), strict=True))
"""By side: what its entries are called, and the option that gives their shardings."""


@register
@dataclass(frozen=True)
class LocalProgram(Pass):
    """Annotates one device's program with the global types and shardings of its arguments and results.

    Input:   mesh.mesh @m(shape = 2x4)
             func.func @main(%0: tensor<2x2xf32>) -> tensor<f32> …
    Output:  func.func @main(%0: tensor<2x2xf32> {meshbridge.global = tensor<16x2xf32>, meshbridge.mesh = @m,
                                                  meshbridge.split_axes = #mesh.axisarray<[[0, 1], []]>})
               -> (tensor<1xf32> {meshbridge.global = tensor<8xf32>, …}) …

    Without shardings, the shards of all devices follow each other along dimension 0 of the global tensor; a scalar, also of type
    `index`, becomes a tensor of one element. StableHLO's collectives number devices by partition, as `mesh.mesh` does. A program
    without a mesh runs on a mesh of one axis.
    """

    name: ClassVar[str] = "local-program"

    in_shardings: str = ""
    "The shardings of the arguments, separated by `;`, as in `[[0],[]];[[]]`; empty if every device has its own shard."

    out_shardings: str = ""
    "The shardings of the results, in the same form."

    def run(self, module: ir.Module) -> None:
        """Raises MeshError for a program with annotations of its own, and for shardings that do not fit."""
        annotate_local_program(module, split_texts(self.in_shardings), split_texts(self.out_shardings))


Shardings = Sequence[str | Sequence[Sequence[int]]]
"""One entry per argument or result: the axes of each dimension, or a text that `parse_sharding` reads."""


def sharding_texts(shardings: Shardings | None) -> tuple[str, ...] | None:
    """`shardings` as texts."""
    if shardings is None:
        return None
    return tuple(sharding if isinstance(sharding, str) else str([list(axes) for axes in sharding]) for sharding in shardings)


def split_texts(text: str | None) -> tuple[str, ...] | None:
    """Splits a text of shardings at `;`; None if it has none."""
    return tuple(part.strip() for part in re.split(r"[;\n]", text)) if text else None


def annotate_local_program(module: ir.Module, ins: Sequence[str] | None = None, outs: Sequence[str] | None = None) -> None:
    """Makes one device's program a partitioned one, in place. `ins` and `outs` are texts that `parse_sharding` reads.

    Raises MeshError if the program is partitioned, if nothing gives the number of its devices, or if a sharding does not fit.
    """
    if is_partitioned(module):
        hint = "leave out --local"
        raise OpError(main_function(module), "says already what its arguments and results are shards of", hint)
    with module.context:
        InlineCalls().run(module)
        main = main_function(module)
        mesh = _mesh(module)
        for op in find(module.operation, NUMBERING):
            by_partition(op, mesh)
        side_shardings = [
            _read_shardings(main, side, texts, types, mesh)
            for side, texts, types in zip(SIDES, (ins, outs), _sides(main), strict=True)
        ]
        _retype(main, side_shardings)
        for side, types, shardings in zip(SIDES, _sides(main), side_shardings, strict=True):
            whole = [_global_type(type_, mesh, sharding) for type_, sharding in zip(types, shardings, strict=True)]
            set_boundary(main, side, whole, shardings)


def _sides(main: ir.Operation) -> tuple[list[ir.Type], list[ir.Type]]:
    type_ = function_type(main)
    return list(type_.inputs), list(type_.results)


def _mesh(module: ir.Module) -> Mesh:
    """The mesh that the program declares, or a new one of the devices that its collectives name."""
    mesh = find_mesh(module)
    if mesh is None:
        mesh = Mesh(MESH, (count_devices(module),))
        build.mesh(mesh, at=Builder(module.operation.location, ir.InsertionPoint.at_block_begin(module.body)))
    if any(size < 1 for size in mesh.shape):
        raise OpError(main_function(module), f"runs on @{mesh.name}, whose shape is not known; XLA needs one")
    return mesh


def _read_shardings(
    main: ir.Operation, side: str, texts: Sequence[str] | None, types: list[ir.Type], mesh: Mesh
) -> list[Sharding]:
    """The sharding of each argument or result. Raises OpError for types other than arrays, and for shardings that do not fit."""
    role, option = _SIDE_NAMES[side]
    for number, type_ in enumerate(types):
        if not is_scalar(type_) and not (isinstance(type_, ir.RankedTensorType) and type_.has_static_shape):
            raise OpError(main, f"has {role} {number} of type {type_}, expected a tensor of static shape, or a scalar")
    if texts is None:
        every = tuple(range(mesh.rank))
        return [Sharding(mesh.name, (every, *((),) * (max(_rank(type_), 1) - 1))) for type_ in types]
    if len(texts) != len(types):
        raise OpError(main, f"has {len(types)} {role}s, but {option} has {len(texts)} shardings")
    return [
        _read_sharding(main, f"{role} {number}", text, type_, mesh)
        for number, (text, type_) in enumerate(zip(texts, types, strict=True))
    ]


def _read_sharding(main: ir.Operation, title: str, text: str, type_: ir.Type, mesh: Mesh) -> Sharding:
    """The sharding `text` of an argument or result. Raises OpError if it does not fit its type or the mesh."""
    sharding = parse_sharding(text, mesh)
    if not sharding.is_plain:
        raise OpError(main, f"{title} has the sharding {text}, expected one without halo sizes and offsets")
    if len(sharding.trimmed().split_axes) > _rank(type_):
        raise OpError(main, f"{title} of type {type_} has the sharding {text}, expected at most {_rank(type_)} lists of axes")
    try:
        check_split_axes((*sharding.split_axes, sharding.partial_axes), mesh)
    except Broken as error:
        raise OpError(main, f"{title} has the sharding {text}: {error}") from None
    return sharding.padded(_rank(type_))


def _rank(type_: ir.Type) -> int:
    return len(_sizes(type_))


def _global_type(type_: ir.Type, mesh: Mesh, sharding: Sharding) -> ir.Type:
    """The type of the global tensor with shards of type `type_`."""
    local = ir.RankedTensorType(type_)
    sizes = [size * mesh.group_size(axes) for size, axes in zip(local.shape, sharding.split_axes, strict=True)]
    return tensor(sizes, local.element_type)


def _retype(main: ir.Operation, side_shardings: Sequence[Sequence[Sharding]]) -> None:
    """Gives every argument and result the type of its caller's array: a tensor without `index`. A scalar whose sharding has a
    dimension becomes a tensor of one element."""
    (entry,) = main.regions[0].blocks
    returned = terminator(entry)
    assert returned is not None
    at_begin = Builder(main.location, ir.InsertionPoint.at_block_begin(entry))
    for argument, sharding in zip(entry.arguments, side_shardings[0], strict=True):
        inner, outer = argument.type, _caller_type(argument.type, sharding)
        if inner != outer:
            uses = list(argument.uses)
            argument.set_type(outer)
            value = _to_program(argument, inner, at_begin)
            for use in uses:
                use.owner.operation.operands[use.operand_number] = value
    for number, sharding in enumerate(side_shardings[1]):
        value = returned.operands[number]
        if value.type != (outer := _caller_type(value.type, sharding)):
            returned.operands[number] = _to_caller(value, outer, Builder.before(returned))
    types = [value.type for value in entry.arguments], [value.type for value in returned.operands]
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))


def _caller_type(type_: ir.Type, sharding: Sharding) -> ir.Type:
    """The type of the caller's array for a shard of `type_`."""
    element = type_.element_type if isinstance(type_, ir.RankedTensorType) else type_
    return tensor(_sizes(type_) or [1] * len(sharding.split_axes), without_index(element))


def _to_program(value: ir.Value, inner: ir.Type, builder: Builder) -> ir.Value:
    """Converts an argument from the caller's type to the program's."""
    if not isinstance(inner, ir.RankedTensorType):
        zeros = [builder.value("arith.constant", ir.IndexType.get(), [], {"value": ir.IntegerAttr.get(ir.IndexType.get(), 0)})]
        indices = zeros * ir.RankedTensorType(value.type).rank
        value = builder.value("tensor.extract", ir.RankedTensorType(value.type).element_type, [value, *indices])
    elif list(inner.shape) != list(ir.RankedTensorType(value.type).shape):
        value = builder.reshape(value, list(inner.shape))
    return value if value.type == inner else builder.value("arith.index_cast", inner, [value])


def _to_caller(value: ir.Value, outer: ir.Type, builder: Builder) -> ir.Value:
    """Converts a result from the program's type to the caller's."""
    result = ir.RankedTensorType(outer)
    if not isinstance(value.type, ir.RankedTensorType):
        if value.type != result.element_type:
            value = builder.value("arith.index_cast", result.element_type, [value])
        return builder.value("tensor.from_elements", outer, [value])
    if ir.RankedTensorType(value.type).element_type != result.element_type:
        value = builder.value("arith.index_cast", tensor(list(value.type.shape), result.element_type), [value])
    return value if value.type == outer else builder.reshape(value, list(result.shape))


def speaks_of_devices(module: ir.Module) -> bool:
    """True if a program without annotations is one device's: it has collectives, or reads the number of its device."""
    names = (op.name for op in walk_all(module))
    speaking = (name in NUMBERING or (name in OPERATION_NAMES and not has(name, Trait.ANNOTATION)) for name in names)
    return not is_partitioned(module) and any(speaking)


def shardings_between(source: ir.Module, local: ir.Module) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The shardings by which the arguments and results of `local` are shards of those of `source`, a program on global tensors.

    Raises OpError if there are none, or several.
    """
    with local.context:
        mesh = _mesh(local)
    mains = main_function(source), main_function(local)
    sides = zip(SIDES, *map(_sides, mains), strict=True)
    ins, outs = (_between(mains[1], side, whole, shards, mesh) for side, whole, shards in sides)
    return ins, outs


def _between(main: ir.Operation, side: str, whole: list[ir.Type], shards: list[ir.Type], mesh: Mesh) -> tuple[str, ...]:
    role, option = _SIDE_NAMES[side]
    if len(whole) != len(shards):
        raise OpError(main, f"has {len(shards)} {role}s, but the source has {len(whole)}")
    texts = []
    for number, pair in enumerate(zip(whole, shards, strict=True)):
        splits = list(_splits(_sizes(pair[0]), _sizes(pair[1]), mesh))
        if len(splits) != 1:
            mismatch = f"has {role} {number} of type {pair[1]} where the source has {pair[0]}, which is sharded in "
            hint = f"say how by --{option}" if splits else "expected shards of it on the mesh"
            raise OpError(main, f"{mismatch}{len(splits) or 'no'} ways along the axes of @{mesh.name}", hint)
        texts.append(str([list(axes) for axes in splits[0]]))
    return tuple(texts)


def _sizes(type_: ir.Type) -> list[int]:
    return list(type_.shape) if isinstance(type_, ir.RankedTensorType) else []


def _splits(whole: list[int], shard: list[int], mesh: Mesh) -> Iterable[Split]:
    """The splits of `whole` that give shards of shape `shard`, lower axes outside; axes of size 1 split nothing."""
    if len(whole) != len(shard):
        return
    free = [axis for axis in range(mesh.rank) if mesh.shape[axis] > 1]
    for dims in product(range(-1, len(whole)), repeat=len(free)):
        split = tuple(tuple(axis for axis, dim in zip(free, dims, strict=True) if dim == wanted) for wanted in range(len(whole)))
        if all(size * mesh.group_size(axes) == total for size, axes, total in zip(shard, split, whole, strict=True)):
            yield split
