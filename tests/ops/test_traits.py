"""What is declared of ops holds: traits that say what an op computes are checked on samples, those of its form on its text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from jaxlib.mlir import passmanager

from meshbridge.dialect import ops as mesh_ops
from meshbridge.ir.mlir import MeshError, context, ir, walk_all
from meshbridge.ops.rule import RULES
from meshbridge.ops.traits import Trait, declare, has, linear_operands, multilinear_operands, ops_with, traits_of
from tests.operations.cases import Operand
from tests.operations.samples import SAMPLES, Sample

Array = np.ndarray[Any, Any]
FLOATS = ("float32", "complex64")
UNSAID = {"stablehlo.composite", "stablehlo.custom_call", "stablehlo.rng"}
"""Ops with a sharding rule that have no trait: names of the first two do not say what they do, and the last one has a state."""


def samples_of(trait: Trait) -> list[Sample]:
    """Samples that run as they are and compute numbers of a floating-point operand."""
    found = [each for each in SAMPLES if has(each.op, trait) and each.runs and each.oracle is None]
    return [each for each in found if each.operands and each.operands[0][1] in FLOATS]


def drawn(sample: Sample, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    values = (*sample.values, *["normal"] * len(sample.operands))
    return [Operand(shape, dtype, None, held).example(rng) for (shape, dtype), held in zip(sample.operands, values, strict=False)]


def computed(runs: Sequence[tuple[Sample, Sequence[Array]]]) -> list[list[Array]]:
    """The results of each sample on its operands, compiled together."""
    together = jax.jit(lambda every: [jax.tree.leaves(each.function(*one)) for (each, _), one in zip(runs, every, strict=True)])
    return [[np.asarray(value) for value in found] for found in together([list(operands) for _, operands in runs])]


def check(runs: Sequence[tuple[Sample, Sequence[Array]]], holds: Callable[[Sample, Sequence[Array], list[Array]], bool]) -> None:
    found = computed(runs)
    wrong = [sample.op for (sample, operands), results in zip(runs, found, strict=True) if not holds(sample, operands, results)]
    assert runs
    assert not wrong


def check_sums(linear: Iterator[tuple[Sample, tuple[int, ...]]]) -> None:
    """Whether results of sums of operands are sums of results."""
    cases = [(sample, operands) for sample, operands in linear if all(sample.operands[each][1] in FLOATS for each in operands)]
    runs = []
    for sample, varied in cases:
        first, second = drawn(sample), drawn(sample, 1)
        second = [second[each] if each in varied else value for each, value in enumerate(first)]
        both = [first[each] + second[each] if each in varied else value for each, value in enumerate(first)]
        runs += [(sample, first), (sample, second), (sample, both)]
    found = computed(runs)
    for number, (sample, _) in enumerate(cases):
        one, other, both = found[3 * number : 3 * number + 3]
        for result, left, right in zip(both, one, other, strict=True):
            np.testing.assert_allclose(result, left + right, 1e-4, 1e-4, err_msg=sample.op)
    assert cases


def test_every_op_with_a_sharding_rule_says_what_it_is() -> None:
    assert {name for name in RULES if not traits_of(name)} == UNSAID


def test_linear_ops_keep_sums() -> None:
    check_sums((sample, linear_operands(sample.op, len(sample.operands))) for sample in samples_of(Trait.LINEAR))


def test_multilinear_ops_keep_sums_of_one_operand() -> None:
    check_sums((sample, (each,)) for sample in samples_of(Trait.MULTILINEAR) for each in multilinear_operands(sample.op))


def test_what_propagates_nan_gives_nan() -> None:
    runs = []
    for sample in samples_of(Trait.NAN_PROPAGATING):
        for number, (_, dtype) in enumerate(sample.operands):
            for other in (0, 1):  # 0 * NaN is NaN, but 1 to the power of NaN is none
                operands = [np.full_like(each, other) for each in drawn(sample)]
                if dtype in FLOATS:
                    operands[number] = np.full_like(operands[number], np.nan)
                    runs.append((sample, operands))
    assert {sample.op for sample, _ in runs} == ops_with(Trait.NAN_PROPAGATING)
    check(runs, lambda _, operands, results: all(bool(np.isnan(each.astype(np.complex64)).all()) for each in results))


def test_what_preserves_zero_gives_zero() -> None:
    runs = []
    for sample in samples_of(Trait.ZERO_PRESERVING):
        zero, *others = drawn(sample)
        runs.append((sample, [np.zeros_like(zero), *(np.abs(each) + 1 for each in others)]))
    check(runs, lambda _, operands, results: not any(each.any() for each in results))


def test_elementwise_ops_do_not_ask_where_an_element_stands() -> None:
    samples = samples_of(Trait.ELEMENTWISE)
    straight = computed([(sample, drawn(sample)) for sample in samples])
    turned = computed([(sample, [np.flip(each) for each in drawn(sample)]) for sample in samples])
    for sample, results, others in zip(samples, straight, turned, strict=True):
        for result, other in zip(results, others, strict=True):
            np.testing.assert_array_equal(np.flip(result), other, err_msg=sample.op)


def test_movement_computes_no_element() -> None:
    runs = [(sample, drawn(sample)) for sample in samples_of(Trait.MOVEMENT)]
    check(runs, lambda _, operands, results: set(results[0].ravel()) <= {each for value in operands for each in value.ravel()})


def test_shaping_loses_no_element() -> None:
    runs = [(sample, drawn(sample)) for sample in samples_of(Trait.SHAPING)]

    def keeps(sample: Sample, operands: Sequence[Array], results: list[Array]) -> bool:
        copies = results[0].size // operands[0].size
        return sorted(np.repeat(operands[0].ravel(), copies)) == sorted(results[0].ravel())

    check(runs, keeps)


def test_slicing_reads_its_first_operand_alone() -> None:
    runs = [(sample, drawn(sample)) for sample in samples_of(Trait.SLICING)]
    check(runs, lambda _, operands, results: set(results[0].ravel()) <= set(operands[0].ravel()))


def test_strided_ops_read_each_dimension_in_constant_steps() -> None:
    """Operands hold the index along one dimension, from 1 on, and padding is 0."""
    runs = []
    for sample in samples_of(Trait.STRIDED):
        for dim in range(len(sample.operands[0][0])):
            counted = np.indices(sample.operands[0][0])[dim].astype(np.float32) + 1
            runs.append((sample, [counted, *(np.zeros_like(each) for each in drawn(sample)[1:])]))

    def steps(sample: Sample, operands: Sequence[Array], results: list[Array]) -> bool:
        counted = next(
            dim for dim in range(operands[0].ndim) if operands[0].shape[dim] > 1 and np.diff(operands[0], axis=dim).any()
        )
        lines = np.moveaxis(results[0], counted, -1).reshape(-1, results[0].shape[counted])
        read = [line[line > 0] for line in lines if line.any()]
        return all(np.unique(np.diff(line)).size <= 1 for line in read) and len({tuple(line) for line in read}) == 1

    check(runs, steps)


def test_aliasing_ops_keep_bytes() -> None:
    runs = [(sample, drawn(sample)) for sample in samples_of(Trait.ALIASING)]
    check(runs, lambda _, operands, results: [each.tobytes() for each in operands] == [each.tobytes() for each in results])


def test_results_in_place_have_the_types_of_their_operands() -> None:
    samples = [sample for sample in SAMPLES if has(sample.op, Trait.IN_PLACE)]
    assert samples
    assert all(sample.results == sample.operands[: len(sample.results)] for sample in samples)


def _ops_of(sample: Sample) -> list[ir.Operation]:
    return [op for op in walk_all(sample.module(context())) if op.name == sample.op]


def test_regions_are_those_of_traits() -> None:
    for sample in SAMPLES:
        for op in _ops_of(sample):
            said = {Trait.SCALAR_REGION, Trait.CONTROL_FLOW} & traits_of(op.name)
            assert bool(len(op.regions)) == bool(said) or not traits_of(op.name), sample.op
            ranks = {
                ir.RankedTensorType(each.type).rank
                for region in op.regions
                for block in region.blocks
                for each in block.arguments
            }
            assert Trait.SCALAR_REGION not in said or ranks <= {0}, sample.op


def test_mlir_takes_pure_ops_for_pure() -> None:
    """MLIR erases what nothing uses and what has no effects, readers first: an op and its readers take a pass each."""
    for sample in SAMPLES:
        if has(sample.op, Trait.PURE):
            module = sample.module(context())
            with module.context:
                returned = next(iter(module.body.operations)).regions[0].blocks[0].operations[-1].operation
                for number, value in enumerate(returned.operands):
                    unused = ir.Operation.parse(f'%0 = "builtin.unrealized_conversion_cast"() : () -> {value.type}')
                    returned.parent.regions[0].blocks[0].append(unused)
                    unused.move_before(returned)
                    returned.operands[number] = unused.results[0]
                passmanager.PassManager.parse("builtin.module(func.func(cse,cse,cse,cse))").run(module.operation)
            assert not [op for op in walk_all(module) if op.name == sample.op], sample.op


def test_collectives_of_the_dialect_are_those_that_only_exchange() -> None:
    views = [each for each in vars(mesh_ops).values() if isinstance(each, type) and issubclass(each, mesh_ops.CollectiveOpView)]
    names = {each.OPERATION_NAME for each in views if each is not mesh_ops.CollectiveOpView}
    assert names - ops_with(Trait.COLLECTIVE) == {"mesh.all_slice", "mesh.recv", "mesh.send"}
    assert ops_with(Trait.GROUPED, Trait.REDUCING, Trait.ROOTED) <= ops_with(Trait.COLLECTIVE)
    assert not ops_with(Trait.COLLECTIVE) & ops_with(Trait.PURE)


def test_implied_traits() -> None:
    assert ops_with(Trait.SHAPING, Trait.STRIDED) <= ops_with(Trait.MOVEMENT)
    assert ops_with(Trait.MOVEMENT) - ops_with(Trait.PURE) == {"mesh.all_slice"}  # a device's number is no operand
    assert ops_with(Trait.ELEMENTWISE) <= ops_with(Trait.PURE) & ops_with(Trait.FUSIBLE)


def test_names_are_those_of_a_dialect() -> None:
    assert ops_with(Trait.CONSTANT, dialect="arith") == {"arith.constant"}
    assert ops_with(Trait.CONSTANT) == {"arith.constant", "stablehlo.constant"}


def test_of_an_unknown_op_nothing_is_known() -> None:
    assert not traits_of("my.op")
    assert not has("my.op", Trait.PURE)
    assert linear_operands("my.op", 2) == ()


def test_nobody_misses_a_trait() -> None:
    ops_with(Trait.PURE)
    with pytest.raises(MeshError, match=r"traits of my\.op are declared after"):
        declare("my.op", traits=(Trait.PURE,))
