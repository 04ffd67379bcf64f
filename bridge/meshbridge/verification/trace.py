"""Where two programs part: the first value of the source, in program order, of which the devices hold no shards.

A value is matched with the results of the ops of the same name and source location in the partitioned program. Values are
compared through sketches: sums of the elements with random weights. A sketch is linear, so partial values are recognised, too:
their sketches, added over the devices of a group, are those of shards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field as member

import numpy as np

from meshbridge.ir.mlir import ir, source_location
from meshbridge.verification.causes import cases_of_shape, explain_any, listed, partial_along
from meshbridge.verification.field import Array, Field
from meshbridge.verification.layout import DeviceMesh
from meshbridge.verification.machine import Observer

SKETCHES = 3
"""The number of sketches of a value: two different values agree in all of them with a probability of prime^-3."""

KEPT = 2**20
"""The most elements of a value that is kept, on all devices together."""

Key = tuple[str, str]
"""Location and name of an op."""

Sketch = tuple[float, ...]


@dataclass(frozen=True)
class Parting:
    """The first value that differs: its op, the op's location, its number among the op's results, the devices that hold no shard
    of it, the first differing element on the first of them, in the local value, and a plausible cause if known."""

    op: str
    location: str
    result: int
    devices: tuple[int, ...]
    element: tuple[int, ...]
    cause: str = ""


@dataclass
class Sketches:
    """The devices' values of one tensor as sketches: one row for each device.

    `value` is kept for a possible partial maximum or minimum, which sketches do not reveal.
    """

    op: ir.Operation
    shape: tuple[int, ...]
    sketches: Array
    value: Array | None = None


@dataclass
class Tracer:
    """Sketches values and compares them. `mesh` is that of the partitioned program."""

    field: Field
    mesh: DeviceMesh
    recorded: dict[tuple[Key, int], list[Sketches]] = member(default_factory=lambda: defaultdict(list))
    found: tuple[ir.Operation, Key, int, list[Sketches]] | None = None
    _weights: dict[int, Array] = member(default_factory=dict)

    def record(self) -> Observer:
        """An observer of the partitioned program."""

        def observe(op: ir.Operation, operands: Sequence[Array], results: Sequence[Array]) -> None:
            for number, (name, value) in enumerate(zip(op.results, results, strict=True)):
                if not isinstance(name.type, ir.RankedTensorType):
                    continue
                finite = self.field.as_finite(value) if op.name == "stablehlo.reduce" and value.size <= KEPT else None
                self.recorded[key_of(op), number].append(Sketches(op, value.shape[1:], self.sketches(value), finite))

        return observe

    def compare(self) -> Observer:
        """An observer of the source, after the partitioned program was recorded."""

        def observe(op: ir.Operation, operands: Sequence[Array], results: Sequence[Array]) -> None:
            if self.found is not None or not len(op.operands):  # constants of one location need not be one value
                return
            for number, value in enumerate(results):
                tensors = self.recorded.get((key_of(op), number), [])
                if tensors and value.shape[0] == 1 and not any(self._explains(value[0], tensor) for tensor in tensors):
                    self.found = op, key_of(op), number, tensors
                    return

        return observe

    def sketches(self, value: Array) -> Array:
        """The sketches of each entry of the first dimension."""
        numbers = self.field.as_finite(value) if value.dtype.kind in "fc" else value
        numbers = numbers if value.dtype.kind == "f" else _as_elements(self.field, numbers)
        rows = numbers.reshape(len(numbers), -1)
        weights = self._weights_of(rows.shape[1])
        return np.stack([self.field.sum(self.field.multiply(rows, weight), (1,)) for weight in weights], axis=1)

    def _weights_of(self, size: int) -> Array:
        if size not in self._weights:
            self._weights[size] = self.field.random("sketch", (SKETCHES, size))
        return self._weights[size]

    def _explains(self, value: Array, tensor: Sketches) -> bool:
        """Whether the devices' values are, or may be, shards of the global value."""
        if len(tensor.shape) != value.ndim or not all(
            local and size % local == 0 for size, local in zip(value.shape, tensor.shape, strict=True)
        ):
            return True  # padded, or sharded differently: unknown
        tiles = self.tiles(value, tensor.shape)
        if {tuple(row) for row in tensor.sketches.tolist()} <= tiles:
            return True
        return any(self._is_partial(tensor, axes, tiles) for axes in self.mesh.choices()) or self._is_extreme(value, tensor)

    def _is_extreme(self, value: Array, tensor: Sketches) -> bool:
        if tensor.value is None:
            return False
        return any(
            map(
                partial_along,
                cases_of_shape(self.field, self.mesh, self.field.as_finite(value), self.mesh.everywhere(tensor.value)),
            )
        )

    def tiles(self, value: Array, shape: tuple[int, ...]) -> set[Sketch]:
        """The sketches of all shards of this shape of a global value."""
        split = [factor for size, local in zip(value.shape, shape, strict=True) for factor in (size // local, local)]
        rows = value.reshape(split).transpose(*range(0, 2 * value.ndim, 2), *range(1, 2 * value.ndim, 2))
        return {tuple(row) for row in self.sketches(np.ascontiguousarray(rows).reshape(-1, *shape)).tolist()}

    def _is_partial(self, tensor: Sketches, names: tuple[str, ...], tiles: set[Sketch]) -> bool:
        totals = self.field.sum(self.mesh.everywhere(tensor.sketches)[self.mesh.groups_along(names)], (1,))
        return {tuple(row) for row in totals.tolist()} <= tiles

    def wrong_devices(self, value: Array, tensor: Sketches) -> tuple[int, ...]:
        """The devices that hold no shard of a global value."""
        tiles = self.tiles(value, tensor.shape)
        rows = self.mesh.everywhere(tensor.sketches).tolist()
        return tuple(device for device, row in enumerate(rows) if tuple(row) not in tiles)


def _as_elements(numbers: Field, value: Array) -> Array:
    if value.dtype.kind == "c":
        return numbers.hash("complex", value)
    return numbers.from_integers(value.astype(np.int8) if value.dtype == np.bool_ else value)


def key_of(op: ir.Operation) -> Key:
    """The key by which ops of the two programs are matched."""
    return str(op.location), op.name


@dataclass
class Capture:
    """Keeps the operands and the results of one op from its first run."""

    op: ir.Operation
    operands: Sequence[Array] = ()
    results: Sequence[Array] = ()

    def __call__(self, op: ir.Operation, operands: Sequence[Array], results: Sequence[Array]) -> None:
        if not self.results and op == self.op:
            self.operands, self.results = operands, results


def differing_element(value: Array, local: Array) -> tuple[int, ...]:
    """The first element in which a device's value differs from the most similar shard of a global value."""
    best, where = -1, np.zeros((0, local.ndim), np.int64)
    for start in np.ndindex(*(size // part for size, part in zip(value.shape, local.shape, strict=True))):
        tile = value[tuple(slice(at * part, (at + 1) * part) for at, part in zip(start, local.shape, strict=True))]
        wrong = np.argwhere(tile != local)
        if local.size - len(wrong) > best:
            best, where = local.size - len(wrong), wrong
    return tuple(int(index) for index in where[0]) if len(where) else ()


def describe(tracer: Tracer, source: Capture, partitioned: Capture, again: Capture) -> Parting:
    """Describes the finding of a tracer.

    The captures are of the op in both programs, and in the partitioned one with other padding, if its arguments have padding.
    """
    assert tracer.found is not None
    op, key, number, tensors = tracer.found
    value, local = (tracer.field.as_finite(capture.results[number]) for capture in (source, partitioned))
    value, local = value[0], tracer.mesh.everywhere(local)
    devices = tracer.wrong_devices(value, tensors[0])
    element = differing_element(value, local[devices[0]]) if devices else ()
    cause = _partial_operand(tracer, source, partitioned)
    if not cause:
        padded = tracer.mesh.everywhere(tracer.field.as_finite(again.results[number])) if again.results else None
        cause = explain_any(cases_of_shape(tracer.field, tracer.mesh, value, local, padded))
    return Parting(key[1], source_location(op), number, devices, element, cause)


def _partial_operand(tracer: Tracer, source: Capture, partitioned: Capture) -> str:
    """The reduction that an operand still misses when the op reads it; empty for none."""
    finite = ([tracer.field.as_finite(operand) for operand in side.operands] for side in (source, partitioned))
    for value, local in zip(*finite, strict=False):  # ops of one location may have more operands
        cases = cases_of_shape(tracer.field, tracer.mesh, value[0], tracer.mesh.everywhere(local))
        if all(len(case.wrong) for case in cases) and (partial := next(filter(None, map(partial_along, cases)), None)):
            kind, axes = partial
            return f"an operand is a partial {kind} along {listed(axes)} when this op reads it: an all-reduce is missing"
    return ""
