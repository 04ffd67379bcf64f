"""Random programs of mesh collectives and local operations, as text: what the collective passes are tested on.

Each device holds other numbers. They are small integers in wide types, so that sums are exact in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from random import Random

MESH = (2, 4)
LARGEST = 128
"""Elements of the largest tensor."""


@dataclass(frozen=True)
class Value:
    """An SSA value."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "f64"

    @property
    def type(self) -> str:
        return f"tensor<{'x'.join([*map(str, self.shape), self.dtype])}>"

    def like(self, name: str, shape: tuple[int, ...] | None = None, dtype: str | None = None) -> Value:
        return Value(name, self.shape if shape is None else shape, dtype or self.dtype)


def group_size(axes: tuple[int, ...]) -> int:
    return prod(MESH[axis] for axis in axes)


@dataclass
class Writer:
    """A program under construction."""

    random: Random
    favoured: tuple[str, ...] = ()
    """Names of steps that are to occur more often."""
    lines: list[str] = field(default_factory=list)
    count: int = 0

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def emit(self, value: Value, text: str) -> Value:
        self.lines.append(f"{value.name} = {text}")
        return value

    def constant(self, value: Value | None = None) -> Value:
        """A splat of the type of `value`, or a scalar zero."""
        made = Value(self.fresh(), value.shape if value else (), value.dtype if value else "f64")
        number = self.random.choice([2, 1, -1]) if value else 0
        return self.emit(made, f"stablehlo.constant dense<{number}{'.0' if made.dtype[0] == 'f' else ''}> : {made.type}")

    def block(self, values: list[Value], steps: int, depth: int) -> list[Value]:
        """`steps` operations on `values`, which mostly use what came last; returns all values."""
        values = list(values)
        known = STEPS if depth else STEPS[:-1]
        known = [*known, *(12 * [step for step in known if step.__name__ in self.favoured])]
        for _ in range(steps):
            made = None
            while made is None:
                made = self.random.choice(known)(self, values)
            values.append(made)
        return values

    def pick(self, values: list[Value], rank: int | None = None, floating: bool = False) -> Value | None:
        fits = [v for v in values if (rank is None or len(v.shape) == rank) and (not floating or v.dtype[0] == "f")]
        if not fits:
            return None
        return fits[max(self.random.randrange(len(fits)), self.random.randrange(len(fits)))]

    def axes(self) -> tuple[int, ...]:
        return self.random.choice([(0,), (1,), (0, 1), (1, 0)])


def all_reduce(w: Writer, values: list[Value]) -> Value | None:
    x = w.pick(values)
    if x is None:
        return None
    kind = w.random.choice(["sum", "sum", "max", "min"])
    groups = f"on @m mesh_axes = {list(w.axes())} reduction = {kind}"
    return w.emit(x.like(w.fresh()), f"mesh.all_reduce {x.name} {groups} : {x.type} -> {x.type}")


