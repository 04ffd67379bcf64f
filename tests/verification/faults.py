"""Faults put into partitioned programs, to see whether exact evaluation finds them.

    python -m tests.verification.faults --count 1000 --seed 0

A fault is one wrong op of one program: a collective left out, other groups, a wrong offset. Whether a fault that was not found
changes any output is for XLA to say, which runs the program with and without it.
"""

from __future__ import annotations

import argparse
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError, ir, stablehlo
from meshbridge.read import formats
from meshbridge.tools.trial import worst
from meshbridge.verification.field import Array
from meshbridge.verification.program import open_program
from meshbridge.verification.verdict import compare, runs_of
from testdata.catalogue import build
from testdata.program import Argument, Program

PROGRAMS = (
    *("mlp_ws1d", "mlp_ws2d", "moe_fwd", "moe_grad", "cp_attn_fwd", "cp_attn_grad", "vocab_ce", "decode_seq", "misc_fft2"),
    *("masked_softmax", "guarded_mean"),
    *(
        "misc_sort",
        "misc_cumsum",
        "sample_top_k",
        "loop_stencil",
        "loop_kmeans",
        "graph",
        "causal_conv",
        "beam_search",
        "poisson",
    ),
)
"""Programs of the catalogue and of OWN that are evaluated in a second or so and hold every kind of op below."""

LENGTH, KEYS, WIDTH = 8, 16, 8


def _masked(scores: jax.Array, mask: jax.Array, values: jax.Array) -> jax.Array:
    return jax.nn.softmax(scores, where=mask) @ values


def _guarded(scores: jax.Array, mask: jax.Array, values: jax.Array) -> jax.Array:
    weights = jnp.where(mask, scores * scores, 0)
    total = weights.sum(axis=1, keepdims=True)
    return (weights / jnp.where(total == 0, 1, total)) @ values


def _masked_program(name: str, function: Callable[..., jax.Array]) -> Program:
    split = P(None, "k")
    arguments = Argument((LENGTH, KEYS), split), Argument((LENGTH, KEYS), split, element="bool"), Argument((KEYS, WIDTH), P("k"))
    return Program(name, (("k", 4),), function, arguments, P())


OWN: dict[str, Callable[[], Program]] = {
    "masked_softmax": partial(_masked_program, "masked_softmax", _masked),
    "guarded_mean": partial(_masked_program, "guarded_mean", _guarded),
}
"""Programs beside the catalogue, with masks that may leave nothing."""

MEMORY = 8 * 10**9
ITERATION_LIMIT = 1000
"""More iterations than any loop of these programs has: a fault in a bound is found then, not waited for."""
ROUNDING = 1e-5
"""Relative to the largest element of a result: more than float32 loses when a sum is taken in another order."""
Breaker = Callable[[ir.Operation, random.Random], bool]
"""Puts a fault into an op. False where the op has no room for it; the program is not changed then."""


def _replace(op: ir.Operation, values: Sequence[ir.Value]) -> bool:
    for result, value in zip(op.results, values, strict=True):
        result.replace_all_uses_with(value)
    op.erase()
    return True


def _shape(value: ir.Value) -> list[int]:
    return list(ir.RankedTensorType(value.type).shape)


def _slice(value: ir.Value, shape: Sequence[int]) -> ir.Value:
    return stablehlo.slice(value, [0] * len(shape), list(shape), [1] * len(shape))


def drop(op: ir.Operation, rng: random.Random) -> bool:
    """A collective left out: a device goes on with what it has, repeated, cut or reshaped to fit."""
    with ir.InsertionPoint(op), op.location:
        return _replace(op, [_fitted(x, result) for x, result in zip(op.operands, op.results, strict=True)])


