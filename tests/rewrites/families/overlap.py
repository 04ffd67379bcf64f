"""Programs of one device that passes of `overlap/` take, and steps that write over parameters."""

from __future__ import annotations

from random import Random

from tests.rewrites.families.collectives import pointwise, uniform
from tests.rewrites.spmd import Axes, Local, Value, Writer, draw_axes, draw_element, draw_writer


def collective_matmul(random: Random) -> Local:
    """What is gathered or reduce-scattered beside a product."""
    w, element = draw_writer(random), draw_element(random)
    axes = draw_axes(random, w.mesh)
    count = w.size(axes)
    what = random.choice(["rows", "contracted", "scattered", "scattered columns", "both", "masked"])
    if what == "rows":
        x = w.all_gather(w.argument((2, 8), element), axes, 0)
        result = w.dot(x, w.argument((8, 4), element))
    elif what == "contracted":
        x = w.all_gather(w.argument((8, 2), element), axes, 1)
        result = w.dot(x, w.argument((2 * count, 4), element))
    elif what == "masked":
        x = w.argument((8, 2), element)
        keep = w.compare("GT", x, w.constant(0.0, x.shape, element))
        x = w.all_gather(
            w.select(keep, w.binary("divide", x, uniform(random, w, x.shape, element)), w.constant(0.0, x.shape, element)),
            axes,
            1,
        )
        result = w.dot(x, w.argument((2 * count, 4), element))
    elif what == "both":
        x = w.all_gather(w.argument((2, 8), element), axes, 0)
        hidden = pointwise(random, w, w.dot(x, w.argument((8, 16), element)))
        result = w.reduce_scatter(w.dot(hidden, w.argument((16, 8), element)), axes, 0)
    else:
        product = w.dot(w.argument((8, 8), element), w.argument((8, 16), element))
        result = w.reduce_scatter(product, axes, 1 if "columns" in what else 0)
    return Local(what, w, (result,), options=f"least=1 pieces={random.choice([2, 3, 4])}")


def rows_in_pieces(random: Random) -> Local:
    """Rows that are gathered, multiplied, and reduce-scattered; in between something of each row."""
    w, element = draw_writer(random), draw_element(random)
    axes = draw_axes(random, w.mesh)
    own = w.argument((4, 4), element)
    x = w.all_gather(own, axes, 0)
    hidden = w.dot(x, w.argument((4, 8), element))
    what = random.choice(["tanh", "divided", "masked", "largest", "scaled"])
    if what == "tanh":
        hidden = pointwise(random, w, hidden)
    elif what == "scaled":
        hidden = w.binary("multiply", hidden, w.broadcast(uniform(random, w, (8,), element), hidden.shape, (1,)))
    elif what == "largest":
        hidden = w.binary("subtract", hidden, w.broadcast(w.reduce(hidden, 1, "maximum"), hidden.shape, (0,)))
    else:
        total = w.reduce(w.unary("abs", hidden), 1)
        hidden = w.binary("divide", hidden, w.broadcast(total, hidden.shape, (0,)))
    if what == "masked":
        keep = w.compare("GT", hidden, w.constant(0.0, hidden.shape, element))
        hidden = w.select(keep, hidden, w.constant(0.0, hidden.shape, element))
    y = w.reduce_scatter(w.dot(hidden, w.argument((8, 4), element)), axes, 0)
    results = [w.binary("add", own, y) if random.random() < 0.5 else y]
    if random.random() < 0.4:
        results.append(w.all_reduce(w.dot(w.transpose(x, (1, 0)), hidden), axes))
    return Local(what, w, tuple(results), options=f"least=1 pieces={random.choice([2, 4])}")


def prefetch_gathers(random: Random) -> Local:
    """Layers whose weights are gathered in each iteration."""
    w, element = draw_writer(random), draw_element(random)
    axes = draw_axes(random, w.mesh)
    count = w.size(axes)
    rows = max(1, 8 // count)
    stack = w.argument((4, rows, rows * count), element)
    first = random.choice(["", " again=true"])
    double = random.random() < 0.4
    x = w.argument((4, rows * count), element)
    iterations = random.choice([2, 4, 4, 4, 4, 1])

    def body(number: Value, y: Value, weights: Value) -> tuple[Value, ...]:
        z = w.unary("tanh", w.dot(y, w.all_gather(w.row(weights, number), axes, 0)))
        if double:
            z = w.binary("add", y, w.dot(z, w.all_gather(w.row(weights, number), axes, 0)))
        return z, weights

    result, _ = w.loop(iterations, [x, stack], body)
    return Local(f"{iterations} layers", w, (result,), options=f"least=0{first}")


def update_whole(random: Random) -> Local:
    """A parameter that all devices have and of which each updates a piece; its new value is written over it."""
    w, element = draw_writer(random), draw_element(random)
    axes = draw_axes(random, w.mesh)
    count, dim = w.size(axes), random.choice([0, 1])
    shape = (8, 16)
    piece = tuple(size // count if each == dim else size for each, size in enumerate(shape))
    donated = random.random() < 0.9
    parameter = w.argument(shape, element, whole=True, donated=donated)
    term = w.argument(piece, random.choice([element, "f32"]) if element == "bf16" else element)
    for _ in range(random.choice([0, 1, 2])):
        scale = w.constant(random.choice([0.5, 0.1, 0.0, 3.0]), piece, term.element)
        term = w.binary(random.choice(["multiply", "divide", "add"]), term, scale)
    if random.random() < 0.3:
        term = w.unary(random.choice(["tanh", "negate"]), term)
    term = w.convert(term, element) if term.element != element else term
    own = w.all_slice(parameter, axes, dim)
    how = random.choice(["subtract", "add", "decayed", "masked", "multiply"])
    if how == "decayed":
        own = w.binary("multiply", own, w.constant(0.9, piece, element))
    if how == "masked":
        keep = w.compare("GT", own, w.constant(0.0, piece, element))
        term = w.select(keep, term, w.constant(0.0, piece, element))
    new = w.binary(how if how in ("subtract", "add", "multiply") else "subtract", own, term)
    return Local(f"{how}{'' if donated else ' not donated'}", w, (w.all_gather(new, axes, dim),))


def keep_schedule(random: Random) -> Local:
    """A backward pass: the gradient of a weight is reduced along one axis, that of activations along another."""
    w, element = Writer(random.choice([(2, 4), (4, 2)])), draw_element(random)
    axes: list[Axes] = random.choice([[(0,), (1,)], [(1,), (0,)]])
    size = 8
    cotangent, weight, x = (w.argument((size, size), element) for _ in range(3))
    back = w.all_reduce(w.dot(cotangent, weight), axes[0])
    gradient = w.dot(w.transpose(x, (1, 0)), cotangent)
    if random.random() < 0.5:
        gradient = w.binary("multiply", gradient, w.constant(random.choice([0.1, 0.0]), gradient.shape, element))
    reduced = w.all_reduce(gradient, axes[1])
    before = w.dot(back, weight)
    if random.random() < 0.4:
        before = w.all_reduce(w.dot(w.unary("tanh", before), weight), axes[0])
    return Local("backward", w, (reduced, before), options="machine={slow h100} least=0")
