"""Control flow: loops, branches, calls; values carried under shardings of their own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.operations.cases import Case
from tests.operations.drawing import Drawer, family
from tests.operations.raw import raw, tensor
from tests.versions import RUNS_SCAN


@family
def while_loop(d: Drawer) -> Case:
    """A trip count known at run time, and carried values of several shapes."""
    shape, dtype = d.shape(1, 3), d.pick(("float32", "int32", "float64"))
    iterations = d.integer(0, 4)
    axis = d.integer(0, len(shape) - 1)

    def function(x: Any, y: Any) -> Any:
        def body(state: Any) -> Any:
            x, total, count = state
            x = jnp.flip(x, axis) - jnp.sum(x, axis, keepdims=True, dtype=x.dtype)
            return x, total + jnp.max(x, axis), count + 1

        return lax.while_loop(lambda s: (s[2] < iterations) & (jnp.max(s[0]) < 1e6), body, (x, y, 0))[:2]

    operands = [d.operand(shape, dtype, "whole"), d.operand([size for dim, size in enumerate(shape) if dim != axis], dtype)]
    return d.case(f"while {iterations} {axis} {dtype}", function, operands, [len(shape), len(shape) - 1])


@family
def scan(d: Drawer) -> Case:
    """Stacked inputs and outputs, from either end, with gradients; the scanned dimension may be split."""
    length, width = d.pick((4, 1, 3, 8, 10)), d.pick((8, 4, 5))
    reverse, gradient, unroll = d.flag(), d.flag(), d.pick((1, 1, 2))

    def run(xs: Any, w: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            carry = jnp.tanh(carry @ w + x)
            return carry, carry * 2

        return lax.scan(step, jnp.zeros((3, width)), xs, reverse=reverse, unroll=unroll)

    function = jax.grad(lambda xs, w: sum(jnp.sum(part**2) for part in run(xs, w)), (0, 1)) if gradient else run
    operands = [d.operand((length, 3, width), "float32"), d.operand((width, width), "float32")]
    return d.case(f"scan {reverse=} {gradient=} {unroll=}", function, operands, [3, 2] if gradient else [2, 3], 1e-4)


def scan_op(d: Drawer) -> Case:
    """`chlo.scan`, which no JAX makes yet: any dimension, from either end, two inputs, values carried in two shapes. No constant
    stands inside: when JAX writes an artifact, it moves those out of the body, where they must not be."""
    shape, reverse = d.shape(2, 3), d.flag()
    along = d.integer(0, len(shape) - 1)
    kept = [size for dim, size in enumerate(shape) if dim != along]
    whole, row, scalar = tensor(shape, "float32"), tensor(kept, "float32"), tensor((), "float32")
    dims = ", ".join(map(str, range(len(kept))))
    body = f"""%r:3 = "chlo.scan"(%0, %1, %2, %3) ({{ ^bb0(%x: {row}, %y: {row}, %c: {row}, %n: {scalar}):
        %a = stablehlo.multiply %x, %c : {row}
        %b = stablehlo.add %a, %y : {row}
        %s = stablehlo.dot_general %b, %b, contracting_dims = [{dims}] x [{dims}] : ({row}, {row}) -> {scalar}
        %m = stablehlo.add %n, %s : {scalar}
        stablehlo.return %a, %b, %m : {row}, {row}, {scalar} }})
      {{dimension = {along} : i64, is_reverse = {str(reverse).lower()}, operandSegmentSizes = array<i32: 2, 2>,
        resultSegmentSizes = array<i32: 1, 2>}} : ({whole}, {whole}, {row}, {scalar}) -> ({whole}, {row}, {scalar})"""
    kinds = [(tuple(sizes), "float32") for sizes in (shape, shape, kept, ())]
    function = raw(body, kinds, [kinds[0], *kinds[2:]])
    operands = [d.operand(sizes, dtype) for sizes, dtype in kinds]
    return d.case(f"scan op {along} {reverse=}", function, operands, [len(shape), len(kept), 0], 1e-4)


if RUNS_SCAN:
    family(scan_op)


@family
def branches(d: Drawer) -> Case:
    """cond and switch with an index of run time, captured operands, results of several shapes, gradients."""
    shape, count = d.shape(1, 3), d.integer(2, 4)
    axis, gradient = d.integer(0, len(shape) - 1), d.flag()

    def run(x: Any, y: Any, i: Any) -> Any:
        choices = [
            lambda: (x + y, jnp.sum(x, axis)),
            lambda: (x * y, jnp.max(y, axis)),
            lambda: (jnp.cumsum(x, axis), jnp.sum(y, axis) * 2),
            lambda: (jnp.flip(y, axis), jnp.zeros_like(jnp.sum(x, axis))),
        ]
        return lax.switch(i, choices[:count])

    function = (
        (lambda x, y, i: jax.grad(lambda x, y: sum(jnp.sum(part**2) for part in run(x, y, i)), (0, 1))(x, y)) if gradient else run
    )
    operands = [d.operand(shape, "float32"), d.operand(shape, "float32"), d.operand((), "int32", count)]
    return d.case(
        f"switch of {count} {axis} {gradient=}", function, operands, [len(shape), len(shape) - (0 if gradient else 1)], 1e-4
    )


@family
def if_op(d: Drawer) -> Case:
    """`stablehlo.if`, which JAX never makes."""
    shape = d.shape(1, 3)
    kind = tensor(shape, "float32")
    body = f"""%r = "stablehlo.if"(%0) ({{ %s = stablehlo.add %1, %2 : {kind}
      stablehlo.return %s : {kind} }}, {{ %s = stablehlo.multiply %1, %2 : {kind}
      stablehlo.return %s : {kind} }}) : (tensor<i1>) -> {kind}"""
    function = raw(body, [((), "bool"), (shape, "float32"), (shape, "float32")], [(shape, "float32")])
    operands = [d.operand((), "bool"), d.operand(shape, "float32"), d.operand(shape, "float32")]
    return d.case("if", function, operands, [len(shape)])


@family
def calls(d: Drawer) -> Case:
    """Functions called several times under different shardings, composites, checkpoints, custom derivatives."""
    rows, columns = d.pick((8, 10, 3)), d.pick((4, 6, 8))
    inner = jax.jit(lambda x: jnp.tanh(x) @ jnp.ones((x.shape[-1], x.shape[-1])))
    composite = lax.composite(lambda x: x * jax.nn.sigmoid(x), name="test.swish")

    @jax.custom_vjp
    def clipped(x: Any) -> Any:
        return x * 2

    clipped.defvjp(lambda x: (x * 2, x), lambda x, g: (jnp.clip(g, -1, 1) * jnp.sign(x),))

    def function(x: Any) -> Any:
        gradient = jax.grad(lambda x: jnp.sum(jax.checkpoint(lambda x: inner(clipped(x)) ** 2)(x)))(x)
        return inner(x), inner(inner(x) * 2), composite(x), gradient

    return d.case("calls", function, [d.operand((rows, columns), "float32")], [2, 2, 2, 2], 1e-4)
