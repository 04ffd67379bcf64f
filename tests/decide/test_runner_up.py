"""The next best way to compute an op: what a report says that it costs is what a program sends that is made to do it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge.ops.reasons import CHOSEN_HERE
from meshbridge.reports import Report
from meshbridge.text import size_text
from tests.operations.differential import device_mesh

Spec = tuple[Any, ...]


def _sharding(spec: Spec) -> NamedSharding:
    return NamedSharding(device_mesh((2, 4)), PartitionSpec(*spec))


def _reported(function: Callable[..., Any], shapes: Sequence[tuple[int, ...]], specs: Sequence[Spec], out: Spec) -> Report:
    jitted = jax.jit(function, in_shardings=tuple(map(_sharding, specs)), out_shardings=_sharding(out))
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return meshbridge.report(export.export(jitted)(*arguments), machine="bytes")


def _said(report: Report) -> str:
    (said,) = {each.asked for each in report.collectives if each.asked.startswith(CHOSEN_HERE)}
    return said


FORCED = {
    "split other rows": (
        [(16, 512), (512, 8)],
        [(None, "b"), ("b",)],
        [("b",), (None,)],
        (None,),
        "all-to-all operand 0, gather operand 1 and the result",
    ),
    "split other columns": (
        [(8, 512), (512, 64)],
        [(None, "b"), ("b",)],
        [(None,), (None, "b")],
        (None,),
        "gather operand 0 and the result, all-to-all operand 1",
    ),
}


@pytest.mark.parametrize("case", FORCED)
def test_its_bytes_are_those_of_a_program_that_does_it(case: str) -> None:
    shapes, specs, forced, out, what = FORCED[case]

    def other(*operands: jax.Array) -> jax.Array:
        pairs = zip(operands, forced, strict=True)
        left, right = (jax.lax.with_sharding_constraint(value, _sharding(spec)) for value, spec in pairs)
        return left @ right

    chosen, made = _reported(lambda x, w: x @ w, shapes, specs, out), _reported(other, shapes, specs, out)
    more = size_text(made.wire_bytes - chosen.wire_bytes)
    assert _said(chosen) == f"{CHOSEN_HERE}; next best: {what}, +{more}"


def test_it_sends_more_or_computes_more_or_nothing_is_said() -> None:
    """Each text has a figure in which the plan is better."""
    texts = set()
    for rows in (8, 64, 4096):
        for spec in [("a", "b"), (None, "b"), (("a", "b"),), ("b",)]:
            for other in [("b",), ("a",), (None, "a"), (None, ("a", "b"))]:
                report = _reported(lambda x, w: jnp.tanh(x @ w), [(rows, 64), (64, 64)], [spec, other], ("a",))
                texts |= {each.asked for each in report.collectives if each.asked.startswith(CHOSEN_HERE)}
    said = {text for text in texts if text != CHOSEN_HERE}
    assert len(said) > 10
    for text in said:
        assert re.search(r", (\+[\d.,]+ [KMG]?B|\d+ more collectives?|[\d.]+ times the work)", text), text


def test_a_reader_of_the_report_finds_it_in_the_table_and_no_empty_phrase() -> None:
    shapes, specs, _, out, what = FORCED["split other rows"]
    table = _reported(lambda x, w: x @ w, shapes, specs, out).table()
    assert f"chosen here; next best: {what}, +" in table
    kept = _reported(lambda x: jnp.tanh(x), [(16, 32)], [("a", None)], (None, "b")).table()
    assert "result 0 of the function needs" in kept
    assert "(chosen here)" not in table + kept


def test_figures_of_a_loop_are_those_of_one_execution() -> None:
    """A layer of a loop says the same as the layer alone: figures stand beside the bytes of each execution."""

    def layer(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w)

    def looped(x: jax.Array, stack: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda carried, w: (layer(carried, w), None), x, stack)[0]

    rows, split = (64, 512), ("a", "b")
    once = _reported(layer, [rows, (512, 512)], [split, ("b",)], split)
    often = _reported(looped, [rows, (5, 512, 512)], [split, (None, "b")], split)
    assert {each.asked for each in often.collectives if each.executions == 5} == {each.asked for each in once.collectives}
    assert "next best" in _said(once)
