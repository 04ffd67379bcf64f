"""Softmaxes over rows that are sharded: maxima over devices that may stay floats (`largest-as-floats`)."""

from __future__ import annotations

from math import inf
from random import Random

from tests.rewrites.spmd import Axes, Local, Value, Writer, draw_axes, draw_element, draw_writer


def _along_rows(w: Writer, x: Value, row: Value) -> Value:
    """What a row has, for each of its elements."""
    return w.broadcast(row, x.shape, (0,))


def _largest(w: Writer, x: Value, axes: Axes) -> Value:
    return w.all_reduce(w.reduce(x, 1, "maximum"), axes, "max")


def _exponentials(w: Writer, x: Value, largest: Value) -> Value:
    return w.unary("exponential", w.binary("subtract", x, _along_rows(w, x, largest)))


def _sum(w: Writer, x: Value, axes: Axes) -> Value:
    return w.all_reduce(w.reduce(x, 1), axes)


def _kept(random: Random, w: Writer, x: Value) -> Value:
    """What is not masked: an argument, or what is computed of the rows."""
    if random.random() < 0.7:
        return w.argument(x.shape, "i1")
    return w.compare("GT", x, w.constant(0.0, x.shape, x.element))


MISSES = ("returned", "exponentials", "counted", "hidden sum")
"""Of which a NaN would be lost somewhere."""

FOLLOWED = ("plain", "plain", "product", "scattered", "logarithm", "hidden after", "hidden rows", "guarded", "online", "scaled")


def softmaxes(random: Random) -> Local:
    """A softmax of rows, perhaps masked, and what follows."""
    w, element = draw_writer(random), draw_element(random)
    axes = draw_axes(random, w.mesh)
    x = w.argument((8, 4), element)
    what = random.choice(FOLLOWED if random.random() < 0.8 else MISSES)
    zeros, kept = w.constant(0.0, x.shape, element), _kept(random, w, x)
    masked = random.random() < 0.5
    scores = w.select(kept, x, w.constant(-inf, x.shape, element)) if masked else x
    largest = _largest(w, scores, axes)
    if what == "guarded":
        known = w.compare("GT", largest, w.constant(-inf, largest.shape, element))
        largest = w.select(known, largest, w.constant(0.0, largest.shape, element))
    if what == "online":
        own = w.reduce(scores, 1, "maximum")
        factor = w.unary("exponential", w.binary("subtract", own, largest))
        exponentials = _exponentials(w, scores, own)
        total = w.all_reduce(w.binary("multiply", w.reduce(exponentials, 1), factor), axes)
        exponentials = w.binary("multiply", exponentials, _along_rows(w, x, factor))
    else:
        exponentials = _exponentials(w, scores, largest)
        if what == "hidden sum":
            exponentials = w.select(kept, exponentials, zeros)
        total = _sum(w, exponentials, axes)
    if what == "exponentials":
        return Local(what, w, (exponentials,))
    if what == "counted":
        return Local(what, w, (w.compare("GT", exponentials, zeros), total))
    if what == "logarithm":
        logarithm = w.unary("log", _along_rows(w, x, total))
        shifted = w.binary("subtract", scores, _along_rows(w, x, largest))
        return Local(what, w, (w.binary("subtract", shifted, logarithm),))
    weights = w.binary("divide", exponentials, _along_rows(w, x, total))
    if what == "hidden after":
        weights = w.select(kept, weights, zeros)
    elif what == "hidden rows":
        first = w.broadcast(w.slice(w.argument((8, 1), "i1"), 1, 0, 1), (8, 4), (0, 1))
        weights = w.select(first, weights, zeros)
    elif what == "scaled":
        weights = w.binary("multiply", weights, zeros)
    elif what in ("product", "scattered"):
        product = w.dot(weights, w.argument((4, 16), element))
        weights = w.reduce_scatter(product, axes, 1) if what == "scattered" else w.all_reduce(product, axes)
    results = (weights, largest) if what == "returned" else (weights,)
    return Local(f"{what}{' masked' * masked}", w, results)