def _fitted(x: ir.Value, result: ir.Value) -> ir.Value:
    mine, wanted = _shape(x), _shape(result)
    for dim, (size, target) in enumerate(zip(mine, wanted, strict=True)):
        if target > size:
            x = stablehlo.concatenate([x] * (target // size), dim)
    return _slice(x, wanted) if _shape(x) != wanted else x


def _groups(op: ir.Operation) -> np.ndarray | None:
    if "replica_groups" not in op.attributes:
        return None
    found = op.attributes["replica_groups"]
    return np.array(found) if isinstance(found, ir.DenseElementsAttr) else None


def _set(op: ir.Operation, name: str, numbers: np.ndarray) -> bool:
    op.attributes[name] = ir.DenseIntElementsAttr.get(np.ascontiguousarray(numbers, np.int64))
    return True


def regroup(op: ir.Operation, rng: random.Random) -> bool:
    """Groups of the same size with other members."""
    groups = _groups(op)
    if groups is None or len(groups) < 2:
        return False
    rotated = np.roll(groups.reshape(-1), rng.randrange(1, groups.shape[1]) if groups.shape[1] > 1 else 1).reshape(groups.shape)
    other = rng.choice([groups.reshape(-1).reshape(groups.shape[::-1]).T, rotated])
    return not np.array_equal(other, groups) and _set(op, "replica_groups", other)


def reorder(op: ir.Operation, rng: random.Random) -> bool:
    """The same groups with their members in another order."""
    groups = _groups(op)
    if groups is None or groups.shape[1] < 2:
        return False
    return _set(op, "replica_groups", rng.choice([groups[:, ::-1], np.roll(groups, 1, axis=1)]))


def swap_axes(op: ir.Operation, rng: random.Random) -> bool:
    """An all-to-all that splits where it should concatenate; one dimension gets both where shapes forbid that."""
    split, concat = (ir.IntegerAttr(op.attributes[name]).value for name in ("split_dimension", "concat_dimension"))
    shape = _shape(op.operands[0])
    if split == concat or len(op.operands) != 1 or shape[split] != shape[concat] or _shape(op.results[0]) != shape:
        return False
    op.attributes["split_dimension"], op.attributes["concat_dimension"] = (
        op.attributes["concat_dimension"],
        op.attributes["split_dimension"],
    )
    return True


def redirect(op: ir.Operation, rng: random.Random) -> bool:
    """A permute that sends to others: back, one further, or one pair fewer."""
    pairs = np.array(op.attributes["source_target_pairs"]).reshape(-1, 2)
    backward, fewer = pairs[:, ::-1], pairs[1:]
    further = np.stack([pairs[:, 0], np.roll(pairs[:, 1], 1)], axis=1)
    other = rng.choice([backward, fewer, further])
    return len(other) > 0 and not np.array_equal(other, pairs) and _set(op, "source_target_pairs", other)


_REDUCTIONS = ("stablehlo.add", "stablehlo.maximum", "stablehlo.minimum", "stablehlo.multiply")


def other_kind(op: ir.Operation, rng: random.Random) -> bool:
    """Another reduction in the body of a collective or of a reduction."""
    for inner in [inner for inner in mlir.walk(op) if inner is not op and inner.name in _REDUCTIONS]:
        name = rng.choice([name for name in _REDUCTIONS if name != inner.name])
        with ir.InsertionPoint(inner), inner.location:
            return _replace(inner, list(ir.Operation.create(name, [inner.results[0].type], list(inner.operands)).results))
    return False


def twice(op: ir.Operation, rng: random.Random) -> bool:
    """What was reduced over devices is reduced again."""
    with ir.InsertionPoint(op):
        again: ir.Operation = op.clone().operation
    again.move_after(op)
    for before, after in zip(op.results, again.results, strict=True):
        before.replace_all_uses_except(after, again)
    for index, result in enumerate(op.results):
        again.operands[index] = result
    return True


def shift_offset(op: ir.Operation, rng: random.Random) -> bool:
    """A start index of a dynamic slice or update one off."""
    first = 1 if op.name == "stablehlo.dynamic_slice" else 2
    index = rng.randrange(first, len(op.operands)) if len(op.operands) > first else 0
    if not index:
        return False
    start = op.operands[index]
    with ir.InsertionPoint(op), op.location:
        kind = ir.RankedTensorType(start.type)
        step = ir.IntegerAttr.get(kind.element_type, 1)
        one = stablehlo.constant(ir.DenseElementsAttr.get_splat(kind, step))
        op.operands[index] = rng.choice([stablehlo.add, stablehlo.subtract])(start, one)
    return True


def unmask(op: ir.Operation, rng: random.Random) -> bool:
    """A select that always takes the same side: padding that nobody masks."""
    return _replace(op, [op.operands[rng.choice([1, 2])]])


def other_side(op: ir.Operation, rng: random.Random) -> bool:
    """Padding at the other end."""
    low, high = op.attributes["edge_padding_low"], op.attributes["edge_padding_high"]
    if low == high:
        return False
    op.attributes["edge_padding_low"], op.attributes["edge_padding_high"] = high, low
    return True


def other_number(op: ir.Operation, rng: random.Random) -> bool:
    """A number of a table one off: offsets, masks and counts are constants of integers."""
    value = op.attributes["value"]
    kind = ir.RankedTensorType(op.results[0].type)
    if not isinstance(kind.element_type, ir.IntegerType) or kind.element_type.width not in (32, 64):
        return False
    numbers = np.array(value).reshape(-1).copy()
    if not numbers.size:
        return False
    with np.errstate(over="ignore"):
        numbers[rng.randrange(numbers.size)] += rng.choice([-1, 1])
    kept = numbers.astype(np.int32 if kind.element_type.width == 32 else np.int64).reshape(kind.shape)
    op.attributes["value"] = ir.DenseElementsAttr.get(kept, type=kind)
    return True


def move_division(op: ir.Operation, rng: random.Random) -> bool:
    """What is selected of a quotient becomes the quotient of what is selected: 0 / 0 where nothing is and the divisor is 0."""
    readers = [use.owner.operation for use in op.results[0].uses]
    selects = [reader for reader in readers if reader.name == "stablehlo.select" and reader.operands[1] == op.results[0]]
    if not selects or not isinstance(ir.RankedTensorType(op.results[0].type).element_type, ir.FloatType):
        return False
    select = rng.choice(selects)
    with ir.InsertionPoint(select), select.location:
        chosen = stablehlo.select(select.operands[0], op.operands[0], select.operands[2])
        return _replace(select, [stablehlo.divide(chosen, op.operands[1])])


def unguard(op: ir.Operation, rng: random.Random) -> bool:
    """A divisor without the select that keeps it from 0."""
    divisor = op.operands[1]
    while not isinstance(divisor.owner, ir.Block) and divisor.owner.name in ("stablehlo.broadcast_in_dim", "stablehlo.reshape"):
        divisor = divisor.owner.operands[0]
    guard = None if isinstance(divisor.owner, ir.Block) else divisor.owner.operation
    if guard is None or guard.name != "stablehlo.select":
        return False
    return _replace(guard, [guard.operands[2]])


_REDUCING: tuple[Breaker, ...] = (drop, regroup, other_kind, twice)

FAULTS: dict[str, tuple[Breaker, ...]] = {
    "stablehlo.all_reduce": _REDUCING,
    "stablehlo.reduce_scatter": (drop, regroup, reorder, other_kind),
    "stablehlo.all_gather": (drop, regroup, reorder),
    "stablehlo.all_to_all": (regroup, reorder, swap_axes),
    "stablehlo.collective_permute": (drop, redirect),
    "stablehlo.dynamic_slice": (shift_offset,),
    "stablehlo.dynamic_update_slice": (shift_offset,),
    "stablehlo.reduce": (other_kind,),
    "stablehlo.select": (unmask,),
    "stablehlo.divide": (move_division, unguard),
    "stablehlo.pad": (other_side,),
    "stablehlo.constant": (other_number,),
}
"""The ops that can be broken, and how."""


def _mask(example: np.ndarray, seed: int) -> np.ndarray:
    """A mask that is all false, false and true, or all true; any other argument as it is."""
    return np.random.default_rng(seed).random(example.shape) < seed / 2 if example.dtype == np.bool_ else example


class Subject:
    """A program of the catalogue and its partitioned form. The source is evaluated once for all faults."""

    def __init__(self, name: str) -> None:
        self.name, self.program = name, OWN[name]() if name in OWN else build(name)
        exported = self.program.export()
        self.source = open_program(formats.unpack(exported, mlir.context()).module)
        self.opened = formats.unpack(meshbridge.partition(exported), mlir.context())
        self.runs = runs_of(open_program(self.opened.module), 0)

    @cached_property
    def sites(self) -> list[tuple[int, Breaker]]:
        """The ops that can be broken by their position in the module, with each way of breaking them."""
        ops = mlir.walk_all(self.opened.module)
        return [(index, breaker) for index, op in enumerate(ops) for breaker in FAULTS.get(op.name, ())]

    @cached_property
    def expected(self) -> list[tuple[list[Array], list[Array]]]:
        """Inputs and results of the source, for each field."""
        inputs = [run.inputs(self.source) for run in self.runs]
        return [
            (given, self.source.evaluate(run.field, given, memory=MEMORY)) for run, given in zip(self.runs, inputs, strict=True)
        ]

    def broken(self, site: tuple[int, Breaker], rng: random.Random) -> ir.Module | None:
        """A copy with one fault; None where the op has no room for it, or MLIR's verifier sees it."""
        index, breaker = site
        module = formats.copy_module(self.opened.module)
        with module.context:
            if not breaker(mlir.walk_all(module)[index], rng):
                return None
        try:
            module.operation.verify()
        except ir.MLIRError:
            return None
        return module

    def is_found(self, module: ir.Module) -> bool:
        """Whether exact evaluation tells `module` from the source."""
        program = open_program(module)
        for run, (inputs, expected) in zip(self.runs, self.expected, strict=True):
            try:
                results = program.evaluate(run.field, inputs, memory=MEMORY, iteration_limit=ITERATION_LIMIT)
            except MeshError:
                return True  # copies of a shard that differ, an index beyond its table, a loop without an end
            if compare(expected, results):
                return True
        return False

    def changes_nothing(self, module: ir.Module) -> bool:
        """Whether XLA computes the same with the fault as without, on several random inputs, but for the order of sums."""
        runs = [(self._run(module, seed), self._run(self.opened.module, seed)) for seed in range(3)]
        return all(worst(wrong, right).relative < ROUNDING for wrong, right in runs)

    def _run(self, module: ir.Module, seed: int) -> list[np.ndarray]:
        exported: Any = formats.pack(replace(self.opened, module=formats.copy_module(module)))
        shardings, _ = self.program.jit_shardings(self.program.mesh())
        examples = jax.tree.map(lambda each: _mask(each, seed), self.program.example_arguments(seed))
        arguments = jax.device_put(examples, shardings)
        return [np.asarray(result) for result in jax.tree.leaves(jax.jit(exported.call)(*arguments))]


@dataclass
class Tally:
    """How many faults of each kind were found, were not and change nothing, and were missed."""

    found: Counter[str] = field(default_factory=Counter)
    harmless: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kinds = sorted({*self.found, *self.harmless})
        rows = [f"{kind:30}{self.found[kind]:8}{self.harmless[kind]:12}" for kind in kinds]
        total = f"{'all':30}{self.found.total():8}{self.harmless.total():12}"
        return "\n".join([f"{'fault':30}{'found':>8}{'harmless':>12}", *rows, total, f"missed: {len(self.missed)}", *self.missed])


def inject(names: Sequence[str], count: int, seed: int) -> Tally:
    """Puts `count` faults into programs of these names, one at a time and spread over them evenly, and looks for each."""
    tally = Tally()
    for number, name in enumerate(names):
        rng, subject = random.Random(f"{seed} {name}"), Subject(name)
        wanted = count // len(names) + (number < count % len(names))
        for _ in range(wanted if subject.sites else 0):
            module = None
            while module is None:
                site = rng.choice(subject.sites)
                module = subject.broken(site, rng)
            _judge(subject, site, module, tally)
    return tally


def _judge(subject: Subject, site: tuple[int, Breaker], module: ir.Module, tally: Tally) -> None:
    index, breaker = site
    op = mlir.walk_all(subject.opened.module)[index]
    kind = f"{breaker.__name__} {op.name.split('.')[1]}"
    if subject.is_found(module):
        tally.found[kind] += 1
    elif subject.changes_nothing(module):
        tally.harmless[kind] += 1
    else:
        tally.missed.append(f"{subject.name}: {kind}, op {index}: {op}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Puts faults into partitioned programs and counts those that are found.")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--programs", nargs="*", default=PROGRAMS)
    options = parser.parse_args()
    print(inject(options.programs, options.count, options.seed))


if __name__ == "__main__":
    main()
