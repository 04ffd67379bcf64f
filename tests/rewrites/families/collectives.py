"""Programs of one device that the passes of `collectives/` take."""

from __future__ import annotations

from random import Random

from tests.rewrites.spmd import Axes, Local, Value, Writer, draw_axes, draw_element, draw_writer

FACTORS = (0.5, -2.0, 3.0)
LINEAR = ("add", "add", "subtract")


def everywhere(w: Writer) -> Axes:
    """All axes."""
    return tuple(range(len(w.mesh)))


def uniform(random: Random, w: Writer, shape: tuple[int, ...], element: str) -> Value:
    """What all devices hold alike: a number, or the largest of what they have. No infinity, which may scale a partial
    value to NaN (docs/propagation.md)."""
    if random.random() < 0.5:
        return w.constant(random.choice(FACTORS), shape, element)
    if shape and random.random() < 0.5:
        row = w.all_reduce(w.argument(shape[:1], element, special=False), everywhere(w), "max")
        return w.broadcast(row, shape, (0,))
    return w.all_reduce(w.argument(shape, element, special=False), everywhere(w), "max")


def pointwise(random: Random, w: Writer, x: Value) -> Value:
    """Some operation that computes element by element."""
    name = random.choice(["tanh", "negate", "abs", "multiply", "maximum"])
    if name in ("tanh", "negate", "abs"):
        return w.unary(name, x)
    return w.binary(name, x, w.constant(random.choice(FACTORS), x.shape, x.element))


def rearranged(random: Random, w: Writer, x: Value) -> Value:
    """A transpose or a reshape, or neither."""
    how = random.choice(["none", "transpose", "reshape"])
    if how == "transpose":
        return w.transpose(x, (1, 0))
    return w.reshape(x, (x.shape[0] * x.shape[1],)) if how == "reshape" else x


def start(random: Random, shape: tuple[int, ...] = (8, 16)) -> tuple[Writer, str, Value, Axes]:
    """A writer, an element type, a first argument, and axes."""
    w, element = draw_writer(random), draw_element(random)
    return w, element, w.argument(shape, element), draw_axes(random, w.mesh)


def all_reduce_folder(random: Random) -> Local:
    w, _, x, _ = start(random)
    if len(w.mesh) == 1:
        w.mesh = (2, 4)
    first, second = random.choice([((0,), (1,)), ((1,), (0,))])
    kind = random.choice(["sum", "max", "min"])
    other = kind if random.random() < 0.85 else "max" if kind == "sum" else "sum"
    return Local("two all-reduces", w, (w.all_reduce(w.all_reduce(x, first, kind), second, other),))


def all_reduce_reassociate(random: Random) -> Local:
    w, element, x, axes = start(random)
    what = random.choice(["join", "join", "slice", "dot", "scaled", "reduced", "extremes"])
    if what == "join":
        y = w.argument(x.shape, element)
        other = axes if random.random() < 0.85 else everywhere(w)
        result = w.binary(random.choice(LINEAR), w.all_reduce(x, axes), w.all_reduce(y, other))
    elif what == "slice":
        result = w.slice(w.all_reduce(x, axes, random.choice(["sum", "max"])), 1, 2, 10, random.choice([1, 2]))
    elif what == "dot":
        result = w.dot(w.all_reduce(x, axes), uniform(random, w, (16, 4), element))
    elif what == "scaled":
        y = w.all_reduce(w.argument(x.shape, element), axes)
        scaled = w.binary(random.choice(["multiply", "divide"]), w.all_reduce(x, axes), uniform(random, w, x.shape, element))
        result = w.binary("add", scaled, y)
    elif what == "reduced":
        result = w.reduce(w.all_reduce(x, axes), random.choice([0, 1]))
    else:
        kind, name = random.choice([("max", "maximum"), ("min", "minimum")])
        result = w.binary(name, w.all_reduce(x, axes, kind), w.all_reduce(w.argument(x.shape, element), axes, kind))
    return Local(what, w, (result,))


