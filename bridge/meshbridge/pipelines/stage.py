"""`meshbridge.stage`: a primitive of JAX's that returns its operands, and lowers to the boundary of a stage (`marker`).

Tangents pass the same boundary, cotangents pass it backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
from jax.extend import source_info_util
from jax.extend.core import Primitive
from jax.interpreters import ad, batching
from jax.interpreters import mlir as lowering

from meshbridge.ir.mlir import MeshError, stablehlo
from meshbridge.pipelines.marker import Direction, Marker

Tree = TypeVar("Tree")

source_info_util.register_exclusion(__file__)  # diagnostics name the user's line


def stage(name: str) -> Callable[[Tree], Tree]:
    """A function that returns its argument, any tree of arrays, and marks where the stage `name` begins.

    All values that a stage needs of earlier ones should pass its boundary, so that their cotangents pass it as well:
    `x, mask = meshbridge.stage("decoder")((x, mask))`. It has no effect but in `meshbridge.pipelined`. It may be transformed by
    `jax.grad`, `jax.vmap`, `jax.checkpoint` and `jax.export`. Raises MeshError for a name that is no text, or empty.
    """
    if not isinstance(name, str) or not name:
        raise MeshError(f"error: expected the name of a stage, found {name!r}\n  hint: x = meshbridge.stage('decoder')(x)")

    def mark(tree: Tree) -> Tree:
        leaves, structure = jax.tree.flatten(tree)
        marked: Tree = jax.tree.unflatten(structure, _boundary.bind(*leaves, name=name, direction="forward") if leaves else [])
        return marked

    return mark


_boundary = Primitive("stage")
_boundary.multiple_results = True


def _same(*leaves: Any, **_: Any) -> list[Any]:
    return list(leaves)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **marked: Any) -> tuple[list[Any], list[Any]]:
    outs = _boundary.bind(*primals, **marked)
    known = [index for index, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]
    out_tangents = list(tangents)
    if known:
        for index, tangent in zip(known, _boundary.bind(*(tangents[index] for index in known), **marked), strict=True):
            out_tangents[index] = tangent
    return outs, out_tangents


def _transpose(cotangents: Sequence[Any], *_: Any, name: str, direction: Direction) -> list[Any]:
    known = [index for index, cotangent in enumerate(cotangents) if not isinstance(cotangent, ad.Zero)]
    passed: list[Any] = [None] * len(cotangents)
    if known:
        back: Direction = "forward" if direction == "backward" else "backward"
        for index, cotangent in zip(
            known, _boundary.bind(*(cotangents[index] for index in known), name=name, direction=back), strict=True
        ):
            passed[index] = cotangent
    return passed


def _batch(leaves: Sequence[Any], dims: Sequence[Any], **marked: Any) -> tuple[list[Any], Sequence[Any]]:
    return _boundary.bind(*leaves, **marked), dims


def _lower(_: Any, *leaves: Any, name: str, direction: Direction) -> Sequence[Any]:
    barrier = stablehlo.OptimizationBarrierOp(list(leaves))
    for key, attribute in Marker(name, direction).attributes().items():
        barrier.operation.attributes[key] = attribute
    return list(barrier.results)


_boundary.def_impl(_same)
_boundary.def_abstract_eval(_same)
ad.primitive_jvps[_boundary] = _jvp
ad.primitive_transposes[_boundary] = _transpose
batching.primitive_batchers[_boundary] = _batch
lowering.register_lowering(_boundary, _lower)
