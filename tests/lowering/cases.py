"""Hypothesis draws of one operation on one mesh, with what the simulator says comes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from hypothesis import strategies as st

from meshbridge.ir.sharding import DYNAMIC, Mesh
from tests import simulator as sim
from tests.lowering.harness import ELEMENTS, Case, tensor_text
from tests.simulator import Index, Values

Draw = Callable[[st.SearchStrategy], object]

ARITHMETIC = ["f32", "bf16", "f16", "i8", "i32", "ui8", "complex<f32>"]
KINDS = {
    "f32": ["sum", "max", "min", "product", "average"],
    "i32": ["sum", "max", "min", "product", "average", "bitwise_and", "bitwise_or", "bitwise_xor"],
    "i1": ["sum", "max", "min", "product", "bitwise_and", "bitwise_or", "bitwise_xor"],
    "complex<f32>": ["sum", "product", "average"],
}
KINDS |= {"bf16": KINDS["f32"], "f16": KINDS["f32"], "i8": KINDS["i32"], "ui8": KINDS["i32"]}


@dataclass(frozen=True)
class Expectation:
    """A case and the results that the simulator gives; a result may lack devices on which it is undefined."""

    case: Case
    results: tuple[Values, ...]

    def check(self, found: list[Values]) -> None:
        """Equal for integers, within rounding for floats."""
        for expected, values in zip(self.results, found, strict=True):
            for device, array in expected.items():
                _same(values[device], array, f"{self.case.lines} on {self.case.mesh}, device {device}")


def _same(found: np.ndarray, expected: np.ndarray, where: str) -> None:
    assert found.dtype == expected.dtype, where
    if found.dtype.kind in "biu":
        np.testing.assert_array_equal(found, expected, where)
        return
    wide = np.complex128 if found.dtype.kind == "c" else np.float64
    precision = {2: 2e-2, 4: 1e-5, 8: 1e-5}[found.dtype.itemsize]
    np.testing.assert_allclose(found.astype(wide), expected.astype(wide), rtol=precision, atol=precision, err_msg=where)


@st.composite
def meshes(draw: Draw, size: int, order: tuple[int, ...] = ()) -> Mesh:
    """A mesh of `size` devices with 1 to 4 axes of 1 to 4 (one axis may have to be longer)."""
    return Mesh("unnamed", draw(st.sampled_from(_factorings(size, 4))), (), order)


def _factorings(size: int, rank: int) -> list[tuple[int, ...]]:
    if rank == 0:
        return [()] if size == 1 else []
    found = [() for _ in range(1) if size == 1]
    for factor in range(1, size + 1):
        if size % factor == 0:
            found += [(factor, *rest) for rest in _factorings(size // factor, rank - 1)]
    return [shape for shape in dict.fromkeys(found) if shape]


@st.composite
def some_axes(draw: Draw, mesh: Mesh) -> tuple[int, ...]:
    """Axes in any order; the empty list is one of the draws."""
    shuffled = draw(st.permutations(range(mesh.rank)))
    return tuple(shuffled[: draw(st.integers(0, mesh.rank))])


def group_size(mesh: Mesh, axes: Sequence[int]) -> int:
    return len(sim.groups(mesh.shape, axes)[0])


def values(draw: Draw, mesh: Mesh, shape: Sequence[int], element: str, low: int = -5) -> Values:
    """Small whole numbers on every device, from a drawn seed."""
    generator = np.random.default_rng(draw(st.integers(0, 2**16)))
    dtype = ELEMENTS[element]
    low = 0 if element == "ui8" else low

    def array() -> np.ndarray:
        numbers = generator.integers(low, 6, size=shape)
        if dtype.kind == "c":
            return (numbers + 1j * generator.integers(low, 6, size=shape)).astype(dtype)
        if dtype.kind == "b":
            return numbers > 0
        return (numbers + (0.5 if dtype.kind not in "iu" else 0)).astype(dtype)

    return {device: array() for device in sim.devices(mesh.shape)}


def local_shape(draw: Draw) -> list[int]:
    return draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))


def operation(name: str, operands: Sequence[str], attrs: str, types: Sequence[str], result: str) -> str:
    """One operation in generic syntax, its result called %_r."""
    return f'%_r = "mesh.{name}"({", ".join(operands)}) {{mesh = @mesh, {attrs}}} : ({", ".join(types)}) -> {result}'


def axes_text(axes: Sequence[int], name: str = "mesh_axes") -> str:
    return f"{name} = array<i16{': ' if axes else ''}{', '.join(map(str, axes))}>"


def collective(
    mesh: Mesh, name: str, axes: Sequence[int], attrs: str, argument: Values, shape: Sequence[int], element: str, expected: Values
) -> Expectation:
    """A case of one operation on one argument."""
    operand = _text_of(argument)
    result = tensor_text(shape, element)
    line = operation(name, ["$0"], f"{axes_text(axes)}{', ' if attrs else ''}{attrs}", [operand], result)
    return Expectation(Case(mesh, (argument,), (line,), (("%_r", result),)), (expected,))


def _text_of(argument: Values) -> str:
    array = next(iter(argument.values()))
    return tensor_text(array.shape, next(text for text, dtype in ELEMENTS.items() if dtype == array.dtype))


@st.composite
def all_gathers(draw: Draw, mesh: Mesh) -> Expectation:
    axes, element, shape = draw(some_axes(mesh)), draw(st.sampled_from(list(KINDS))), local_shape(draw)
    dim = draw(st.integers(0, len(shape) - 1))
    argument = values(draw, mesh, shape, element)
    whole = [*shape[:dim], shape[dim] * group_size(mesh, axes), *shape[dim + 1 :]]
    expected = sim.all_gather(mesh.shape, argument, axes, dim)
    return collective(mesh, "all_gather", axes, f"gather_axis = {dim} : index", argument, whole, element, expected)


@st.composite
def all_slices(draw: Draw, mesh: Mesh) -> Expectation:
    axes, element, shape = draw(some_axes(mesh)), draw(st.sampled_from(list(KINDS))), local_shape(draw)
    dim = draw(st.integers(0, len(shape) - 1))
    whole = [*shape[:dim], shape[dim] * group_size(mesh, axes), *shape[dim + 1 :]]
    argument = values(draw, mesh, whole, element)
    expected = sim.all_slice(mesh.shape, argument, axes, dim)
    return collective(mesh, "all_slice", axes, f"slice_axis = {dim} : index", argument, shape, element, expected)


@st.composite
def all_to_alls(draw: Draw, mesh: Mesh) -> Expectation:
    axes, element, shape = draw(some_axes(mesh)), draw(st.sampled_from(list(KINDS))), local_shape(draw)
    count = group_size(mesh, axes)
    split, concat = draw(st.integers(0, len(shape) - 1)), draw(st.integers(0, len(shape) - 1))
    before, after = list(shape), list(shape)
    before[split] *= count
    after[concat] *= count
    argument = values(draw, mesh, before, element)
    expected = sim.all_to_all(mesh.shape, argument, axes, split, concat)
    attrs = f"split_axis = {split} : index, concat_axis = {concat} : index"
    return collective(mesh, "all_to_all", axes, attrs, argument, after, element, expected)


def _reduction(draw: Draw, mesh: Mesh, shape: Sequence[int]) -> tuple[Values, str, str]:
    """An argument, a reduction kind, and the element type of the result, which may be another one."""
    element = draw(st.sampled_from(list(KINDS)))
    others = ["f32", "f64", "bf16", "i32", "i8", "i1"] if element != "complex<f32>" else []
    result = draw(st.sampled_from([element, *others]))
    kinds = KINDS["f32" if result == "f64" else result]
    return values(draw, mesh, shape, element), draw(st.sampled_from(kinds)), result


@st.composite
def all_reduces(draw: Draw, mesh: Mesh) -> Expectation:
    axes, shape = draw(some_axes(mesh)), draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    argument, kind, element = _reduction(draw, mesh, shape)
    expected = sim.all_reduce(mesh.shape, argument, axes, kind, ELEMENTS[element])
    return collective(mesh, "all_reduce", axes, f"reduction = #mesh.partial<{kind}>", argument, shape, element, expected)


@st.composite
def reduce_scatters(draw: Draw, mesh: Mesh) -> Expectation:
    axes, shape = draw(some_axes(mesh)), local_shape(draw)
    dim = draw(st.integers(0, len(shape) - 1))
    whole = [*shape[:dim], shape[dim] * group_size(mesh, axes), *shape[dim + 1 :]]
    argument, kind, element = _reduction(draw, mesh, whole)
    expected = sim.reduce_scatter(mesh.shape, argument, axes, kind, ELEMENTS[element], dim)
    attrs = f"scatter_axis = {dim} : index, reduction = #mesh.partial<{kind}>"
    return collective(mesh, "reduce_scatter", axes, attrs, argument, shape, element, expected)


@st.composite
def permutes(draw: Draw, mesh: Mesh) -> Expectation:
    axes = draw(some_axes(mesh)) or tuple(range(mesh.rank))
    targets = tuple(draw(st.permutations(axes)))
    shape, element = local_shape(draw), draw(st.sampled_from(list(KINDS)))
    argument = values(draw, mesh, shape, element)
    expected = sim.permute(mesh.shape, argument, axes, targets)
    return collective(mesh, "permute", axes, axes_text(targets, "target_axes"), argument, shape, element, expected)


@st.composite
def shifts(draw: Draw, mesh: Mesh) -> Expectation:
    axes = draw(some_axes(mesh)) or (0,)
    along = draw(st.sampled_from(axes))
    offset, rotate = draw(st.integers(-5, 5)), draw(st.booleans())
    shape, element = local_shape(draw), draw(st.sampled_from(list(KINDS)))
    argument = values(draw, mesh, shape, element)
    expected = sim.shift(mesh.shape, argument, along, offset, rotate)
    attrs = f"shift_axis = {along} : index, offset = {offset} : i64{', rotate' if rotate else ''}"
    return collective(mesh, "shift", axes, attrs, argument, shape, element, expected)


@dataclass(frozen=True)
class Member:
    """An in-group device: its coordinates, which of them are only known at run time, and how the program says so."""

    index: Index
    dynamic: tuple[bool, ...]

    def lines(self, argument: int, name: str) -> list[str]:
        """Reads the dynamic coordinates from an i32 argument that holds all of them."""
        found = []
        for place, dynamic in enumerate(self.dynamic):
            if dynamic:
                text = f"tensor<{len(self.index)}xi32>"
                found += [
                    f"%_{name}c{place} = arith.constant {place} : index",
                    f"%_{name}s{place} = tensor.extract ${argument}[%_{name}c{place}] : {text}",
                    f"%_{name}{place} = arith.index_cast %_{name}s{place} : i32 to index",
                ]
        return found

    def operands(self, name: str) -> list[str]:
        return [f"%_{name}{place}" for place, dynamic in enumerate(self.dynamic) if dynamic]

    def attr(self, name: str) -> str:
        entries = [DYNAMIC if dynamic else at for at, dynamic in zip(self.index, self.dynamic, strict=True)]
        return f"{name} = {_i64(entries)}"

    def argument(self, mesh: Mesh) -> Values:
        index = np.array(self.index or [0], np.int32)  # an argument has at least one element
        return dict.fromkeys(sim.devices(mesh.shape), index)


def a_member(draw: Draw, mesh: Mesh, axes: Sequence[int]) -> Member:
    along = axes
    index = tuple(draw(st.integers(0, mesh.shape[axis] - 1)) for axis in along)
    anything = draw(st.booleans())
    return Member(index, tuple(anything and draw(st.booleans()) for _ in along))


def rooted(
    mesh: Mesh, name: str, axes: Sequence[int], attrs: str, root: Member, argument: Values, result: str, expected: Values
) -> Expectation:
    """A case of one operation with a root."""
    operands, types = ["$0", *root.operands("root")], [_text_of(argument), *["index"] * len(root.operands("root"))]
    attrs = ", ".join(filter(None, [axes_text(axes), attrs, root.attr("root")]))
    lines = [*root.lines(1, "root"), operation(name, operands, attrs, types, result)]
    return Expectation(Case(mesh, (argument, root.argument(mesh)), tuple(lines), (("%_r", result),)), (expected,))


@st.composite
def broadcasts(draw: Draw, mesh: Mesh) -> Expectation:
    axes, element, shape = draw(some_axes(mesh)), draw(st.sampled_from(list(KINDS))), local_shape(draw)
    root, argument = a_member(draw, mesh, axes), values(draw, mesh, shape, element)
    expected = sim.broadcast(mesh.shape, argument, axes, root.index)
    return rooted(mesh, "broadcast", axes, "", root, argument, tensor_text(shape, element), expected)


@st.composite
def gathers(draw: Draw, mesh: Mesh) -> Expectation:
    axes, element, shape = draw(some_axes(mesh)), draw(st.sampled_from(list(KINDS))), local_shape(draw)
    dim, root = draw(st.integers(0, len(shape) - 1)), a_member(draw, mesh, axes)
    argument = values(draw, mesh, shape, element)
    whole = [*shape[:dim], shape[dim] * group_size(mesh, axes), *shape[dim + 1 :]]
    expected = sim.gather(mesh.shape, argument, axes, dim, root.index)
    return rooted(mesh, "gather", axes, f"gather_axis = {dim} : index", root, argument, tensor_text(whole, element), expected)


@st.composite
def reduces(draw: Draw, mesh: Mesh) -> Expectation:
    axes, shape = draw(some_axes(mesh)), local_shape(draw)
    argument, kind, element = _reduction(draw, mesh, shape)
    root = a_member(draw, mesh, axes)
    expected = sim.reduce(mesh.shape, argument, axes, kind, ELEMENTS[element], root.index)
    attrs = f"reduction = #mesh.partial<{kind}>"
    return rooted(mesh, "reduce", axes, attrs, root, argument, tensor_text(shape, element), expected)


@st.composite
def scatters(draw: Draw, mesh: Mesh) -> Expectation:
    axes, element, shape = draw(some_axes(mesh)), draw(st.sampled_from(list(KINDS))), local_shape(draw)
    dim, root = draw(st.integers(0, len(shape) - 1)), a_member(draw, mesh, axes)
    whole = [*shape[:dim], shape[dim] * group_size(mesh, axes), *shape[dim + 1 :]]
    argument = values(draw, mesh, whole, element)
    expected = sim.scatter(mesh.shape, argument, axes, dim, root.index)
    return rooted(mesh, "scatter", axes, f"scatter_axis = {dim} : index", root, argument, tensor_text(shape, element), expected)


@st.composite
def messages(draw: Draw, mesh: Mesh) -> Expectation:
    """A send and its recv in either order; with the recv first, what is sent may come after it."""
    axes, element, shape = draw(some_axes(mesh)), draw(st.sampled_from(list(KINDS))), local_shape(draw)
    source, destination = a_member(draw, mesh, axes), a_member(draw, mesh, axes)
    sent, kept = values(draw, mesh, shape, element), values(draw, mesh, shape, element)
    text = tensor_text(shape, element)

    def half(name: str, result: str, value: str, member: Member, attr: str) -> str:
        dynamic = member.operands(attr)
        types = ", ".join([text, *["index"] * len(dynamic)])
        attrs = f"mesh = @mesh, {axes_text(axes)}, {member.attr(attr)}"
        return f'{result} = "mesh.{name}"({", ".join([value, *dynamic])}) {{{attrs}}} : ({types}) -> {text}'

    send = half("send", "%_s", "%_v", destination, "destination")
    recv = half("recv", "%_r", "$1", source, "source")
    computed = f"%_v = stablehlo.optimization_barrier $0 : {text}"
    order = [[computed, send, recv], [computed, recv, send], [recv, computed, send]][draw(st.integers(0, 2))]
    lines = [*source.lines(2, "source"), *destination.lines(3, "destination"), *order]
    expected = sim.send_recv(mesh.shape, sent, kept, axes, source.index, destination.index)
    arguments = (sent, kept, source.argument(mesh), destination.argument(mesh))
    return Expectation(Case(mesh, arguments, tuple(lines), (("%_r", text), ("%_s", text))), (expected, sent))


@st.composite
def halo_updates(draw: Draw, mesh: Mesh) -> Expectation:
    """Any axes over any dimensions, halos unequal on the two sides and sometimes wider than the neighbour's core."""
    order = list(draw(some_axes(mesh)) or range(mesh.rank))
    rank = draw(st.integers(1, 3))
    split: list[list[int]] = [[] for _ in range(rank)]
    for axis in order:
        split[draw(st.integers(0, rank - 1))].append(axis)
    halos, shape = [], []
    for axes in split:
        core = draw(st.integers(1, 3))
        halo = [draw(st.integers(0, 3)) for _ in range(2)] if axes else []
        halos += halo
        shape.append(core + sum(halo))
    argument = values(draw, mesh, shape, "i32", low=-50)
    text = tensor_text(shape, "i32")
    sizes = f"static_halo_sizes = array<i64{': ' if halos else ''}{', '.join(map(str, halos))}>"
    line = operation("update_halo", ["$0"], f"split_axes = #mesh.axisarray<{split}>, {sizes}", [text], text)
    expected = sim.update_halo(mesh.shape, argument, split, halos)
    return Expectation(Case(mesh, (argument,), (line,), (("%_r", text),)), (expected,))