def all_reduce_split(random: Random) -> Local:
    w, element, x, axes = start(random)
    what = random.choice(["slice", "slice", "broadcast", "product", "nested"])
    if what == "slice":
        y = pointwise(random, w, w.all_reduce(x, axes, random.choice(["sum", "sum", "max"])))
        result = w.all_slice(y, axes, 0)
    elif what == "broadcast":
        row = w.all_reduce(w.argument((16,), element), axes)
        result = w.all_slice(w.unary("tanh", w.broadcast(row, (8, 16), (1,))), axes, 1)
    elif what == "product":
        y = w.argument((8, 16 // w.size(axes)), element)
        result = w.binary(random.choice(["multiply", "add", "maximum"]), w.all_reduce(x, axes), w.all_gather(y, axes, 1))
    else:
        y = w.argument(x.shape, element)
        result = w.binary("add", w.all_reduce(x, everywhere(w)), w.all_reduce(y, (0,)))
    return Local(what, w, (result,))


def reduce_scatter_reassociate(random: Random) -> Local:
    w, element, x, axes = start(random)
    kind = random.choice(["sum", "sum", "max"])
    one = w.reduce_scatter(x, axes, 1, kind)
    if random.random() < 0.6:
        y = w.argument(x.shape, element)
        other = w.reduce_scatter(y, axes, 1, kind if random.random() < 0.9 else "min")
        return Local("join", w, (w.binary("maximum" if kind == "max" else random.choice(LINEAR), one, other),))
    if random.random() < 0.5:
        return Local("transposed", w, (w.reduce(w.transpose(one, (1, 0)), 1, "maximum" if kind == "max" else "add"),))
    return Local("reduced", w, (w.reduce(one, 0, "maximum" if kind == "max" else "add"),))


def reduce_scatter_redirect(random: Random) -> Local:
    w, element, x, axes = start(random)
    y = w.reduce_scatter(x, axes, 1, random.choice(["sum", "max"]))
    split, concat = 0, 1
    if random.random() < 0.4:
        y, split, concat = w.transpose(y, (1, 0)), 1, 0
    if random.random() < 0.6:
        y = w.unary(random.choice(["negate", "tanh", "abs"]), y)
    if random.random() < 0.4:
        y = w.convert(y, "bf16" if element == "f32" else "f32")
    return Local("exchanged", w, (w.all_to_all(y, axes, split, concat),))


def reduction_move_up(random: Random) -> Local:
    w, element, x, axes = start(random)
    y, what = x, []
    for _ in range(random.choice([1, 2])):
        how = random.choice(["multiply", "divide", "negate", "transpose", "negated"])
        what.append(how)
        if how in ("multiply", "divide"):
            y = w.binary(how, y, uniform(random, w, y.shape, element))
        elif how == "negate":
            y = w.unary("negate", y)
        elif how == "transpose":
            y = w.transpose(y, (1, 0))
        else:
            y = w.broadcast(w.reduce(w.unary("negate", y), 0), y.shape, (1,)) if random.random() < 0.2 else y
            y = w.unary("negate", y)
    if random.random() < 0.3:
        y = w.reduce(w.unary("negate", x), 0)
        what = ["sum of negated"]
    scatters = random.random() < 0.4 and "transpose" not in what
    kind = "sum" if random.random() < 0.9 else "max"
    y = w.reduce_scatter(y, axes, 0, kind) if scatters else w.all_reduce(y, axes, kind)
    result = w.binary("subtract", w.argument(y.shape, element), y)
    return Local(" ".join([*what, "scattered" * scatters]), w, (result,))


def all_gather_move_down(random: Random) -> Local:
    w, element, x, axes = start(random, (8, 4))
    whole = w.all_gather(x, axes, 0)
    what = random.choice(["convert", "join", "reduce", "along", "norm", "select", "cut", "sliced"])
    if what == "convert":
        result = w.convert(whole, "bf16") if element == "f32" else pointwise(random, w, whole)
    elif what == "join":
        result = w.binary(random.choice(["add", "divide", "maximum"]), whole, w.all_gather(w.argument(x.shape, element), axes, 0))
    elif what == "reduce":
        result = w.reduce(whole, 1, random.choice(["add", "maximum"]))
    elif what == "along":
        result = w.reduce(pointwise(random, w, whole), 0, random.choice(["add", "maximum"]))
    elif what == "norm":
        total = w.reduce(w.binary("multiply", whole, whole), 1)
        result = w.binary("divide", whole, w.broadcast(total, whole.shape, (0,)))
        result = w.binary("multiply", result, w.broadcast(uniform(random, w, (4,), element), whole.shape, (1,)))
    elif what == "select":
        keep = w.compare("GT", whole, w.constant(0.0, whole.shape, element))
        total = w.broadcast(w.reduce(w.unary("abs", whole), 1), whole.shape, (0,))
        result = w.select(keep, w.binary("divide", whole, total), w.constant(0.0, whole.shape, element))
    elif what == "cut":
        result = w.binary("multiply", whole, uniform(random, w, whole.shape, element))
    else:
        result = w.slice(pointwise(random, w, whole), 1, 1, 4)
    return Local(what, w, (result,))


def all_gather_move_up(random: Random) -> Local:
    w, element = draw_writer(random), draw_element(random)
    axes = draw_axes(random, w.mesh)
    what = random.choice(["widened", "widened", "broadcast", "selected", "alike", "scaled"])
    if what in ("widened", "scaled"):
        y = w.convert(w.argument((8, 4), "bf16"), "f32")
        if what == "scaled":
            y = w.binary(random.choice(["multiply", "divide"]), y, w.constant(random.choice(FACTORS), y.shape, "f32"))
        return Local(what, w, (w.all_gather(y, axes, random.choice([0, 1])),))
    if what == "broadcast":
        y = w.broadcast(w.argument((8,), element), (3, 8), (1,))
        return Local(what, w, (w.all_gather(y, axes, random.choice([0, 1])),))
    if what == "selected":
        keep = w.argument((8, 4), "i1")
        y = w.select(keep, w.constant(1.0, (8, 4), element), w.constant(0.0, (8, 4), element))
        return Local(what, w, (w.all_gather(y, axes, 0),))
    x = w.all_reduce(w.argument((8, 4), element), everywhere(w))
    return Local(what, w, (w.all_gather(pointwise(random, w, x), axes, 0),))


def fold_collectives(random: Random) -> Local:
    w, _, x, axes = start(random)
    what = random.choice(["whole", "piece", "other piece", "twice", "part"])
    if what == "whole":
        result = w.all_gather(w.reduce_scatter(x, axes, 1), axes, 1)
    elif what == "piece":
        result = w.all_slice(w.all_gather(x, axes, 1), axes, random.choice([0, 1]))
    elif what == "other piece":
        result = w.all_slice(w.all_gather(x, axes, 1), axes, 0)
    elif what == "twice" and len(w.mesh) == 2:
        result = w.all_gather(w.all_gather(x, (1,), 1), (0,), 1)
    else:
        result = w.slice(w.all_gather(x, axes, 1), 0, 0, 2)
        result = w.all_slice(result, (0,), 1)
    return Local(what, w, (result,))


def merge_collectives(random: Random) -> Local:
    w, _, x, axes = start(random)
    what = random.choice(["gathers", "more axes", "reduced", "alike"])
    if what == "gathers":
        results = [w.all_gather(x, axes, 1), w.unary("tanh", w.all_gather(x, axes, 1))]
    elif what == "more axes" and len(w.mesh) == 2:
        results = [w.all_gather(x, (1,), 1), w.all_gather(x, random.choice([(0, 1), (1, 0)]), 1)]
    elif what == "reduced":
        kind = random.choice(["sum", "max"])
        results = [w.all_reduce(x, axes, kind), w.reduce_scatter(x, axes, 1, kind if random.random() < 0.9 else "min")]
    else:
        results = [w.all_reduce(x, axes), w.all_reduce(x, axes)]
    return Local(what, w, tuple(results))


def mesh_simplifications(random: Random) -> Local:
    w, _, x, axes = start(random)
    kind = random.choice(["sum", "max", "min"])
    y = w.all_reduce(x, axes, kind)
    if random.random() < 0.1:
        y = w.unary("tanh", y)
    return Local("sliced", w, (w.all_slice(y, axes, random.choice([0, 1])),))


def hoist_collectives(random: Random) -> Local:
    w, element, x, axes = start(random)
    y = w.argument(x.shape, element)
    kind = random.choice(["sum", "max"])
    inside = random.random() < 0.9

    def body(_: Value, carried: Value, other: Value) -> tuple[Value, Value]:
        one = w.all_reduce(other if inside else carried, axes, kind)
        return w.binary("subtract", w.unary("tanh", carried), one), other

    return Local("in a loop", w, tuple(w.loop(random.choice([1, 2, 3]), [x, y], body)))


def delay_reductions(random: Random) -> Local:
    w, element, x, axes = start(random)
    what = random.choice(["sum", "sum", "scattered", "scaled", "gathered", "widened", "max", "divided", "masked"])
    wide = "f32" if what == "widened" else element
    factor = uniform(random, w, x.shape, element) if what in ("scaled", "divided") else None
    zeros = w.constant(0.0, x.shape, element)
    mask = w.all_reduce(w.argument(x.shape, element), everywhere(w), "max") if what == "masked" else None
    shape = {"scattered": (8, 16 // w.size(axes)), "gathered": (8, 16 * w.size(axes))}.get(what, x.shape)
    begin = w.argument(shape, wide) if random.random() < 0.5 or what == "max" else w.constant(0.0, shape, wide)
    keeps = w.compare("GT", mask, zeros) if mask else None

    def body(_: Value, total: Value, term: Value) -> tuple[Value, Value]:
        following = w.unary("tanh", term)
        if what == "scattered":
            one = w.reduce_scatter(term, axes, 1)
        elif what == "gathered":
            one = w.all_gather(term, axes, 1)
        elif what == "max":
            return w.binary("maximum", total, w.all_reduce(term, axes, "max")), following
        else:
            one = w.all_reduce(term, axes)
        if factor is not None:
            one = w.binary("multiply" if what == "scaled" else "divide", one, factor)
        if keeps is not None:
            one = w.select(keeps, one, zeros)
        if what == "widened" and element != "f32":
            one = w.convert(one, "f32")
        return w.binary(random.choice(LINEAR), total, one), following

    return Local(what, w, tuple(w.loop(random.choice([2, 3]), [begin, x], body)))


def broadcast_in_loops(random: Random) -> Local:
    w, element, x, axes = start(random)
    row = w.broadcast(w.argument((16,), element), x.shape, (1,))

    def body(_: Value, carried: Value) -> tuple[Value]:
        return (w.binary(random.choice(["add", "multiply", "divide"]), carried, row),)

    return Local("rows", w, tuple(w.loop(random.choice([2, 3]), [w.all_reduce(x, axes)], body)))


def delay_slices(random: Random) -> Local:
    """The layers of a stack, in a loop or in two, one in the other; or some other use of the stack, for which its slice stays."""
    w, element, x, axes = start(random, (3, 8, 16))
    what = random.choice(["layers", "layers", "nested", "nested", "two dimensions", "two dimensions", "whole", "returned"])
    stack = w.all_slice(x, axes, 2)
    if what == "two dimensions":
        stack = w.all_slice(stack, axes, 1)
    total = w.argument(stack.shape[1:], element)

    def layer(number: Value, carried: Value, layers: Value) -> tuple[Value, Value]:
        row = w.row(w.unary("negate", layers) if what == "whole" else layers, number)
        return w.binary("add", w.unary("tanh", carried), row), layers

    def layers_of(_: Value, carried: Value, layers: Value) -> tuple[Value, Value]:
        return w.loop(3, [carried, layers], layer)[0], layers

    found = w.loop(2, [total, stack], layers_of) if what == "nested" else w.loop(3, [total, stack], layer)
    return Local(what, w, tuple(found if what == "returned" else found[:1]))


def merge_permutes(random: Random) -> Local:
    w, element, x, _ = start(random)
    axis = random.randrange(len(w.mesh))
    y = w.argument(x.shape, element)
    offsets = random.choice([(1, 1), (1, -1), (2, 2), (1, 2)])
    return Local(
        "shifts", w, (w.shift(x, axis, offsets[0]), w.shift(y, axis, offsets[1]), w.shift(w.unary("tanh", x), axis, offsets[0]))
    )


def combine_collectives(random: Random) -> Local:
    w, element, x, axes = start(random)
    y = w.argument((4, 16), element)
    name = random.choice(["all_reduce", "reduce_scatter", "all_gather", "all_to_all"])
    results = []
    for each in (x, y, w.unary("tanh", x)):
        if name == "all_reduce":
            results.append(w.all_reduce(each, axes))
        elif name == "all_to_all":
            results.append(w.all_to_all(each, axes, 1, 0))
        else:
            results.append(w.all_gather(each, axes, 1) if name == "all_gather" else w.reduce_scatter(each, axes, 1))
    return Local(name, w, tuple(results))
