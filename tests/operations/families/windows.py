"""Windows: reduce_window with every attribute, cumulative reductions, pooling gradients, select_and_scatter."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.operations.cases import FLOATS, INTEGERS, Case
from tests.operations.drawing import Drawer, family
from tests.operations.families.reductions import computation, initial
from tests.operations.raw import raw, tensor


def window_attributes(d: Drawer, shape: tuple[int, ...], dilated: bool = True) -> dict[str, Any]:
    """Attributes under which every dimension has at least one window."""
    found: dict[str, list[Any]] = {
        name: [] for name in ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")
    }
    for size in shape:
        touched = d.flag()
        window = d.pick((1, 2, 3, 4)) if touched else 1
        base, inner = (d.pick((1, 1, 2, 3)), d.pick((1, 1, 2))) if dilated and touched else (1, 1)
        low, high = (d.pick((0, 1, 2, 3)), d.pick((0, 1, 2))) if touched else (0, 0)
        reach, whole = (window - 1) * inner + 1, (size - 1) * base + 1
        high += max(0, reach - whole - low - high)
        entries = (window, d.pick((1, 1, 2, 3)) if touched else 1, (low, high), base, inner)
        for name, entry in zip(found, entries, strict=True):
            found[name].append(entry)
    return {name: tuple(entries) for name, entries in found.items()}


@family
def reduce_window(d: Drawer) -> Case:
    """Any window, stride, padding and dilations, from any initial value."""
    dtype, shape = d.pick((*FLOATS, *INTEGERS, "bool")), d.shape(1, 4, 512)
    name, body = computation(d, dtype)
    start, windows = initial(d, dtype), window_attributes(d, shape)

    def function(x: Any) -> Any:
        # jax takes the body for a known monoid, and its gradient rule, only with a literal start
        return lax.reduce_window(x, jnp.asarray(start), body, **windows)

    return d.case(
        f"reduce_window {name} {windows} {dtype} from {start}", function, [d.operand(shape, dtype, "whole")], [len(shape)]
    )


_LOW = (None, None, -np.inf, np.inf, np.nan)
"""What stands in place of small elements: what fills a window may be what padding is filled with."""


@family
def pooling(d: Drawer) -> Case:
    """Pooling by sum, maximum and minimum, with its gradient, along dimensions that are split."""
    shape, which = d.shape(1, 4, 512), d.pick(("max", "add", "min"))
    windows, low = window_attributes(d, shape, dilated=False), d.pick(_LOW)
    body, start = {"max": (lax.max, -jnp.inf), "min": (lax.min, jnp.inf), "add": (lax.add, 0.0)}[which]

    def function(x: Any) -> Any:
        def pooled(x: Any) -> Any:
            return lax.reduce_window(x, start, body, windows["window_dimensions"], windows["window_strides"], windows["padding"])

        x = x if low is None else jnp.where(x > 0.3, x, low)
        result, scatter = jax.vjp(pooled, x)
        return result, *scatter(jnp.where(jnp.isfinite(result), result, 2.0))

    return d.case(f"pooling {which} {windows} {low=}", function, [d.operand(shape, "float32")], [len(shape)] * 2, 1e-4)


@family
def cumulative(d: Drawer) -> Case:
    """cumsum and its kin from either end, with gradients."""
    name = d.pick(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"))
    dtype = d.pick(("float32", "float64", "bfloat16") if name == "cumlogsumexp" else (*FLOATS, *INTEGERS[:4], *INTEGERS[5:8]))
    shape, reverse = d.shape(1, 3), d.flag()
    axis = d.integer(0, len(shape) - 1)
    function = lambda x: getattr(lax, name)(x, axis=axis, reverse=reverse)  # noqa: E731
    if d.flag() and dtype in ("float32", "float64"):
        function = jax.grad(lambda x: jnp.sum(getattr(lax, name)(x, axis=axis, reverse=reverse) ** 2))
    tolerance = {"bfloat16": 0.1, "float16": 2e-2, "float32": 1e-4}.get(dtype)
    return d.case(f"{name} {axis} {reverse=} {dtype}", function, [d.operand(shape, dtype, "whole")], [len(shape)], tolerance)


@family
def select_and_scatter(d: Drawer) -> Case:
    """By the largest or the smallest, adding or multiplying, overlapping windows, padding, any initial value, with ties."""
    dtype, shape = d.pick(("float32", "float64", "int32")), d.shape(1, 3, 256)
    window, strides, padding, counts = [], [], [], []
    for size in shape:
        touched = d.flag()
        width = min(d.pick((1, 2, 3)), size) if touched else 1
        stride = d.pick((1, 2, 3)) if touched else 1
        low, high = (d.pick((0, 1)), d.pick((0, 1))) if width > 1 else (0, 0)
        window.append(width)
        strides.append(stride)
        padding.append((low, high))
        counts.append((size + low + high - width) // stride + 1)
    compare, combine = d.pick(("GE", "LE", "GT", "NE", "LT")), d.pick(("add", "multiply", "maximum"))
    low = d.pick((None, np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype == "int32" else _LOW)
    start = d.pick((0, 1, 3))
    kind, source, scalar = tensor(shape, dtype), tensor(counts, dtype), tensor((), dtype)
    value = f"{start}" if dtype == "int32" else f"{start}.0"
    edges = "dense<[" + ", ".join(f"[{low}, {high}]" for low, high in padding) + f"]> : tensor<{len(shape)}x2xi64>"
    body = f"""%c = stablehlo.constant dense<{value}> : {scalar}
      %r = "stablehlo.select_and_scatter"(%0, %1, %c) ({{ ^bb0(%a: {scalar}, %b: {scalar}):
      %s = stablehlo.compare {compare}, %a, %b : ({scalar}, {scalar}) -> tensor<i1>
      stablehlo.return %s : tensor<i1> }}, {{ ^bb0(%a: {scalar}, %b: {scalar}):
      %s = stablehlo.{combine} %a, %b : {scalar}
      stablehlo.return %s : {scalar} }}) {{window_dimensions = array<i64: {str(window)[1:-1]}>,
      window_strides = array<i64: {str(strides)[1:-1]}>, padding = {edges}}} : ({kind}, {source}, {scalar}) -> {kind}"""
    selected = raw(body, [(shape, dtype), (counts, dtype)], [(shape, dtype)])

    def function(x: Any, y: Any) -> Any:
        return selected(x if low is None else jnp.where(x > 0, x, jnp.asarray(low, dtype)), y)

    what = f"select_and_scatter {compare} {combine} {window} {strides} {padding} {dtype} from {start} {low=}"
    return d.case(what, function, [d.operand(shape, dtype), d.operand(counts, dtype, "whole")], [len(shape)], 1e-4)


@family
def reduce_window_variadic(d: Drawer) -> Case:
    """Two operands in one window: a sum, and a maximum. The sum starts from 0: XLA leaves the padding of several operands out,
    where the specification has it hold the initial value (the interpreter's tests have one that starts from 1)."""
    shape = d.shape(1, 3, 512)
    windows = window_attributes(d, shape)
    starts = (np.float32(0), np.int32(d.pick((0, 3))))

    def function(x: Any, y: Any) -> Any:
        return lax.reduce_window((x, y), starts, lambda a, b: (a[0] + b[0], lax.max(a[1], b[1])), **windows)

    operands = [d.operand(shape, "float32", "whole"), d.operand(shape, "int32")]
    return d.case(f"reduce_window of two {windows} from {starts}", function, operands, [len(shape)] * 2)


@family
def dilated_patches(d: Drawer) -> Case:
    """Patches and resizes, which JAX makes of windows, gathers and products."""
    size, width = d.pick((8, 10, 12)), d.pick((4, 5, 8))
    shape = (2, size, width, 2)
    which = d.pick(("patches", "resize", "resize nearest"))

    def function(x: Any) -> Any:
        if which == "patches":
            return lax.conv_general_dilated_patches(
                x, (3, 2), (2, 1), "SAME", rhs_dilation=(1, 2), dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        return jax.image.resize(x, (2, size * 2, width, 2), "bilinear" if which == "resize" else "nearest")

    return d.case(f"{which} {shape}", function, [d.operand(shape, "float32")], [4])