def _indices(mesh: Mesh, lines: list[str], names: list[str], expected: dict[Index, Sequence[int]]) -> Expectation:
    """A case whose results are indices, returned as one tensor<nxi32>. Its one argument is not used."""
    casts = [f"%_i{k} = arith.index_cast {name} : index to i32" for k, name in enumerate(names)]
    text = f"tensor<{len(names)}xi32>"
    packed = f"%_all = tensor.from_elements {', '.join(f'%_i{k}' for k in range(len(names)))} : {text}"
    results = {device: np.array(indices, np.int32) for device, indices in expected.items()}
    nothing = {device: np.zeros(1, np.int32) for device in expected}
    return Expectation(Case(mesh, (nothing,), (*lines, *casts, packed), (("%_all", text),)), (results,))


@st.composite
def mesh_shapes(draw: Draw, mesh: Mesh) -> Expectation:
    axes = draw(some_axes(mesh))
    sizes = sim.mesh_shape(mesh.shape, axes)
    line = f'%_r:{len(sizes)} = "mesh.mesh_shape"() {{mesh = @mesh, {axes_text(axes, "axes")}}} : () -> ({_indexes(sizes)})'
    expected = dict.fromkeys(sim.devices(mesh.shape), sizes)
    return _indices(mesh, [line], [f"%_r#{k}" for k in range(len(sizes))], expected)


