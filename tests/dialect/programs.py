"""Mesh programs for the tests of the dialect: one line per form of each operation, and random ones."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

HEADER = """module {
  mesh.mesh @m0(shape = 2x4)
  mesh.mesh @m1(shape = 4)
  mesh.mesh @m3(shape = 3)
  mesh.mesh @md(shape = 4x?)
  mesh.mesh @deep(shape = 2x2x4) {meshbridge.axis_names = ["a", "b", "c"]}
"""

FORMS: dict[str, tuple[str, ...]] = {
    "mesh_shape": (
        "%mesh_shape:2 = mesh.mesh_shape @m0 : index, index",
        "%mesh_shape:2 = mesh.mesh_shape @deep axes = [2, 0] : index, index",
    ),
    "process_multi_index": (
        "%proc_linear_idx:2 = mesh.process_multi_index on @m0 : index, index",
        "%proc_linear_idx = mesh.process_multi_index on @m0 axes = [1] : index",
    ),
    "process_linear_index": ("%proc_linear_idx = mesh.process_linear_index on @m0 : index",),
    "neighbors_linear_indices": (
        "%down_linear_idx, %up_linear_idx = mesh.neighbors_linear_indices on @m0[%arg1, %arg1] split_axes = [1] : index, index",
    ),
    "sharding": (
        "%sharding = mesh.sharding @m0 split_axes = [[]] : !mesh.sharding",
        "%sharding = mesh.sharding @deep split_axes = [[0, 1], [2]] : !mesh.sharding",
        "%sharding = mesh.sharding @m0 split_axes = [[0]] partial = max[1] : !mesh.sharding",
        "%sharding = mesh.sharding @m0 split_axes = [[0]] halo_sizes = [1, %arg2] : !mesh.sharding",
        "%sharding = mesh.sharding @m1 split_axes = [[], [0]] sharded_dims_offsets = [0, 2, 5, 6, 8] : !mesh.sharding",
        "%sharding = mesh.sharding @m1 split_axes = [[0]] sharded_dims_offsets = [0, %arg2, 2, %arg2, 4] : !mesh.sharding",
    ),
    "shard": (
        "%sharding_annotated = mesh.shard %arg0 to %arg3 : tensor<4x8xf32>",
        "%sharding_annotated = mesh.shard %arg0 to %arg3 annotate_for_users {test.note = array<i64: 1>} : tensor<4x8xf32>",
    ),
    "get_sharding": ("%0 = mesh.get_sharding %arg0 : tensor<4x8xf32> -> !mesh.sharding",),
    "shard_shape": (
        "%shard_shape:2 = mesh.shard_shape 8x? %arg3 %arg1 : index, index",
        "%shard_shape:2 = mesh.shard_shape dims = [8, %arg1] sharding = %arg3 device = [%arg1, 0] : index, index",
    ),
    "all_gather": (
        "%all_gather = mesh.all_gather %arg0 on @m0 mesh_axes = [1] gather_axis = 1 : tensor<4x8xf32> -> tensor<4x32xf32>",
        "%all_gather = mesh.all_gather %arg0 on @m0 gather_axis = 1 : tensor<4x8xf32> -> tensor<4x8xf32>",
        "%all_gather = mesh.all_gather %arg0 on @md mesh_axes = [1] gather_axis = 0 : tensor<4x8xf32> -> tensor<?x8xf32>",
    ),
    "all_reduce": (
        "%all_reduce = mesh.all_reduce %arg0 on @m0 : tensor<4x8xf32> -> tensor<4x8xf32>",
        "%all_reduce = mesh.all_reduce %arg0 on @m0 mesh_axes = [1, 0] reduction = <max> : tensor<4x8xf32> -> tensor<4x8xf64>",
    ),
    "all_slice": (
        "%all_slice = mesh.all_slice %arg0 on @m0 mesh_axes = [1] slice_axis = 1 : tensor<4x8xf32> -> tensor<4x2xf32>",
    ),
    "all_to_all": (
        "%all_to_all = mesh.all_to_all %arg0 on @m0 mesh_axes = [1] split_axis = 0 concat_axis = 1 "
        ": tensor<4x8xf32> -> tensor<1x32xf32>",
    ),
    "broadcast": (
        "%broadcast = mesh.broadcast %arg0 on @m0 mesh_axes = [0, 1] root = [1, %arg1] "
        ": (tensor<4x8xf32>, index) -> tensor<4x8xf32>",
        "%broadcast = mesh.broadcast %arg0 on @m0 root = [] : (tensor<4x8xf32>) -> tensor<4x8xf32>",
    ),
    "gather": (
        "%gather = mesh.gather %arg0 on @m0 mesh_axes = [0] gather_axis = 0 root = [1] : (tensor<4x8xf32>) -> tensor<8x8xf32>",
    ),
    "reduce": (
        "%reduce = mesh.reduce %arg0 on @m0 mesh_axes = [0] reduction = <min> root = [1] : (tensor<4x8xf32>) -> tensor<4x8xf64>",
        "%reduce = mesh.reduce %arg0 on @m0 mesh_axes = [0] root = [%arg1] : (tensor<4x8xf32>, index) -> tensor<4x8xf32>",
    ),
    "reduce_scatter": (
        "%reduce_scatter = mesh.reduce_scatter %arg0 on @m0 mesh_axes = [0] reduction = <max> scatter_axis = 0 "
        ": tensor<4x8xf32> -> tensor<2x8xf64>",
    ),
    "scatter": (
        "%scatter = mesh.scatter %arg0 on @m0 mesh_axes = [0] scatter_axis = 0 root = [1] : (tensor<4x8xf32>) -> tensor<2x8xf32>",
    ),
    "send": (
        "%send = mesh.send %arg0 on @m0 mesh_axes = [0] destination = [%arg1] : (tensor<4x8xf32>, index) -> tensor<4x8xf32>",
    ),
    "recv": (
        "%recv = mesh.recv %arg0 on @m0 mesh_axes = [0, 1] source = [0, 2] : (tensor<4x8xf32>) -> tensor<4x8xf32>",
        "%recv = mesh.recv %arg0 on @m0 mesh_axes = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8xf32>",
    ),
    "shift": (
        "%shift = mesh.shift %arg0 on @m0 mesh_axes = [0, 1] shift_axis = 1 offset = -2 rotate "
        ": tensor<4x8xf32> -> tensor<4x8xf32>",
        "%shift = mesh.shift %arg0 on @m0 mesh_axes = [1] shift_axis = 1 offset = 1 {foo} : tensor<4x8xf32> -> tensor<4x8xf32>",
    ),
    "permute": (
        "%permute = mesh.permute %arg0 on @m0 mesh_axes = [0, 1] target_axes = [1, 0] : tensor<4x8xf32> -> tensor<4x8xf32>",
    ),
    "update_halo": (
        "%0 = mesh.update_halo %arg0 on @m0 split_axes = [[], [1]] halo_sizes = [1, %arg2] : tensor<4x8xf32>",
        "%0 = mesh.update_halo %arg0 on @m0 split_axes = [[0]] : tensor<4x8xf32>",
    ),
}
"""By operation, canonical lines over the arguments of `program`."""

ARGUMENTS = "%arg0: tensor<4x8xf32>, %arg1: index, %arg2: i64, %arg3: !mesh.sharding"


def program(*lines: str, header: str = HEADER) -> str:
    """A module whose function `f` holds `lines`."""
    body = "".join(f"    {line}\n" for line in lines)
    return f"{header}  func.func @f({ARGUMENTS}) {{\n{body}    return\n  }}\n}}\n"


# Random programs: text of one function, every line valid by itself; results are never used, so names cannot clash in meaning.

_AXES = st.permutations([0, 1, 2]).flatmap(lambda axes: st.integers(0, 3).map(lambda count: axes[:count]))
_SIZES = {0: 2, 1: 2, 2: 4}


def _clause(keyword: str, axes: list[int]) -> str:
    return f" {keyword} = {axes}" if axes else ""


def _group(axes: list[int]) -> int:
    size = 1
    for axis in axes:
        size *= _SIZES[axis]
    return size


@st.composite
def _collective(draw: Callable[..., object], kinds: tuple[str, ...]) -> str:
    axes: list[int] = draw(_AXES)  # type: ignore[assignment]
    dim: int = draw(st.integers(0, 1))  # type: ignore[assignment]
    shape = [16 * draw(st.integers(1, 3)), 32]  # type: ignore[operator]
    group = _group(axes)
    grown, shrunk = list(shape), list(shape)
    grown[dim] *= group
    shrunk[dim] //= group
    text = lambda sizes: f"tensor<{'x'.join(map(str, sizes))}xf32>"  # noqa: E731
    on = f'"test.make"() : () -> {text(shape)}\n    %r = mesh'
    head = f"%x on @deep{_clause('mesh_axes', axes)}"
    kind = draw(st.sampled_from(kinds))
    reduction = "" if kind == "sum" else f" reduction = <{kind}>"
    same, up, down = (f"{text(shape)} -> {text(sizes)}" for sizes in (shape, grown, shrunk))
    device = [draw(st.integers(0, _SIZES[axis] - 1)) for axis in axes]
    forms = [
        f".all_gather {head} gather_axis = {dim} : {up}",
        f".all_slice {head} slice_axis = {dim} : {down}",
        f".all_reduce {head}{reduction} : {same}",
        f".reduce_scatter {head}{reduction} scatter_axis = {dim} : {down}",
        f".broadcast {head} root = {device} : ({text(shape)}) -> {text(shape)}",
        f".gather {head} gather_axis = {dim} root = {device} : ({text(shape)}) -> {text(grown)}",
        f".scatter {head} scatter_axis = {dim} root = {device} : ({text(shape)}) -> {text(shrunk)}",
        f".reduce {head}{reduction} root = {device} : ({text(shape)}) -> {text(shape)}",
    ]
    return f"%x = {on}{draw(st.sampled_from(forms))}"


@st.composite
def _annotation(draw: Callable[..., object], with_partial: bool) -> str:
    order: list[int] = draw(st.permutations([0, 1, 2]))  # type: ignore[assignment]
    cuts: list[int] = sorted(draw(st.lists(st.integers(0, 3), min_size=3, max_size=3)))  # type: ignore[type-var,arg-type]
    lists = [order[: cuts[0]], order[cuts[0] : cuts[1]]]
    rest = order[cuts[1] : cuts[2]] if with_partial else []
    partial = f" partial = sum{rest}" if rest else ""
    users = draw(st.sampled_from(["", " annotate_for_users"]))
    return (
        f'%x = "test.make"() : () -> tensor<16x32xf32>\n'
        f"    %s = mesh.sharding @deep split_axes = {lists}{partial} : !mesh.sharding\n"
        f"    %r = mesh.shard %x to %s{users} : tensor<16x32xf32>"
    )


def random_programs(
    *, with_partial: bool = True, kinds: tuple[str, ...] = ("sum", "max", "min", "product")
) -> st.SearchStrategy[str]:
    """Modules of up to eight random operations, each on a value of its own."""

    def renamed(lines: list[str]) -> str:
        body = [
            line.replace("%x", f"%x{number}").replace("%s ", f"%s{number} ").replace("%r", f"%r{number}")
            for number, line in enumerate(lines)
        ]
        return program(*body)

    line = st.one_of(_collective(kinds), _annotation(with_partial))
    return st.lists(line, min_size=1, max_size=8).map(renamed)
