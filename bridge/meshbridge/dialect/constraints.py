"""The table of rules of each mesh operation. The wording is upstream's; rules that it lacks are marked `closed hole`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from meshbridge.dialect import attributes
from meshbridge.dialect.signature import Broken, Shape, Signature, check_dynamic_count, element_of, shape_of
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import DYNAMIC, MOST_AXES, Mesh, Split

Rule = Callable[[Signature], None]


def _counts(operands: int, results: int) -> Callable[[Signature], None]:
    def rule(signature: Signature) -> None:
        if len(signature.operands) < operands:
            raise Broken(f"expected {operands} or more operands, but found {len(signature.operands)}")
        if len(signature.results) != results:
            raise Broken(f"requires {results} results, but found {len(signature.results)}")

    return rule


def _tensors(operand_non_zero: bool, result_non_zero: bool) -> Callable[[Signature], None]:
    def rule(signature: Signature) -> None:
        _counts(1, 1)(signature)
        _check_tensor("operand #0", signature.operands[0], operand_non_zero)
        for number, type_ in enumerate(signature.operands[1:], 1):
            if not isinstance(type_, ir.IndexType):
                raise Broken(f"operand #{number} must be variadic of index, but got '{type_}'")
        _check_tensor("result #0", signature.results[0], result_non_zero)

    return rule


def _check_tensor(title: str, type_: ir.Type, non_zero: bool) -> None:
    ranked = isinstance(type_, ir.RankedTensorType)
    if not ranked or (non_zero and not shape_of(type_)):
        expected = "non-0-ranked.tensor of any type values" if non_zero else "ranked tensor of any type values"
        raise Broken(f"{title} must be {expected}, but got '{type_}'")


def same_element_type(signature: Signature) -> None:
    if element_of(signature.operands[0]) != element_of(signature.results[0]):
        raise Broken("requires the same element type for all operands and results")


def same_rank(signature: Signature) -> None:
    if len(signature.operand_shape()) != len(signature.result_shape()):
        raise Broken("result type has different rank than operands")


def same_shape(signature: Signature) -> None:
    if not compatible(signature.operand_shape(), signature.result_shape()):
        raise Broken("requires the same shape for all operands and results")


def compatible(lhs: Shape, rhs: Shape) -> bool:
    """True if two shapes can be equal at run time."""
    return len(lhs) == len(rhs) and all(a == b or DYNAMIC in (a, b) for a, b in zip(lhs, rhs, strict=True))


def _all_match(noun: str, read: Callable[[ir.Type], object]) -> Callable[[Signature], None]:
    def rule(signature: Signature) -> None:
        if read(signature.operands[0]) != read(signature.results[0]):
            raise Broken(f"failed to verify that all of {{input, result}} have same {noun}")

    return rule


shapes_match = _all_match("shape", shape_of)
elements_match = _all_match("element type", element_of)
ranks_match = _all_match("rank", lambda type_: len(shape_of(type_)))


def reduction_is_sound(signature: Signature) -> None:
    """Closed holes: bitwise reductions of non-integers, orders of complex numbers, floats accumulated in integers."""
    kind = attributes.kind(signature.attributes["reduction"])
    source, result = element_of(signature.operands[0]), element_of(signature.results[0])
    check_reduction(kind, result)
    if is_integer(result) and not is_integer(source):
        raise Broken(f"reduction of {source} cannot accumulate in {result}.")


def check_reduction(kind: str, element: ir.Type) -> None:
    """Raises Broken if `kind` has no meaning for `element`."""
    if kind.startswith("bitwise") and not is_integer(element):
        raise Broken(f"reduction {kind} is not defined for element type {element}.")
    if kind in ("max", "min") and isinstance(element, ir.ComplexType):
        raise Broken(f"reduction {kind} is not defined for element type {element}.")


def is_integer(type_: ir.Type) -> bool:
    return isinstance(type_, ir.IntegerType | ir.IndexType)


def mesh_is_positive(signature: Signature) -> None:
    """`mesh.mesh`. Closed holes: a dimension of 0, and more than MOST_AXES axes."""
    shape = signature.integers("shape")
    if len(shape) > MOST_AXES:
        raise Broken(f"rank of mesh is expected to be at most {MOST_AXES}, found {len(shape)}")
    if not shape:
        raise Broken("rank of mesh is expected to be a positive integer")
    if any(size < 0 and size != DYNAMIC for size in shape):
        raise Broken("dimension size of a mesh is expected to be non-negative or dynamic")
    if 0 in shape:
        raise Broken("dimension size of a mesh is expected to be positive or dynamic")


def mesh_exists(signature: Signature) -> None:
    assert signature.mesh is not None  # the property raises


def axes_are_of_the_mesh(name: str) -> Callable[[Signature], None]:
    """The axes in attribute `name` are distinct and exist."""

    def rule(signature: Signature) -> None:
        mesh, axes = signature.mesh, signature.integers(name)
        if len(set(axes)) != len(axes):
            raise Broken("Mesh axes contains duplicate elements.")
        _check_axes_exist(axes, mesh)

    return rule


def check_split_axes(split: Split, mesh: Mesh) -> None:
    """Raises Broken for axes that do not exist, are negative or duplicate."""
    check_axes_once(split)
    _check_axes_exist(itertools.chain.from_iterable(split), mesh)


def check_axes_once(split: Split) -> None:
    """Raises Broken for negative and duplicate axes, which need no mesh."""
    axes_so_far: set[int] = set()
    for axis in itertools.chain.from_iterable(split):
        if axis < 0:
            raise Broken("mesh axis is expected to be non-negative")
        if axis in axes_so_far:
            raise Broken("mesh axis duplicated")
        axes_so_far.add(axis)


def _check_axes_exist(axes: Iterable[int], mesh: Mesh) -> None:
    for axis in axes:
        if not 0 <= axis < mesh.rank:
            raise Broken(
                f'0-based mesh axis index {axis} is out of bounds. The referenced mesh "{mesh.name}" is of rank {mesh.rank}.'
            )


def one_index_per_axis(signature: Signature) -> None:
    """`mesh_shape` and `process_multi_index` return one index per axis; no axes mean all."""
    expected = len(signature.integers("axes")) or signature.mesh.rank
    if len(signature.results) != expected:
        raise Broken(f"Unexpected number of results {len(signature.results)}. Expected {expected}.")


def one_index_per_neighbour(signature: Signature) -> None:
    """Closed hole: a device of `neighbors_linear_indices` has one coordinate per mesh axis."""
    _counts(0, 2)(signature)
    if len(signature.operands) != signature.mesh.rank:
        raise Broken(f"Unexpected device multi-index size {len(signature.operands)}. Expected {signature.mesh.rank}.")


def indices_only(signature: Signature) -> None:
    for title, types in (("operand", signature.operands), ("result", signature.results)):
        for number, type_ in enumerate(types):
            if not isinstance(type_, ir.IndexType):
                raise Broken(f"{title} #{number} must be variadic of index, but got '{type_}'")


def in_group_device(name: str) -> Callable[[Signature], None]:
    """A root, source or destination has one coordinate per axis of the group, each in range (negative ones: closed hole)."""

    def rule(signature: Signature) -> None:
        check_dynamic_count(signature, name, len(signature.operands) - 1)
        if name not in signature.attributes:
            return
        device, axes = signature.integers(name), signature.integers("mesh_axes")
        if len(device) != len(axes):
            raise Broken(f'In-group device "{name}" has unexpected multi-index size {len(device)}. Expected {len(axes)}.')
        for number, (coordinate, axis) in enumerate(zip(device, axes, strict=True)):
            size = signature.mesh.shape[axis]
            if DYNAMIC not in (coordinate, size) and not 0 <= coordinate < size:
                raise Broken(
                    f'Out of bounds coordinate {number} for in-group device "{name}". '
                    f"Got {coordinate}, but expected value in the range [0, {size - 1}]."
                )

    return rule


def axis_in_range(name: str) -> Callable[[Signature], None]:
    """The tensor axis in attribute `name` exists (closed hole for all but gather)."""
    title = name.removesuffix("_axis").capitalize()

    def rule(signature: Signature) -> None:
        axis, rank = signature.index(name), len(signature.operand_shape())
        if not 0 <= axis < rank:
            raise Broken(f"{title} axis {axis} is out of bounds [0, {rank}).")

    return rule


def _check_dimension(axis: int, expected: int, actual: int) -> None:
    if actual not in (DYNAMIC, expected):
        wanted = "dynamic" if expected == DYNAMIC else expected
        raise Broken(f"Dimension size mismatch for result axis {axis}. Expected {wanted}, but got {actual}.")


def _check_other_dimensions(signature: Signature, *changed: int) -> None:
    for axis, (before, after) in enumerate(zip(signature.operand_shape(), signature.result_shape(), strict=True)):
        if axis not in changed:
            _check_dimension(axis, before, after)


def _times(size: int, count: int) -> int:
    return DYNAMIC if DYNAMIC in (size, count) else size * count


def _over(size: int, count: int) -> int:
    return DYNAMIC if DYNAMIC in (size, count) or size % count else size // count


def _check_divisible(signature: Signature, axis: int) -> None:
    size, count = signature.operand_shape()[axis], signature.group_size()
    if DYNAMIC not in (size, count) and size % count:
        raise Broken(
            f"Operand dimension size {size} is not divisible by collective device group size {count} for tensor axis {axis}."
        )


def grows_along_gather_axis(signature: Signature) -> None:
    gathered = signature.index("gather_axis")
    for axis, (before, after) in enumerate(zip(signature.operand_shape(), signature.result_shape(), strict=True)):
        _check_dimension(axis, _times(before, signature.group_size()) if axis == gathered else before, after)


def shrinks_along(name: str) -> Callable[[Signature], None]:
    """The result is one piece of the operand along the axis in attribute `name`."""

    def rule(signature: Signature) -> None:
        axis = signature.index(name)
        _check_other_dimensions(signature, axis)
        _check_divisible(signature, axis)
        _check_dimension(axis, _over(signature.operand_shape()[axis], signature.group_size()), signature.result_shape()[axis])

    return rule


def exchanges_dimensions(signature: Signature) -> None:
    """`all_to_all`. Closed hole: pieces of unequal size along one axis."""
    split, concat = signature.index("split_axis"), signature.index("concat_axis")
    if split == concat:
        _check_other_dimensions(signature)
        return _check_divisible(signature, split)
    _check_other_dimensions(signature, split, concat)
    before, after, count = signature.operand_shape(), signature.result_shape(), signature.group_size()
    _check_dimension(concat, _times(before[concat], count), after[concat])
    return _check_dimension(split, _over(before[split], count), after[split])


def shift_axis_is_grouping(signature: Signature) -> None:
    axis = signature.index("shift_axis")
    if axis not in signature.integers("mesh_axes"):
        raise Broken(f"Invalid shift axis {axis}. It must be one of the grouping mesh axes.")


def target_axes_permute(signature: Signature) -> None:
    """Both lists of a `permute` have the same axes."""
    if sorted(signature.integers("target_axes")) != sorted(signature.integers("mesh_axes")):
        raise Broken("target axes are expected to be a permutation of mesh axes.")


_GROUPED: tuple[Rule, ...] = (axes_are_of_the_mesh("mesh_axes"),)


def _resizing(element: tuple[Rule, ...], rank: Rule, *rules: Rule, result_non_zero: bool = True) -> tuple[Rule, ...]:
    return (_tensors(True, result_non_zero), *element, rank, *_GROUPED, *rules)


def _reshaping(*axes: str) -> tuple[Rule, ...]:
    return tuple(axis_in_range(name) for name in axes)


RULES: dict[str, tuple[Rule, ...]] = {
    "mesh": (_counts(0, 0), mesh_is_positive),
    "mesh_shape": (indices_only, axes_are_of_the_mesh("axes"), one_index_per_axis),
    "process_multi_index": (indices_only, axes_are_of_the_mesh("axes"), one_index_per_axis),
    "process_linear_index": (_counts(0, 1), indices_only, mesh_exists),
    "neighbors_linear_indices": (indices_only, axes_are_of_the_mesh("split_axes"), one_index_per_neighbour),
    "all_gather": _resizing((same_element_type,), same_rank, *_reshaping("gather_axis"), grows_along_gather_axis),
    "all_slice": _resizing((same_element_type,), same_rank, *_reshaping("slice_axis"), shrinks_along("slice_axis")),
    "all_to_all": _resizing((same_element_type,), same_rank, *_reshaping("split_axis", "concat_axis"), exchanges_dimensions),
    "reduce_scatter": _resizing(
        (), same_rank, *_reshaping("scatter_axis"), shrinks_along("scatter_axis"), reduction_is_sound, result_non_zero=False
    ),
    "gather": _resizing(
        (elements_match,), ranks_match, *_reshaping("gather_axis"), in_group_device("root"), grows_along_gather_axis
    ),
    "scatter": _resizing(
        (elements_match,),
        ranks_match,
        *_reshaping("scatter_axis"),
        in_group_device("root"),
        shrinks_along("scatter_axis"),
        result_non_zero=False,
    ),
    "all_reduce": (_tensors(False, False), same_shape, *_GROUPED, reduction_is_sound),
    "reduce": (_tensors(False, False), shapes_match, *_GROUPED, in_group_device("root"), reduction_is_sound),
    "broadcast": (_tensors(False, False), shapes_match, elements_match, *_GROUPED, in_group_device("root")),
    "send": (_tensors(True, False), shapes_match, elements_match, *_GROUPED, in_group_device("destination")),
    "recv": (_tensors(True, False), shapes_match, elements_match, *_GROUPED, in_group_device("source")),
    "shift": (_tensors(True, False), same_element_type, same_shape, *_GROUPED, shift_axis_is_grouping),
    "permute": (_tensors(False, False), same_element_type, same_shape, *_GROUPED, target_axes_permute),
}
"""By mnemonic, the rules in the order in which upstream checks them. Shardings, shards and halos: `shard_constraints`."""