def _indexes(results: Sequence[object]) -> str:
    return ", ".join(["index"] * len(results))


@st.composite
def multi_indices(draw: Draw, mesh: Mesh) -> Expectation:
    axes = draw(some_axes(mesh))
    expected = {device: list(index) for device, index in sim.process_multi_index(mesh.shape, axes).items()}
    count = len(sim.resolve(mesh.shape, axes))
    attrs = f"mesh = @mesh, {axes_text(axes, 'axes')}"
    line = f'%_r:{count} = "mesh.process_multi_index"() {{{attrs}}} : () -> ({_indexes(range(count))})'
    return _indices(mesh, [line], [f"%_r#{k}" for k in range(count)], expected)


@st.composite
def linear_indices(draw: Draw, mesh: Mesh) -> Expectation:
    """The linear index, and some arithmetic on it."""
    offset = draw(st.integers(-3, 3))
    lines = [
        '%_r = "mesh.process_linear_index"() {mesh = @mesh} : () -> index',
        f"%_c = arith.constant {offset} : index",
        "%_a = arith.addi %_r, %_c : index",
        "%_m = arith.muli %_a, %_r : index",
        "%_l = arith.cmpi slt, %_a, %_r : index",
        "%_w = arith.select %_l, %_m, %_c : index",
    ]
    expected = {}
    for device, index in sim.process_linear_index(mesh.shape).items():
        linear = int(index)
        product = (linear + offset) * linear
        expected[device] = [linear, product, product if offset < 0 else offset]
    return _indices(mesh, lines, ["%_r", "%_m", "%_w"], expected)