def _resizing(w: Writer, values: list[Value], name: str, attr: str, grows: bool, extra: str = "") -> Value | None:
    x = w.pick([v for v in values if v.shape])
    if x is None:
        return None
    axes, dim = w.axes(), w.random.randrange(len(x.shape))
    count = group_size(axes)
    if (grows and prod(x.shape) * count > LARGEST) or (not grows and x.shape[dim] % count):
        return None
    shape = tuple((size * count if grows else size // count) if each == dim else size for each, size in enumerate(x.shape))
    made = x.like(w.fresh(), shape)
    return w.emit(made, f"mesh.{name} {x.name} on @m mesh_axes = {list(axes)} {extra}{attr} = {dim} : {x.type} -> {made.type}")


def all_gather(w: Writer, values: list[Value]) -> Value | None:
    return _resizing(w, values, "all_gather", "gather_axis", grows=True)


def all_slice(w: Writer, values: list[Value]) -> Value | None:
    return _resizing(w, values, "all_slice", "slice_axis", grows=False)


def reduce_scatter(w: Writer, values: list[Value]) -> Value | None:
    return _resizing(w, values, "reduce_scatter", "scatter_axis", grows=False)


def all_to_all(w: Writer, values: list[Value]) -> Value | None:
    x = w.pick(values, rank=2)
    if x is None:
        return None
    axes, split = w.axes(), w.random.randrange(2)
    count = group_size(axes)
    if x.shape[split] % count:
        return None
    shape = tuple(size // count if dim == split else size * count for dim, size in enumerate(x.shape))
    made = x.like(w.fresh(), shape)
    dims = f"split_axis = {split} concat_axis = {1 - split}"
    return w.emit(made, f"mesh.all_to_all {x.name} on @m mesh_axes = {list(axes)} {dims} : {x.type} -> {made.type}")


def shift(w: Writer, values: list[Value]) -> Value | None:
    x = w.pick([v for v in values if v.shape])
    if x is None:
        return None
    axis = w.random.randrange(len(MESH))
    offset = w.random.choice([each for each in range(-MESH[axis], MESH[axis] + 1) if each])
    rotate = w.random.choice(["", " rotate"])
    text = f"mesh.shift {x.name} on @m mesh_axes = [{axis}] shift_axis = {axis} offset = {offset}{rotate}"
    return w.emit(x.like(w.fresh()), f"{text} : {x.type} -> {x.type}")


def relabelling(w: Writer, values: list[Value]) -> Value | None:
    x = w.pick([v for v in values if v.shape])
    if x is None:
        return None
    text = f"mesh.permute {x.name} on @m mesh_axes = [0, 1] target_axes = [1, 0]"
    return w.emit(x.like(w.fresh()), f"{text} : {x.type} -> {x.type}")


def listed(w: Writer, values: list[Value]) -> Value | None:
    """A permute of a few pairs of devices: the same in all groups along an axis, or any."""
    x = w.pick(values)
    if x is None:
        return None
    axes = w.random.choice([(0,), (1,), (0, 1)])
    count = w.random.randint(1, group_size(axes))
    members = range(group_size(axes))
    inside = list(zip(w.random.sample(members, count), w.random.sample(members, count), strict=True))
    first, stride = {(0,): (range(MESH[1]), MESH[1]), (1,): (range(0, prod(MESH), MESH[1]), 1), (0, 1): ((0,), 1)}[axes]
    pairs = [[start + source * stride, start + target * stride] for start in first for source, target in inside]
    channel = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
    attrs = f"<{{{channel}, source_target_pairs = dense<{pairs}> : tensor<{len(pairs)}x2xi64>}}>"
    return w.emit(x.like(w.fresh()), f'"stablehlo.collective_permute"({x.name}) {attrs} : ({x.type}) -> {x.type}')


def same_again(w: Writer, values: list[Value]) -> Value | None:
    """A collective that stands there already, or the same of another value of that type."""
    lines = [line for line in w.lines if " = mesh." in line and "->" in line]
    if not lines:
        return None
    line = w.random.choice(lines)
    operand, result = line.split()[3], line.split("-> ")[1]
    *shape, dtype = result.removeprefix("tensor<").removesuffix(">").split("x")
    source = line.split(" : ")[1].split(" ->")[0]
    known = [v for v in values if v.type == source]
    if not known:
        return None
    other = w.random.choice(known)
    text = line.split(" = ", 1)[1].replace(f"{operand} on", f"{other.name} on")
    return w.emit(Value(w.fresh(), tuple(map(int, shape)), dtype), text)


def unary(w: Writer, values: list[Value]) -> Value | None:
    x = w.pick(values)
    return w.emit(x.like(w.fresh()), f"stablehlo.{w.random.choice(['negate', 'abs'])} {x.name} : {x.type}") if x else None


def convert(w: Writer, values: list[Value]) -> Value | None:
    x = w.pick(values)
    if x is None:
        return None
    made = x.like(w.fresh(), dtype=w.random.choice([each for each in ("f64", "f32", "i64") if each != x.dtype]))
    return w.emit(made, f"stablehlo.convert {x.name} : ({x.type}) -> {made.type}")


def binary(w: Writer, values: list[Value]) -> Value | None:
    x = w.pick(values)
    if x is None:
        return None
    y = w.pick([v for v in values if v.type == x.type])
    assert y is not None
    name = w.random.choice(["add", "add", "add", "subtract", "maximum", "minimum"])
    return w.emit(x.like(w.fresh()), f"stablehlo.{name} {x.name}, {y.name} : {x.type}")


def scale(w: Writer, values: list[Value]) -> Value | None:
    x = w.pick(values)
    if x is None:
        return None
    factor = w.constant(x)
    return w.emit(x.like(w.fresh()), f"stablehlo.multiply {x.name}, {factor.name} : {x.type}")


def broadcast(w: Writer, values: list[Value]) -> Value | None:
    x = w.pick([v for v in values if len(v.shape) < 2])
    if x is None:
        return None
    if w.random.random() < 0.3:
        x = w.constant(x)
    size = w.random.choice([1, 2, 4, 8])
    place = w.random.randrange(2) if x.shape else 0
    shape = (size,) if not x.shape else (size, *x.shape) if place else (*x.shape, size)
    if prod(shape) > LARGEST:
        return None
    made = x.like(w.fresh(), shape)
    dims = [place] if x.shape else []
    return w.emit(made, f"stablehlo.broadcast_in_dim {x.name}, dims = {dims} : ({x.type}) -> {made.type}")


def reduce(w: Writer, values: list[Value]) -> Value | None:
    x = w.pick(values, rank=w.random.choice([1, 2]))
    if x is None or x.dtype != "f64":
        return None
    dim = w.random.randrange(len(x.shape))
    start = w.constant()
    made = x.like(w.fresh(), tuple(size for each, size in enumerate(x.shape) if each != dim))
    name = w.random.choice(["add", "add", "maximum"])
    head = f"stablehlo.reduce({x.name} init: {start.name}) applies stablehlo.{name} across dimensions = [{dim}]"
    return w.emit(made, f"{head} : ({x.type}, tensor<f64>) -> {made.type}")


def piece(w: Writer, values: list[Value]) -> Value | None:
    x = w.pick([v for v in values if v.shape and max(v.shape) > 1])
    if x is None:
        return None
    dim = w.random.choice([each for each, size in enumerate(x.shape) if size > 1])
    stride = w.random.choice([1, 2])
    start = w.random.randrange(2)
    bounds = [f"{start}:{size}:{stride}" if each == dim else f"0:{size}" for each, size in enumerate(x.shape)]
    shape = tuple(-(-(size - start) // stride) if each == dim else size for each, size in enumerate(x.shape))
    made = x.like(w.fresh(), shape)
    return w.emit(made, f"stablehlo.slice {x.name} [{', '.join(bounds)}] : ({x.type}) -> {made.type}")


def reshape(w: Writer, values: list[Value]) -> Value | None:
    """Two dimensions made one, or one made two."""
    x = w.pick([v for v in values if v.shape])
    if x is None:
        return None
    shape = (prod(x.shape),)
    if len(x.shape) == 1 or w.random.random() < 0.5:
        minor = w.random.choice([each for each in (1, 2, 4, 8) if prod(x.shape) % each == 0])
        shape = (prod(x.shape) // minor, minor)
    made = x.like(w.fresh(), shape)
    return w.emit(made, f"stablehlo.reshape {x.name} : ({x.type}) -> {made.type}")


def transpose(w: Writer, values: list[Value]) -> Value | None:
    x = w.pick(values, rank=2)
    if x is None:
        return None
    made = x.like(w.fresh(), x.shape[::-1])
    return w.emit(made, f"stablehlo.transpose {x.name}, dims = [1, 0] : ({x.type}) -> {made.type}")


def pad(w: Writer, values: list[Value]) -> Value | None:
    x = w.pick([v for v in values if v.shape and v.dtype == "f64"])
    if x is None or 4 * prod(x.shape) > LARGEST:
        return None
    dim, zero = w.random.randrange(len(x.shape)), w.constant()
    zeros = [0] * len(x.shape)
    high = [int(each == dim) for each in range(len(x.shape))]
    made = x.like(w.fresh(), tuple(size + more for size, more in zip(x.shape, high, strict=True)))
    head = f"stablehlo.pad {x.name}, {zero.name}, low = {zeros}, high = {high}, interior = {zeros}"
    return w.emit(made, f"{head} : ({x.type}, tensor<f64>) -> {made.type}")


def dot(w: Writer, values: list[Value]) -> Value | None:
    x = w.pick(values, rank=2)
    y = w.pick([v for v in values if x and len(v.shape) == 2 and v.shape[0] == x.shape[1] and v.dtype == x.dtype])
    if x is None or y is None or x.shape[0] * y.shape[1] > LARGEST:
        return None
    made = x.like(w.fresh(), (x.shape[0], y.shape[1]))
    text = f"stablehlo.dot_general {x.name}, {y.name}, contracting_dims = [1] x [0] : ({x.type}, {y.type}) -> {made.type}"
    return w.emit(made, text)


def loop(w: Writer, values: list[Value]) -> Value | None:
    """A counted loop. Some carried values are handed on as they are, some are added to, some are replaced."""
    carried = [w.random.choice(values) for _ in range(w.random.choice([1, 2, 3]))]
    zero, one, limit = (Value(w.fresh(), (), "i32") for _ in range(3))
    for value, number in ((zero, 0), (one, 1), (limit, w.random.choice([1, 2, 3]))):
        w.emit(value, f"stablehlo.constant dense<{number}> : {value.type}")
    step, result = Value(w.fresh(), (), "i32"), w.fresh()
    inside = [value.like(w.fresh()) for value in carried]
    names = [(step, zero), *zip(inside, carried, strict=True)]
    types = ", ".join(value.type for value, _ in names)
    heads = ", ".join(f"{value.name} = {start.name}" for value, start in names)
    w.lines.append(f"{result}:{len(names)} = stablehlo.while({heads}) : {types}")
    go, following = w.fresh(), w.fresh()
    w.lines.append("cond {")
    w.lines.append(f"{go} = stablehlo.compare LT, {step.name}, {limit.name} : (tensor<i32>, tensor<i32>) -> tensor<i1>")
    w.lines.append(f"stablehlo.return {go} : tensor<i1>\n}} do {{")
    w.lines.append(f"{following} = stablehlo.add {step.name}, {one.name} : tensor<i32>")
    reachable = [v for v in values if w.random.random() < 0.5] or values[-1:]
    free = reachable if w.random.random() < 0.5 else [*reachable, *inside]
    computed = w.block(free, w.random.choice([2, 3, 4]), 0)
    yielded = []
    for value in inside:
        fits = [v for v in computed[len(free) :] if v.type == value.type]
        choice = w.random.random()
        if choice < 0.2 or not fits:
            yielded.append(value)
        elif choice < 0.4:
            yielded.append(w.random.choice(fits))
        else:
            name = w.random.choice(["add", "add", "add", "maximum", "subtract"])
            other = w.random.choice(fits)
            left, right = (value, other) if name == "subtract" or w.random.random() < 0.5 else (other, value)
            yielded.append(w.emit(value.like(w.fresh()), f"stablehlo.{name} {left.name}, {right.name} : {value.type}"))
    w.lines.append(f"stablehlo.return {', '.join([following, *(v.name for v in yielded)])} : {types}\n}}")
    number = w.random.randrange(len(carried))
    found = carried[number].like(f"{result}#{number + 1}")
    # Named anew, as `same_again` reads operands from text.
    return w.emit(found.like(w.fresh()), f"stablehlo.abs {found.name} : {found.type}")


STEPS = [
    all_reduce,
    all_reduce,
    all_gather,
    all_gather,
    reduce_scatter,
    all_slice,
    all_to_all,
    shift,
    relabelling,
    listed,
    same_again,
    unary,
    convert,
    binary,
    binary,
    scale,
    broadcast,
    reduce,
    piece,
    reshape,
    transpose,
    pad,
    dot,
    loop,
]

ARGUMENTS = (Value("%x", (8, 4)), Value("%y", (8, 4)), Value("%z", (4, 8)), Value("%u", (8,)), Value("%c", (4, 2), "i64"))


def program(seed: int, steps: int, favoured: tuple[str, ...] = ()) -> str:
    """A module of one function `main` for 8 replicas, the same for the same arguments; steps of `favoured` names occur most."""
    w = Writer(Random(seed), favoured)
    values = w.block(list(ARGUMENTS), steps, 1)
    returned = values[len(ARGUMENTS) :][-3:]
    heads = ", ".join(f"{value.name}: {value.type}" for value in ARGUMENTS)
    types = ", ".join(value.type for value in returned)
    body = "\n".join([*w.lines, f"return {', '.join(value.name for value in returned)} : {types}"])
    return (
        "module attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 8 : i32} {\n"
        f"mesh.mesh @m(shape = {'x'.join(map(str, MESH))})\n"
        f"func.func public @main({heads}) -> ({types}) {{\n{body}\n}}\n}}"
    )
