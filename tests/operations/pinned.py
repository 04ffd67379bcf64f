"""Programs that once computed wrong numbers or were refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.operations.cases import Case, Operand
from tests.operations.differential import Spec
from tests.operations.raw import raw

WHOLE = Spec()


def _slice(x: Any, row: Any, column: Any) -> Any:
    return lax.dynamic_slice(x, (row, column), (3, 3))


def _gradients(x: Any, w: Any) -> Any:
    return jax.grad(lambda x, w: jnp.sum(jnp.tanh(x @ w)), (0, 1))(x, w)


def _grouped(x: Any, w: Any) -> Any:
    layouts = ("WCHN", "WOHI", "NWHC")
    return lax.conv_general_dilated(x, w, (1, 3), ((0, 0), (0, 2)), (2, 1), (2, 1), layouts, feature_group_count=3)


def _pooling_gradient(x: Any, g: Any) -> Any:
    x = jnp.where(x > 0.3, x, -jnp.inf)
    return jax.vjp(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (3, 3), (1, 2), "SAME"), x)[1](g)


def _selected(x: Any, source: Any) -> Any:
    """The last of the largest elements; padding is never selected."""
    scalar, bits = "tensor<f32>", "tensor<i1>"
    body = f"""%c = stablehlo.constant dense<0.0> : {scalar}
      %r = "stablehlo.select_and_scatter"(%0, %1, %c) ({{ ^bb0(%a: {scalar}, %b: {scalar}):
      %s = stablehlo.compare GT, %a, %b : ({scalar}, {scalar}) -> {bits}
      stablehlo.return %s : {bits} }}, {{ ^bb0(%a: {scalar}, %b: {scalar}):
      %s = stablehlo.add %a, %b : {scalar}
      stablehlo.return %s : {scalar} }}) {{window_dimensions = array<i64: 3, 3>, window_strides = array<i64: 1, 2>,
      padding = dense<1> : tensor<2x2xi64>}} : (tensor<16x10xf32>, tensor<16x5xf32>, {scalar}) -> tensor<16x10xf32>"""
    wide, narrow = ((16, 10), "float32"), ((16, 5), "float32")
    return raw(body, [wide, narrow], [wide])(jnp.where(x > 0.3, x, -jnp.inf), source)


def _pooled(function: Any, spec: Spec) -> tuple[tuple[int, ...], Case]:
    return (2, 4), Case(
        "select_and_scatter", function, (Operand((16, 10), "float32", spec), Operand((16, 5), "float32", spec)), (spec,)
    )


def _sum_of_moved(x: Any, start: Any) -> Any:
    return lax.reduce(x, start, lax.add, (1,))


def _joined_of_moved(x: Any, start: Any) -> Any:
    """a + b + a*b, which is no known kind of reduction."""
    return lax.reduce(x, start, lambda a, b: a + b + a * b, (1,))


def _moved(function: Any) -> tuple[tuple[int, ...], Case]:
    operands = (Operand((8, 8, 3), "float32", Spec(None, "a")), Operand((), "float32", WHOLE, "positive"))
    return (8,), Case("reduce", function, operands, (Spec("a"),))


def _sum_of_sums(x: Any, w: Any) -> Any:
    """The products leave a partial value, which the sum of columns carries on or joins."""
    y = x @ w
    y = jnp.broadcast_to(y.sum(0, keepdims=True), y.shape)
    return y - y.mean(0, keepdims=True)


def _extremes(x: Any) -> Any:
    """With NaN in one element, and without any in the other columns; the infinities are there."""
    holes = jnp.arange(x.size).reshape(x.shape)
    x = jnp.where(holes == 22, jnp.nan, jnp.where(holes == 7, jnp.inf, jnp.where(holes == 12, -jnp.inf, x)))
    return x.max(0), x.min(0), jnp.argmax(x, 0), jnp.argmin(x), x.max(), lax.cummax(x, 0)


def _extremes_of(dtype: str, result: Spec) -> tuple[tuple[int, ...], Case]:
    return (2, 4), Case("extremes", _extremes, (Operand((16, 8), dtype, Spec("b", "a")),), (result, result))


CASES: dict[str, tuple[tuple[int, ...], Case]] = {
    "a slice at run time, out of bounds, split afterwards: XLA adds up unclamped starts": (
        (2, 3),
        Case(
            "dynamic_slice",
            _slice,
            (Operand((8, 7), "int32", WHOLE), Operand((), "int32", WHOLE, 8), Operand((), "int32", WHOLE, 7)),
            (Spec("b", None),),
        ),
    ),
    "an initial value of run time on shards of one row: XLA drops it": (
        (2, 3),
        Case(
            "reduce",
            lambda x, start: lax.reduce(x, start, lax.bitwise_xor, (0,)),
            (Operand((2, 12, 10), "int32", Spec("b", None, "a")), Operand((), "int32", WHOLE, "positive")),
            (Spec(None, None),),
        ),
    ),
    "an argument left open whose use is split unevenly": (
        (2, 3),
        Case(
            "gradients",
            _gradients,
            (Operand((2, 3), "float32", Spec(None, "a")), Operand((3, 2), "float32", None)),
            (None, Spec("a", None)),
        ),
    ),
    "three groups of features on two devices": (
        (2, 2, 2),
        Case(
            "convolution",
            _grouped,
            (
                Operand((6, 3, 8, 4), "float32", Spec(None, "a", "c", None), "whole"),
                Operand((1, 3, 1, 1), "float32", Spec(None, "a", None, None), "whole"),
            ),
            (Spec(None, None, None, "a"),),
        ),
    ),
    "rows padded, transposed, exchanged: XLA sends the padding apart and refuses its order in memory": (
        (2, 3),
        Case(
            "transpose",
            lambda x: lax.transpose(x, (3, 0, 2, 1)),
            (Operand((16, 16, 5, 1), "int16", Spec("b", None, None, "a")),),
            (Spec(("a", "b"), None, None, None),),
        ),
    ),
    "no elements, moved from one split dimension to another": (
        (2, 2, 2),
        Case(
            "double",
            lambda x: x * np.float32(2),
            (Operand((4, 0, 6), "float32", Spec(("a", "c"), None, None)),),
            (Spec(None, None, "a"),),
        ),
    ),
    "interior padding around one element": (
        (2, 2, 2),
        Case(
            "pad",
            lambda x, value: lax.pad(x, value, ((0, 0, 0), (0, 1, 1))),
            (Operand((4, 1), "float32", Spec("a", None)), Operand((), "float32", WHOLE)),
            (Spec("a", "b"),),
        ),
    ),
    "two pieces of nine rows on four devices": (
        (2, 2, 2),
        Case(
            "reshape",
            lambda x: lax.reshape(x, (4, 1, 9)),
            (Operand((18, 2), "int8", Spec(("c", "a"), None)),),
            (Spec(None, ("a", "c"), "b"),),
        ),
    ),
    "windows of nothing but -inf, which select the padding that JAX adds: rows split": _pooled(_pooling_gradient, Spec("a")),
    "windows of nothing but -inf, which select the padding that JAX adds: columns split": _pooled(
        _pooling_gradient, Spec(None, "b")
    ),
    "windows of nothing but -inf, which select no padding of their own": _pooled(_selected, Spec("a", "b")),
    "an argument left open, handed on to more devices than it has elements": (
        (8,),
        Case("identity", lambda x: x, (Operand((2,), "float16", None),), (Spec("a"),)),
    ),
    "a transform whose result is gathered: XLA hands it an order in memory that it refuses": (
        (8,),
        Case(
            "fft",
            lambda x: lax.fft(x, lax.FftType.FFT, (4,)),
            (Operand((3, 10, 4), "complex128", WHOLE),),
            (Spec(None, None, "a"),),
        ),
    ),
    "an initial value after an all-to-all, whose pieces XLA reduces one by one": _moved(_sum_of_moved),
    "an initial value of any body after an all-to-all": _moved(_joined_of_moved),
    "a value partial over one axis while the op could shard its sum along another": (
        (2, 3),
        Case(
            "sum of sums",
            _sum_of_sums,
            (Operand((6, 6), "float64", Spec(None, ("a", "b"))), Operand((6, 5), "float64", Spec(("b", "a"), None))),
            (Spec("b", "a"),),
        ),
    ),
    "elements of two bits, gathered: XLA gathers packed ones wrongly": (
        (8,),
        Case("sum", lambda x: (x + x, x.max(0)), (Operand((16, 3), "int2", Spec("a")),), (WHOLE, Spec())),
    ),
    "elements of two bits without sign, handed from device to device": (
        (8,),
        Case("roll", lambda x: jnp.roll(x, 3, 0), (Operand((16, 3), "uint2", Spec("a")),), (Spec("a"),)),
    ),
    **{
        f"a NaN in a maximum of several devices, {dtype}: XLA's collectives lose it": _extremes_of(dtype, WHOLE)
        for dtype in ("float64", "float32", "bfloat16", "float16", "float8_e5m2", "float8_e4m3")
    },
    "a NaN in a maximum that is scattered": _extremes_of("float32", Spec("b")),
    "no elements, reversed": (
        (2, 4),
        Case("reverse", lambda x: lax.rev(x, (0,)), (Operand((0, 4), "float32", Spec(("a", "b"), None)),), (Spec("a", "b"),)),
    ),
}
