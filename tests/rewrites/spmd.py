"""Drawn programs of one device of several, as mesh IR, and what all devices compute, on one: stacked arrays in numpy.

A `Writer` writes each operation as a line of IR and as a step on arrays whose first dimensions are those of the mesh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from random import Random

import jax.numpy as jnp
import numpy as np

from tests.rewrites.drawn import Argument, filled_with

Axes = tuple[int, ...]
Array = np.ndarray
Step = Callable[[dict[str, Array]], None]

ELEMENTS = {"f32": np.dtype(np.float32), "bf16": np.dtype(jnp.bfloat16), "i32": np.dtype(np.int32), "i1": np.dtype(np.bool_)}


@dataclass(frozen=True)
class Value:
    """An SSA value."""

    name: str
    shape: tuple[int, ...]
    element: str

    @property
    def type(self) -> str:
        return f"tensor<{'x'.join([*map(str, self.shape), self.element])}>"


@dataclass
class Writer:
    """A program under construction."""

    mesh: tuple[int, ...]
    arguments: list[Value] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    special: list[bool] = field(default_factory=list)
    "Of each argument, whether it may hold zeros, infinities and NaN."
    alike: list[bool] = field(default_factory=list)
    "Of each argument, whether all devices hold the same."
    attributes: list[str] = field(default_factory=list)
    "Of each argument, as text."
    count: int = 0

    def argument(
        self, shape: Sequence[int], element: str, *, special: bool = True, whole: bool = False, donated: bool = False
    ) -> Value:
        """One more, of which each device has its own, or all have the same; perhaps written over by the first result."""
        value = Value(f"%x{len(self.arguments)}", tuple(shape), element)
        self.arguments.append(value)
        self.special.append(special)
        self.alike.append(whole)
        known = ["tf.aliasing_output = 0 : i32"] if donated else []
        if whole:
            split = f"#mesh.axisarray<{[[] for _ in shape]}>"
            known += [
                f"meshbridge.global = {value.type}",
                f"meshbridge.mesh = @{self.mesh_name}",
                f"meshbridge.split_axes = {split}",
            ]
        self.attributes.append(f" {{{', '.join(known)}}}" if known else "")
        return value

    def emit(self, text: str, shape: Sequence[int], element: str, compute: Callable[..., Array], *operands: Value) -> Value:
        """`text` as a line, of which `compute` is what it does with the stacked operands."""
        self.count += 1
        value = Value(f"%v{self.count}", tuple(shape), element)
        names = [each.name for each in operands]

        def step(known: dict[str, Array]) -> None:
            result = np.asarray(compute(*(known[name] for name in names)))
            known[value.name] = result.astype(ELEMENTS[element])
            assert known[value.name].shape == (*self.mesh, *value.shape), (text, known[value.name].shape, value.shape)

        self.lines.append(f"{value.name} = {text}{value.type}")
        self.steps.append(step)
        return value

    # Collectives.

    def size(self, axes: Axes) -> int:
        """How many devices are in a group."""
        return prod(self.mesh[axis] for axis in axes)

    def _collective(
        self, name: str, x: Value, axes: Axes, attrs: str, shape: Sequence[int], compute: Callable[..., Array]
    ) -> Value:
        text = f"mesh.{name} {x.name} on @{self.mesh_name} mesh_axes = {list(axes)}{attrs} : {x.type} -> "
        return self.emit(text, shape, x.element, compute, x)

    @property
    def mesh_name(self) -> str:
        return "m" + "x".join(map(str, self.mesh))

    def all_reduce(self, x: Value, axes: Axes, kind: str = "sum") -> Value:
        return self._collective("all_reduce", x, axes, f" reduction = {kind}", x.shape, lambda a: self._reduced(a, axes, kind))

    def _reduced(self, a: Array, axes: Axes, kind: str) -> Array:
        wide = a.astype(np.float64) if a.dtype.kind not in "iub" else a
        function = {"sum": np.sum, "average": np.mean, "max": np.max, "min": np.min}[kind]
        return np.broadcast_to(function(wide, axis=axes, keepdims=True), a.shape)

    def _pieces(self, a: Array, axes: Axes) -> Array:
        """Of each group, what its members have, along a new first dimension, in the order of `axes`."""
        rank = len(self.mesh)
        moved = np.moveaxis(a, axes, range(len(axes)))
        return moved.reshape(
            self.size(axes), *(1 if axis in axes else size for axis, size in enumerate(self.mesh)), *a.shape[rank:]
        )

    def _spread(self, pieces: Array, axes: Axes) -> Array:
        """The inverse: piece k of a group goes to its member k."""
        rank = len(self.mesh)
        others = [size for axis, size in enumerate(self.mesh) if axis not in axes]
        split = pieces.reshape(*(self.mesh[axis] for axis in axes), *others, *pieces.shape[1 + rank :])
        return np.moveaxis(split, range(len(axes)), axes)

    def all_gather(self, x: Value, axes: Axes, dim: int) -> Value:
        shape = _resized(x.shape, dim, multiply=self.size(axes))

        def compute(a: Array) -> Array:
            whole = np.concatenate(list(self._pieces(a, axes)), axis=len(self.mesh) + dim)
            return np.broadcast_to(whole, (*self.mesh, *shape))

        return self._collective("all_gather", x, axes, f" gather_axis = {dim}", shape, compute)

    def _own(self, a: Array, axes: Axes, dim: int) -> Array:
        """Of arrays that each device has, its piece."""
        count, at = self.size(axes), len(self.mesh) + dim
        result = np.empty((*self.mesh, *_resized(a.shape[len(self.mesh) :], dim, divide=count)), a.dtype)
        for place in np.ndindex(*self.mesh):
            index = 0
            for axis in axes:
                index = index * self.mesh[axis] + place[axis]
            result[place] = np.split(a[place], count, axis=at - len(self.mesh))[index]
        return result

    def all_slice(self, x: Value, axes: Axes, dim: int) -> Value:
        shape = _resized(x.shape, dim, divide=self.size(axes))
        return self._collective("all_slice", x, axes, f" slice_axis = {dim}", shape, lambda a: self._own(a, axes, dim))

    def reduce_scatter(self, x: Value, axes: Axes, dim: int, kind: str = "sum") -> Value:
        shape = _resized(x.shape, dim, divide=self.size(axes))
        attrs = f" reduction = {kind} scatter_axis = {dim}"
        return self._collective(
            "reduce_scatter", x, axes, attrs, shape, lambda a: self._own(self._reduced(a, axes, kind), axes, dim)
        )

    def all_to_all(self, x: Value, axes: Axes, split: int, concat: int) -> Value:
        count, rank = self.size(axes), len(self.mesh)
        shape = _resized(_resized(x.shape, split, divide=count), concat, multiply=count)

        def compute(a: Array) -> Array:
            pieces = [np.stack(np.split(each, count, axis=rank + split)) for each in self._pieces(a, axes)]  # [to, ...] of each
            whole = np.concatenate(pieces, axis=1 + rank + concat)
            return self._spread(whole, axes)

        return self._collective("all_to_all", x, axes, f" split_axis = {split} concat_axis = {concat}", shape, compute)

    def shift(self, x: Value, axis: int, offset: int) -> Value:
        attrs = f"mesh_axes = [{axis}] shift_axis = {axis} offset = {offset} rotate"
        text = f"mesh.shift {x.name} on @{self.mesh_name} {attrs} : {x.type} -> "
        return self.emit(text, x.shape, x.element, lambda a: np.roll(a, offset, axis), x)

    # Local operations.

    def unary(self, name: str, x: Value) -> Value:
        function = {"negate": np.negative, "tanh": np.tanh, "abs": np.abs, "exponential": np.exp, "log": np.log}[name]
        return self.emit(f"stablehlo.{name} {x.name} : ", x.shape, x.element, lambda a: function(_wide(a)), x)

    def binary(self, name: str, x: Value, y: Value) -> Value:
        function: Callable[..., Array] = {
            "add": np.add,
            "subtract": np.subtract,
            "multiply": np.multiply,
            "divide": np.divide,
            "maximum": np.maximum,
            "minimum": np.minimum,
        }[name]
        assert x.type == y.type, (name, x, y)
        compute = lambda a, b: function(_wide(a), _wide(b))  # noqa: E731
        return self.emit(f"stablehlo.{name} {x.name}, {y.name} : ", x.shape, x.element, compute, x, y)

    def convert(self, x: Value, element: str) -> Value:
        return self.emit(f"stablehlo.convert {x.name} : ({x.type}) -> ", x.shape, element, lambda a: a, x)

    def constant(self, number: float, shape: Sequence[int], element: str) -> Value:
        literal = {"inf": "0x7F800000", "-inf": "0xFF800000"} if element == "f32" else {"inf": "0x7F80", "-inf": "0xFF80"}
        text = str(int(number)) if element[0] == "i" else literal.get(str(number), f"{number:e}")
        return self.emit(f"stablehlo.constant dense<{text}> : ", shape, element, lambda: np.full((*self.mesh, *shape), number))

    def broadcast(self, x: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
        def compute(a: Array) -> Array:
            wide = [1] * len(shape)
            for dim, size in zip(dims, x.shape, strict=True):
                wide[dim] = size
            return np.broadcast_to(a.reshape(*self.mesh, *wide), (*self.mesh, *shape))

        return self.emit(
            f"stablehlo.broadcast_in_dim {x.name}, dims = {list(dims)} : ({x.type}) -> ", shape, x.element, compute, x
        )

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        return self.emit(
            f"stablehlo.reshape {x.name} : ({x.type}) -> ", shape, x.element, lambda a: a.reshape(*self.mesh, *shape), x
        )

    def transpose(self, x: Value, dims: Sequence[int]) -> Value:
        rank = len(self.mesh)
        order = [*range(rank), *(rank + dim for dim in dims)]
        shape = [x.shape[dim] for dim in dims]
        text = f"stablehlo.transpose {x.name}, dims = {list(dims)} : ({x.type}) -> "
        return self.emit(text, shape, x.element, lambda a: a.transpose(order), x)

    def slice(self, x: Value, dim: int, start: int, stop: int, stride: int = 1) -> Value:
        bounds = [f"{start}:{stop}:{stride}" if each == dim else f"0:{size}" for each, size in enumerate(x.shape)]
        shape = [-(-(stop - start) // stride) if each == dim else size for each, size in enumerate(x.shape)]
        place = (slice(None),) * (len(self.mesh) + dim)
        text = f"stablehlo.slice {x.name} [{', '.join(bounds)}] : ({x.type}) -> "
        return self.emit(text, shape, x.element, lambda a: a[(*place, slice(start, stop, stride))], x)

    def reduce(self, x: Value, dim: int, name: str = "add") -> Value:
        start = {"add": 0.0, "maximum": -np.inf, "minimum": np.inf}[name]
        function = {"add": np.sum, "maximum": np.max, "minimum": np.min}[name]
        initial = self.constant(start, (), x.element)
        shape = [size for each, size in enumerate(x.shape) if each != dim]
        head = f"stablehlo.reduce({x.name} init: {initial.name}) applies stablehlo.{name} across dimensions = [{dim}]"
        text = f"{head} : ({x.type}, {initial.type}) -> "
        return self.emit(text, shape, x.element, lambda a: function(_wide(a), axis=len(self.mesh) + dim), x)

    def dot(self, x: Value, y: Value) -> Value:
        """The product of two matrices."""
        text = f"stablehlo.dot_general {x.name}, {y.name}, contracting_dims = [1] x [0] : ({x.type}, {y.type}) -> "
        return self.emit(text, (x.shape[0], y.shape[1]), x.element, lambda a, b: _product(_wide(a), _wide(b)), x, y)

    def row(self, stack: Value, number: Value) -> Value:
        """The row of a stack that a scalar numbers."""
        zero = self.constant(0, (), "i32")
        starts = ", ".join([number.name, *([zero.name] * (len(stack.shape) - 1))])
        shape = (1, *stack.shape[1:])
        types = ", ".join([stack.type, *(["tensor<i32>"] * len(stack.shape))])
        rank = len(self.mesh)

        def compute(a: Array, at: Array) -> Array:
            first = int(at.flat[0])
            return a[(slice(None),) * rank + (slice(first, first + 1),)]

        text = f"stablehlo.dynamic_slice {stack.name}, {starts}, sizes = {list(shape)} : ({types}) -> "
        return self.reshape(self.emit(text, shape, stack.element, compute, stack, number), shape[1:])

    def compare(self, direction: str, x: Value, y: Value) -> Value:
        function = {"LT": np.less, "GT": np.greater, "EQ": np.equal}[direction]
        text = f"stablehlo.compare {direction}, {x.name}, {y.name} : ({x.type}, {y.type}) -> "
        return self.emit(text, x.shape, "i1", function, x, y)

    def select(self, predicate: Value, x: Value, y: Value) -> Value:
        text = f"stablehlo.select {predicate.name}, {x.name}, {y.name} : {predicate.type}, "
        return self.emit(text, x.shape, x.element, np.where, predicate, x, y)

    def loop(self, iterations: int, starts: Sequence[Value], body: Callable[..., Sequence[Value]]) -> list[Value]:
        """A counted loop: `body` is given the counter and what it carries."""
        zero, one, limit = (self.constant(number, (), "i32") for number in (0, 1, iterations))
        self.count += 1
        name, types = f"%w{self.count}", ", ".join(["tensor<i32>", *(each.type for each in starts)])
        inside = [Value(f"{name}_{number}", each.shape, each.element) for number, each in enumerate((zero, *starts))]
        heads = ", ".join(f"{each.name} = {start.name}" for each, start in zip(inside, (zero, *starts), strict=True))
        results = f":{len(inside)}"
        self.lines += [f"{name}{results} = stablehlo.while({heads}) : {types}", "cond {"]
        with self._apart():
            go = self.compare("LT", inside[0], limit)
        self.lines += [f"stablehlo.return {go.name} : tensor<i1>", "} do {"]
        with self._apart() as steps:
            following = self.binary("add", inside[0], one)
            yielded = [following, *body(*inside)]
        self.lines += [f"stablehlo.return {', '.join(each.name for each in yielded)} : {types}", "}"]
        found = [Value(f"{name}#{number}", each.shape, each.element) for number, each in enumerate(inside)]

        def step(known: dict[str, Array]) -> None:
            carried = [known[each.name] for each in (zero, *starts)]
            for _ in range(iterations):
                known.update(zip((each.name for each in inside), carried, strict=True))
                for one_step in steps:
                    one_step(known)
                carried = [known[each.name] for each in yielded]
            known.update(zip((each.name for each in found), carried, strict=True))

        self.steps.append(step)
        return found[1:]

    @contextmanager
    def _apart(self) -> Iterator[list[Step]]:
        """Steps of a region."""
        outer, self.steps = self.steps, []
        yield self.steps
        self.steps = outer


def _wide(a: Array) -> Array:
    """In which one operation is computed exactly enough."""
    return a.astype(np.float32) if a.dtype == ELEMENTS["bf16"] else a


def _product(a: Array, b: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.einsum("...ij,...jk->...ik", a, b)


def _resized(shape: Sequence[int], dim: int, *, multiply: int = 1, divide: int = 1) -> tuple[int, ...]:
    assert shape[dim] * multiply % divide == 0, (shape, dim, divide)
    return tuple(size * multiply // divide if each == dim else size for each, size in enumerate(shape))


@dataclass(frozen=True)
class Local:
    """A drawn program of one device."""

    what: str
    writer: Writer
    results: tuple[Value, ...]
    options: str = ""
    "Of the pass."

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """Stacked: dimensions of the mesh first."""
        return tuple(
            Argument((*self.writer.mesh, *each.shape), ELEMENTS[each.element], special=special)
            for each, special in zip(self.writer.arguments, self.writer.special, strict=True)
        )

    def text(self, name: str = "main") -> str:
        """Its function."""
        w = self.writer
        heads = ", ".join(f"{each.name}: {each.type}{attrs}" for each, attrs in zip(w.arguments, w.attributes, strict=True))
        types = ", ".join(each.type for each in self.results)
        body = "\n".join([*w.lines, f"return {', '.join(each.name for each in self.results)} : {types}"])
        return f"func.func @{name}({heads}) -> ({types}) {{\n{body}\n}}"

    def module_text(self) -> str:
        return f"mesh.mesh @{self.writer.mesh_name}(shape = {'x'.join(map(str, self.writer.mesh))})\n{self.text()}"

    def alone(self, arguments: Sequence[Array]) -> list[Array]:
        """What all devices compute."""
        known = {each.name: np.asarray(a) for each, a in zip(self.writer.arguments, arguments, strict=True)}
        with np.errstate(all="ignore"):
            for step in self.writer.steps:
                step(known)
        return [known[each.name] for each in self.results]


def draw_axes(random: Random, mesh: tuple[int, ...]) -> Axes:
    """Some axes of the mesh, in some order."""
    if len(mesh) == 1:
        return (0,)
    return random.choice([(0,), (1,), (0, 1), (1, 0)])


def draw_writer(random: Random) -> Writer:
    """On one of the meshes of eight devices."""
    return Writer(random.choice([(2, 4), (2, 4), (4, 2), (8,)]))


def draw_element(random: Random) -> str:
    return random.choice(["f32", "f32", "bf16"])


def values(program: Local, seed: int, count: int) -> Iterator[tuple[str, list[Array]]]:
    """As `drawn.inputs`, of stacked arrays."""
    rank = len(program.writer.mesh)
    for kind, arrays in filled_with(program.arguments, seed, count):
        pairs = zip(arrays, program.writer.alike, strict=True)
        yield kind, [np.ascontiguousarray(np.broadcast_to(a[(0,) * rank], a.shape)) if alike else a for a, alike in pairs]
