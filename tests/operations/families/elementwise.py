"""Ops that work on each element for itself, and conversions between dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.operations.cases import ALL, COMPLEX, FLOATS, INTEGERS, NARROW_FLOATS, SIGNED, Case
from tests.operations.drawing import Drawer, family
from tests.operations.exclusions import REFUSED_BY_XLA
from tests.operations.raw import raw, tensor

Unary = Callable[[Any], Any]

REAL_UNARY: dict[str, Unary] = {
    name: getattr(lax, name)
    for name in [
        "cbrt",
        "ceil",
        "cos",
        "exp",
        "expm1",
        "floor",
        "is_finite",
        "log",
        "log1p",
        "logistic",
        "neg",
        "rsqrt",
        "sign",
        "sin",
        "sqrt",
        "tan",
        "tanh",
        "abs",
        "square",
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "cosh",
        "sinh",
        "erf",
        "erfc",
        "erf_inv",
        "lgamma",
        "digamma",
        "bessel_i0e",
        "bessel_i1e",
        "exp2",
    ]
} | {
    "round_nearest_even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "round_nearest_afz": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "reduce_precision": lambda x: lax.reduce_precision(x, 4, 2),
    "is_inf": jnp.isinf,
}
COMPLEX_UNARY: dict[str, Unary] = {
    name: getattr(lax, name)
    for name in [
        "abs",
        "conj",
        "cos",
        "exp",
        "expm1",
        "imag",
        "log",
        "log1p",
        "logistic",
        "neg",
        "real",
        "rsqrt",
        "sign",
        "sin",
        "sqrt",
        "tan",
        "tanh",
    ]
}
INTEGER_UNARY: dict[str, Unary] = {
    name: getattr(lax, name) for name in ["abs", "bitwise_not", "clz", "neg", "population_count", "sign", "square"]
}
BINARY = ["add", "atan2", "div", "eq", "ge", "gt", "le", "lt", "max", "min", "mul", "ne", "nextafter", "pow", "rem", "sub"]
INTEGER_BINARY = [
    "add",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "eq",
    "ge",
    "gt",
    "le",
    "lt",
    "max",
    "min",
    "mul",
    "ne",
    "shift_left",
    "shift_right_arithmetic",
    "shift_right_logical",
    "sub",
    "div",
    "rem",
]
COMPLEX_BINARY = ["add", "div", "eq", "mul", "ne", "sub", "pow"]
LOOSE = {"float64": 1e-9, "complex128": 1e-9, "float32": 1e-4, "complex64": 1e-4}
"""Vectorised transcendental functions differ from scalar ones in their last digits."""
EXACT = frozenset(
    [
        "abs",
        "ceil",
        "floor",
        "neg",
        "sign",
        "is_finite",
        "add",
        "sub",
        "mul",
        "max",
        "min",
        "eq",
        "ge",
        "gt",
        "le",
        "lt",
        "ne",
        "bitwise_not",
    ]
)


def _tolerance(name: str, dtype: str) -> float | None:
    return None if name in EXACT else 0.15 if dtype in NARROW_FLOATS else LOOSE.get(dtype)


@family
def unary(d: Drawer) -> Case:
    """One operand of any dtype."""
    dtype = d.pick(ALL)
    tables = {**dict.fromkeys(COMPLEX, COMPLEX_UNARY), **dict.fromkeys(INTEGERS, INTEGER_UNARY)}
    table = {"not": lax.bitwise_not} if dtype == "bool" else tables.get(dtype, REAL_UNARY)
    name = d.pick(list(table))
    if (name in ("abs", "neg", "sign") and dtype.startswith("uint")) or (name, dtype) == ("abs", "int4"):  # as JAX has it
        name = "population_count"
    shape = d.shape()
    if (name, dtype) in REFUSED_BY_XLA:
        name = "erf"
    return d.case(f"{name} {dtype}", table[name], [d.operand(shape, dtype)], [len(shape)], _tolerance(name, dtype))


@family
def binary(d: Drawer) -> Case:
    """Two operands of one shape, or one of them a scalar."""
    dtype = d.pick(ALL)
    tables = {**dict.fromkeys(COMPLEX, COMPLEX_BINARY), **dict.fromkeys(INTEGERS, INTEGER_BINARY)}
    tables["bool"] = ["bitwise_and", "bitwise_or", "bitwise_xor", "eq", "ne", "lt"]
    name = d.pick(tables.get(dtype, BINARY))
    shape = d.shape()
    other = () if d.integer(0, 4) == 4 else shape
    operands = [d.operand(shape, dtype), d.operand(other, dtype, "positive")]
    apply = getattr(lax, name)

    def function(x: Any, y: Any) -> Any:
        return apply(x, lax.broadcast(y, shape) if other == () else y)

    tolerance = _tolerance(name, dtype)
    return d.case(f"{name} {dtype}", function, operands, [len(shape)], tolerance)


@family
def ternary(d: Drawer) -> Case:
    """clamp and select, whose bounds and predicate may be scalars."""
    dtype, shape = d.pick((*FLOATS, *INTEGERS, "bool")), d.shape()
    scalar = d.flag()
    if d.flag() and dtype != "bool":
        bound = () if scalar else shape
        operands = [d.operand(bound, dtype, "whole"), d.operand(shape, dtype), d.operand(bound, dtype, "positive")]
        return d.case(f"clamp {dtype} scalar={scalar}", lax.clamp, operands, [len(shape)])
    operands = [d.operand(() if scalar else shape, "bool"), d.operand(shape, dtype), d.operand(shape, dtype)]
    return d.case(f"select {dtype} scalar={scalar}", lax.select, operands, [len(shape)])


@family
def convert(d: Drawer) -> Case:
    """Any dtype to any other."""
    source, target, shape = d.pick(ALL), d.pick(ALL), d.shape()
    real = source in COMPLEX and target not in COMPLEX
    values = "positive" if target.startswith("uint") else "whole"
    return d.case(
        f"convert {source} to {target}",
        lambda x: lax.convert_element_type(x.real if real else x, target),
        [d.operand(shape, source, values)],
        [len(shape)],
    )


@family
def bitcast_convert(d: Drawer) -> Case:
    """Between sizes: a dimension comes or goes."""
    source = d.pick(("float32", "int8", "int64", "float64", "uint16", "bfloat16", "uint32"))
    target = d.pick(("float32", "int8", "int64", "uint16", "int32", "float16"))
    shape = d.shape(most=512)
    sizes = np.dtype(jnp.dtype(source)).itemsize, np.dtype(jnp.dtype(target)).itemsize
    if sizes[0] < sizes[1]:
        shape = (*shape, sizes[1] // sizes[0])
    rank = len(shape) + (1 if sizes[0] > sizes[1] else -1 if sizes[0] < sizes[1] else 0)
    # Bits of floats may be NaNs, whose payload no processor keeps: what is compared are integers.
    seen = {"float32": "int32", "float16": "int16"}.get(target)
    return d.case(
        f"bitcast {source} to {target}",
        lambda x: lax.bitcast_convert_type(x, target) if seen is None else lax.bitcast_convert_type(x, seen),
        [d.operand(shape, source)],
        [rank],
    )


@family
def complex_parts(d: Drawer) -> Case:
    """Complex numbers made from parts and taken apart."""
    dtype, shape = d.pick(("float32", "float64")), d.shape()
    operands = [d.operand(shape, dtype), d.operand(shape, dtype)]

    def function(re: Any, im: Any) -> Any:
        z = lax.complex(re, im)
        return z, lax.real(z * z), lax.imag(z), lax.conj(z)

    return d.case(f"complex {dtype}", function, operands, [len(shape)] * 4)


@family
def elementwise_map(d: Drawer) -> Case:
    """`stablehlo.map` with a body of its own."""
    dtype, shape = d.pick(("float32", "int32")), d.shape()
    kind = tensor(shape, dtype)
    scalar = tensor((), dtype)
    dims = ", ".join(map(str, range(len(shape))))
    body = f"""%r = "stablehlo.map"(%0, %1) ({{ ^bb0(%a: {scalar}, %b: {scalar}):
      %s = stablehlo.multiply %a, %b : {scalar}
      %t = stablehlo.add %s, %a : {scalar}
      stablehlo.return %t : {scalar} }}) {{dimensions = array<i64: {dims}>}} : ({kind}, {kind}) -> {kind}"""
    function = raw(body, [(shape, dtype)] * 2, [(shape, dtype)])
    return d.case(f"map {dtype}", function, [d.operand(shape, dtype), d.operand(shape, dtype)], [len(shape)])


@family
def barriers(d: Drawer) -> Case:
    """optimization_barrier over operands of different shapes, and functions that JAX keeps as calls."""
    shapes = d.shape(), d.shape()
    operands = [d.operand(shapes[0], "float32"), d.operand(shapes[1], d.pick(SIGNED))]

    def function(x: Any, y: Any) -> Any:
        x, y = lax.optimization_barrier((x * 2, y))
        return jax.jit(jax.nn.silu)(x), y, jax.jit(jax.nn.silu)(x + 1)

    return d.case("optimization_barrier", function, operands, [len(shapes[0]), len(shapes[1]), len(shapes[0])])


@family
def batch_norm(d: Drawer) -> Case:
    """The three batch normalisations, over any feature dimension."""
    shape = d.shape(2, 4)
    feature = d.integer(0, len(shape) - 1)
    channel = (shape[feature],)
    kind, line = tensor(shape, "float32"), tensor(channel, "float32")
    attributes = f"{{epsilon = 1.0e-3 : f32, feature_index = {feature} : i64}}"
    which = d.pick(("inference", "training", "grad"))
    if which == "inference":
        types = f"({kind}, {line}, {line}, {line}, {line}) -> {kind}"
        body = f'%r = "stablehlo.batch_norm_inference"(%0, %1, %2, %3, %4) {attributes} : {types}'
        shapes, results = [shape, channel, channel, channel, channel], [shape]
    elif which == "training":
        types = f"({kind}, {line}, {line}) -> ({kind}, {line}, {line})"
        body = f'%r:3 = "stablehlo.batch_norm_training"(%0, %1, %2) {attributes} : {types}'
        shapes, results = [shape, channel, channel], [shape, channel, channel]
    else:
        types = f"({kind}, {line}, {line}, {line}, {kind}) -> ({kind}, {line}, {line})"
        body = f'%r:3 = "stablehlo.batch_norm_grad"(%0, %1, %2, %3, %4) {attributes} : {types}'
        shapes, results = [shape, channel, channel, channel, shape], [shape, channel, channel]
    function = raw(body, [(one, "float32") for one in shapes], [(one, "float32") for one in results])
    operands = [d.operand(one, "float32", "positive") for one in shapes]
    return d.case(f"batch_norm_{which} {feature}", function, operands, [len(one) for one in results], 2e-3)
