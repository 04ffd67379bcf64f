"""Random meshes and shardings: every device holds what JAX says it holds, and the module comes back as it was."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from math import prod

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from jax._src.sharding_impls import GSPMDSharding
from jax.sharding import Mesh as JaxMesh
from jax.sharding import NamedSharding, PartitionSpec
from jaxlib import xla_client

from meshbridge.dialect.ops import MeshOp, ShardingOp
from meshbridge.ir import mlir
from meshbridge.ir.sharding import Mesh, Sharding, local_shape
from meshbridge_converters import gspmd, sdy

Slices = tuple[tuple[int, int], ...]

SHAPES = {"x": 2, "y": 4, "z": 8}
CONTEXT = mlir.context()


@dataclass(frozen=True)
class Ref:
    """`"name"`, or `"name":(pre)size`."""

    name: str
    pre: int
    size: int
    whole: int

    def __str__(self) -> str:
        return f'"{self.name}"' if self.size == self.whole else f'"{self.name}":({self.pre}){self.size}'

    @property
    def bits(self) -> list[str]:
        """The axes of size 2 that it is made of, outer to inner."""
        first = self.pre.bit_length() - 1
        return [f"{self.name}{bit}" for bit in range(first, first + self.size.bit_length() - 1)]


@dataclass(frozen=True)
class Case:
    """A mesh of 8 devices, and a sharding over it as text and as JAX says it on the mesh of axes of size 2."""

    axes: tuple[tuple[str, int], ...]
    device_ids: tuple[int, ...]
    dims: tuple[tuple[Ref, ...], ...]
    marks: tuple[tuple[bool, int | None], ...]
    shape: tuple[int, ...]

    @property
    def mesh_text(self) -> str:
        axes = ", ".join(f'"{name}"={size}' for name, size in self.axes)
        ids = "" if self.device_ids == tuple(range(8)) else f", device_ids={list(self.device_ids)}"
        return f"sdy.mesh @m = <[{axes}]{ids}>"

    @property
    def sharding_text(self) -> str:
        dims = []
        for refs, (is_open, priority) in zip(self.dims, self.marks, strict=True):
            entries = [*map(str, refs), *(["?"] if is_open else [])]
            dims.append("{" + ", ".join(entries) + "}" + (f"p{priority}" if priority is not None and entries else ""))
        return f"#sdy.sharding<@m, [{', '.join(dims)}]>"

    def jax_view(self) -> dict[int, Slices]:
        """What each device holds, says JAX."""
        bits = [f"{name}{bit}" for name, size in self.axes for bit in range(size.bit_length() - 1)]
        devices = np.array(jax.devices())[list(self.device_ids)].reshape((2,) * 3)
        spec = PartitionSpec(*(tuple(bit for ref in refs for bit in ref.bits) or None for refs in self.dims))
        found = NamedSharding(JaxMesh(devices, bits), spec).devices_indices_map(self.shape)
        return {device.id: _slices(indices, self.shape) for device, indices in found.items()}


def placed_by_xla(text: str, shape: tuple[int, ...]) -> dict[int, Slices]:
    """What each device holds, says XLA of an HloSharding string."""
    found = GSPMDSharding(jax.devices(), xla_client.HloSharding.from_string(text)).devices_indices_map(shape)
    return {device.id: _slices(indices, shape) for device, indices in found.items()}


def _slices(indices: tuple[slice, ...], shape: tuple[int, ...]) -> Slices:
    return tuple(index.indices(size)[:2] for index, size in zip(indices, shape, strict=True))


def our_view(mesh: Mesh, sharding: Sharding, shape: tuple[int, ...]) -> dict[int, Slices]:
    """What each device holds, say the mesh dialect's values."""
    local = local_shape(shape, mesh, sharding.split_axes)
    view = {}
    for device, position in zip(mesh.ordered_devices(), itertools.product(*map(range, mesh.shape)), strict=True):
        starts = []
        for axes, size in zip(sharding.split_axes, local, strict=True):
            index = 0
            for axis in axes:
                index = index * mesh.shape[axis] + position[axis]
            starts.append(index * size)
        view[device] = tuple((start, start + size) for start, size in zip(starts, local, strict=True))
    return view


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sizes = draw(st.sampled_from([(8,), (2, 4), (4, 2), (2, 2, 2)]))
    axes = tuple(zip(draw(st.permutations("xyz"))[: len(sizes)], sizes, strict=True))
    pieces = [ref for name, size in axes for ref in _pieces(draw, name, size)]
    used = draw(st.permutations(pieces))[: draw(st.integers(0, len(pieces)))]
    rank = draw(st.integers(1, 3))
    dims: list[list[Ref]] = [[] for _ in range(rank)]
    for ref in used:
        refs = dims[draw(st.integers(0, rank - 1))]
        if refs and refs[-1].name == ref.name and refs[-1].pre * refs[-1].size == ref.pre:  # sdy wants them written as one
            refs[-1] = Ref(ref.name, refs[-1].pre, refs[-1].size * ref.size, ref.whole)
        else:
            refs.append(ref)
    marks = tuple((draw(st.booleans()), draw(st.none() | st.integers(0, 3))) for _ in range(rank))
    ids = tuple(draw(st.just(list(range(8))) | st.permutations(range(8))))
    shape = tuple(prod(ref.size for ref in refs) * draw(st.integers(1, 3)) for refs in dims)
    return Case(axes, ids, tuple(map(tuple, dims)), marks, shape)