@st.composite
def neighbours(draw: Draw, mesh: Mesh) -> Expectation:
    """The neighbours of the device that asks."""
    axes = draw(some_axes(mesh)) or (0,)
    coordinates = [f"%_d#{axis}" for axis in range(mesh.rank)]
    lines = [
        f'%_d:{mesh.rank} = "mesh.process_multi_index"() {{mesh = @mesh, axes = array<i16>}} : () -> ({_indexes(mesh.shape)})',
        f'%_r:2 = "mesh.neighbors_linear_indices"({", ".join(coordinates)})'
        f" {{mesh = @mesh, {axes_text(axes, 'split_axes')}}} : ({_indexes(mesh.shape)}) -> (index, index)",
    ]
    expected = {device: sim.neighbors_linear_indices(mesh.shape, device, axes) for device in sim.devices(mesh.shape)}
    return _indices(mesh, lines, ["%_r#0", "%_r#1"], expected)


@st.composite
def shard_shapes(draw: Draw, mesh: Mesh) -> Expectation:
    """Even and uneven shards, with halos or with offsets, of the device that asks."""
    rank = draw(st.integers(1, 3))
    split: list[list[int]] = [[] for _ in range(rank)]
    for axis in draw(some_axes(mesh)):
        split[draw(st.integers(0, rank - 1))].append(axis)
    counts = [prod(mesh.shape[axis] for axis in axes) for axes in split if axes]
    shape = [draw(st.integers(1, 9)) for _ in range(rank)]
    halos: list[int] = []
    offsets: list[int] = []
    form = draw(st.sampled_from(["plain", "halos", "offsets"]))
    if form == "halos":
        halos = [draw(st.integers(0, 2)) for _ in range(2 * len(counts))]
    if form == "offsets":
        for dim, axes in enumerate(split):
            if axes:
                count = prod(mesh.shape[axis] for axis in axes)
                offsets += [0, *sorted(draw(st.integers(0, shape[dim])) for _ in range(count - 1)), shape[dim]]
    attrs = (
        f"mesh = @mesh, split_axes = #mesh.axisarray<{split}>, static_halo_sizes = {_i64(halos)},"
        f" static_sharded_dims_offsets = {_i64(offsets)}, operandSegmentSizes = array<i32: 0, 0>"
    )
    lines = [
        f'%_h = "mesh.sharding"() {{{attrs}}} : () -> !mesh.sharding',
        '%_d = "mesh.process_linear_index"() {mesh = @mesh} : () -> index',
        f'%_r:{rank} = "mesh.shard_shape"(%_h, %_d) {{shape = {_i64(shape)}}} : (!mesh.sharding, index) -> ({_indexes(shape)})',
    ]
    expected = {device: sim.shard_shape(mesh.shape, shape, split, halos, offsets, device) for device in sim.devices(mesh.shape)}
    return _indices(mesh, lines, [f"%_r#{k}" for k in range(rank)], expected)


def _i64(numbers: Sequence[int]) -> str:
    return f"array<i64{': ' if numbers else ''}{', '.join(map(str, numbers))}>"


OPERATIONS = {
    "all_gather": all_gathers,
    "all_reduce": all_reduces,
    "all_slice": all_slices,
    "all_to_all": all_to_alls,
    "broadcast": broadcasts,
    "gather": gathers,
    "mesh_shape": mesh_shapes,
    "neighbors_linear_indices": neighbours,
    "permute": permutes,
    "process_linear_index": linear_indices,
    "process_multi_index": multi_indices,
    "reduce": reduces,
    "reduce_scatter": reduce_scatters,
    "scatter": scatters,
    "send_recv": messages,
    "shard_shape": shard_shapes,
    "shift": shifts,
    "update_halo": halo_updates,
}
"""Operation to its draws."""
