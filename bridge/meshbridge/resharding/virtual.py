"""Virtual meshes: the same devices with finer axes, so that a factor of a mesh axis is an axis (the RFC's virtual axis)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from meshbridge.resharding.steps import Digit, Digits
from meshbridge.sharding import Axes, Mesh


@dataclass(frozen=True)
class VirtualMesh:
    """A mesh whose axes are factors of another's, in the same row-major order."""

    mesh: Mesh

    def axes(self, digits: Digits) -> Axes:
        """The virtual axes that `digits` are, outer to inner."""
        axes: list[int] = []
        for digit in digits:
            stride, product = self.mesh.size, 1
            for axis, size in enumerate(self.mesh.shape):
                if digit.stride <= stride // size < digit.stride * digit.radix and size > 1:
                    axes.append(axis)
                    product *= size
                stride //= size
            assert product == digit.radix, f"{digit} is not a product of axes of {self.mesh}"
        return tuple(axes)


def refine(mesh: Mesh, digits: Iterable[Digit]) -> VirtualMesh:
    """`mesh` with its axes cut where any of `digits` begins or ends."""
    inner = {axis: prod(mesh.shape[axis + 1 :]) for axis in range(mesh.rank)}
    cuts = {axis: {inner[axis], inner[axis] * size} for axis, size in enumerate(mesh.shape)}
    for digit in digits:
        cuts[digit.axis] |= {digit.stride, digit.stride * digit.radix}
    shape: list[int] = []
    for axis, size in enumerate(mesh.shape):
        bounds = sorted(cuts[axis], reverse=True)
        shape += [a // b for a, b in itertools.pairwise(bounds)] if size > 1 else [1]
    name = f"{mesh.name}_as_{'x'.join(map(str, shape))}"
    return VirtualMesh(Mesh(name, tuple(shape), (), mesh.device_ids))