def _pieces(draw: st.DrawFn, name: str, size: int) -> list[Ref]:
    """An axis cut at random into sub-axes."""
    pieces, pre = [], 1
    while pre < size:
        step = draw(st.sampled_from([step for step in (2, 4, 8) if pre * step <= size]))
        pieces.append(Ref(name, pre, step, size))
        pre *= step
    return pieces


@given(cases())
def test_every_device_holds_what_jax_says(case: Case) -> None:
    tensor = f"tensor<{'x'.join(map(str, case.shape))}xf32>"
    text = f"""{case.mesh_text}
      func.func @main(%arg0: {tensor} {{sdy.sharding = {case.sharding_text}}}) -> {tensor} {{
        %0 = sdy.sharding_constraint %arg0 {case.sharding_text.removeprefix("#sdy.sharding")} : {tensor}
        return %0 : {tensor}
      }}"""
    module = mlir.parse(text, "random.mlir", CONTEXT)
    before = str(module)
    sdy.import_module(module)
    operations = mlir.walk_all(module)
    (mesh,) = (MeshOp(op).value for op in operations if op.name == "mesh.mesh")
    (sharding,) = (ShardingOp(op).value for op in operations if op.name == "mesh.sharding")
    assert our_view(mesh, sharding, case.shape) == case.jax_view()
    sdy.export_module(module)
    assert str(module) == before


@given(cases())
def test_gspmd_means_the_same(case: Case) -> None:
    tensor = f"tensor<{'x'.join(map(str, case.shape))}xf32>"
    sharding = case.sharding_text.replace("p0", "").replace("p1", "").replace("p2", "").replace("p3", "")
    text = f"{case.mesh_text}\nfunc.func @main(%arg0: {tensor} {{sdy.sharding = {sharding}}}) {{ return }}"
    module = mlir.parse(text, "random.mlir", CONTEXT)
    sdy.import_module(module)
    gspmd.export_module(module)
    (annotation,) = re.findall(r'mhlo.sharding = "(.*?)"', str(module))
    assert placed_by_xla(annotation, case.shape) == case.jax_view()
    gspmd.import_module(module)
    operations = mlir.walk_all(module)
    (mesh,) = (MeshOp(op).value for op in operations if op.name == "mesh.mesh")
    (found,) = (ShardingOp(op).value for op in operations if op.name == "mesh.sharding")
    assert our_view(mesh, found, case.shape) == case.jax_view()
