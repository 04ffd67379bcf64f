"""How often loops run: what is read off their text beside what happens when they are counted out."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from meshbridge.analysis import hlo, hlo_trip_count
from meshbridge.analysis.counters import Counter
from meshbridge.analysis.trip_count import trip_count
from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.overlap.loops.peeled_loops import peel, peelable

HOLDS = {
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "NE": operator.ne,
    "EQ": operator.eq,
}


def _counted(counter: Counter) -> list[int] | None:
    """The values of the counter for which the test holds, in order; None for a loop that does not end."""
    values, value = list[int](), counter.start
    for _ in range(counter.high - counter.low + 2):
        if not HOLDS[counter.direction](value, counter.limit):
            return values
        values.append(value)
        value += counter.step
        while value > counter.high:
            value -= counter.high - counter.low + 1
        while value < counter.low:
            value += counter.high - counter.low + 1
    return None


def _by_counting(counter: Counter) -> int | None:
    values = _counted(counter)
    return None if values is None else len(values)


@pytest.mark.parametrize("direction", HOLDS)
@pytest.mark.parametrize(("low", "high"), [(-4, 3), (0, 7), (-2, 1), (0, 3)])
def test_every_small_counter(direction: str, low: int, high: int) -> None:
    """Also limits that the type does not have, and steps that go around."""
    for start in range(low, high + 1):
        for step in range(-high - 2, high + 3):
            for limit in range(low - 2, high + 3):
                counter = Counter(direction, start, step, limit, low, high)
                assert counter.trip_count == _by_counting(counter), counter


@pytest.mark.parametrize(
    ("start", "step", "limit", "count"),
    [
        (10, -1, 5, 0),
        (0, 3, 127, 213),
        (0, 1, 127, 127),
        (0, 2, 127, None),
        (0, 2, 126, 63),
        (1, 2, 127, 63),
        (0, 0, 5, None),
        (0, 64, 127, None),
    ],
)
def test_counters_of_eight_bits(start: int, step: int, limit: int, count: int | None) -> None:
    counter = Counter("LT", start, step, limit, -128, 127)
    assert counter.trip_count == count == _by_counting(counter)


def test_wide_counters_are_not_counted_out() -> None:
    assert Counter("LT", 0, 1, 2**31 - 1, -(2**31), 2**31 - 1).trip_count == 2**31 - 1
    assert Counter("LT", 0, -1, 5, -(2**31), 2**31 - 1).trip_count == 2**31 + 1
    assert Counter("NE", 0, 3, 1, -(2**63), 2**63 - 1).trip_count == pow(3, -1, 2**64)


@dataclass(frozen=True)
class Loop:
    """How a loop that counts is written."""

    counter: Counter
    width: int
    is_mirrored: bool
    "Whether the limit is the first operand of the comparison."
    is_subtracted: bool
    is_swapped: bool
    "Whether the step is the first operand of the addition."

    @property
    def is_signed(self) -> bool:
        return self.counter.low < 0

    def _written(self, compared: str, limit: str, changed: str, step: str) -> tuple[str, str, str, str]:
        """The direction and operands of the comparison, and the name and operands of what changes the counter."""
        direction = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}.get(self.counter.direction, self.counter.direction)
        direction = direction if self.is_mirrored else self.counter.direction
        test = f"{limit}, {compared}" if self.is_mirrored else f"{compared}, {limit}"
        change = f"{step}, {changed}" if self.is_swapped and not self.is_subtracted else f"{changed}, {step}"
        return direction, test, "subtract" if self.is_subtracted else "add", change

    @property
    def step(self) -> int:
        """The constant that the body adds or subtracts, as one of the type."""
        return self.counter.wrapped(-self.counter.step if self.is_subtracted else self.counter.step)

    def mlir(self) -> str:
        """A function that returns how often the loop runs, the sum of its counters, and the last one."""
        direction, test, name, change = self._written("%i", "%limit", "%i", "%step")
        type_ = f"tensor<{'' if self.is_signed else 'u'}i{self.width}>"
        carried = f"{type_}, tensor<i32>, tensor<i32>"
        return f"""
func.func @main() -> (tensor<i32>, tensor<i32>, tensor<i32>) {{
  %start = stablehlo.constant dense<{self.counter.start}> : {type_}
  %limit = stablehlo.constant dense<{self.counter.limit}> : {type_}
  %step = stablehlo.constant dense<{self.step}> : {type_}
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %0:3 = stablehlo.while(%i = %start, %n = %zero, %s = %zero) : {carried}
    cond {{
      %test = stablehlo.compare {direction}, {test} : ({type_}, {type_}) -> tensor<i1>
      stablehlo.return %test : tensor<i1>
    }} do {{
      %next = stablehlo.{name} {change} : {type_}
      %count = stablehlo.add %n, %one : tensor<i32>
      %wide = stablehlo.convert %i : ({type_}) -> tensor<i32>
      %sum = stablehlo.add %s, %wide : tensor<i32>
      stablehlo.return %next, %count, %sum : {carried}
    }}
  %last = stablehlo.convert %0#0 : ({type_}) -> tensor<i32>
  return %0#1, %0#2, %last : tensor<i32>, tensor<i32>, tensor<i32>
}}
"""

    def hlo(self) -> str:
        """A module of one such loop, as XLA prints it."""
        direction, test, name, change = self._written("%i", "%limit", "%j", "%step")
        type_ = f"{'s' if self.is_signed else 'u'}{self.width}[]"
        return f"""HloModule loop, is_scheduled=true

%body (p: ({type_})) -> ({type_}) {{
  %p = ({type_}) parameter(0)
  %j = {type_} get-tuple-element(%p), index=0
  %step = {type_} constant({self.step})
  %next = {type_} {name}({change})
  ROOT %t = ({type_}) tuple(%next)
}}

%condition (q: ({type_})) -> pred[] {{
  %q = ({type_}) parameter(0)
  %i = {type_} get-tuple-element(%q), index=0
  %limit = {type_} constant({self.counter.limit})
  ROOT %test = pred[] compare({test}), direction={direction}
}}

ENTRY %main () -> ({type_}) {{
  %start = {type_} constant({self.counter.start})
  %init = ({type_}) tuple(%start)
  ROOT %w = ({type_}) while(%init), condition=%condition, body=%body
}}
"""


@st.composite
def loops(draw: st.DrawFn) -> Loop:
    width, is_signed = draw(st.sampled_from([2, 4, 8])), draw(st.booleans())
    low, high = (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if is_signed else (0, 2**width - 1)
    near = st.one_of(st.integers(low, high), st.sampled_from([low, low + 1, high - 1, high, 0, 1]))
    start, step, limit = draw(near), draw(near), draw(near)
    counter = Counter(draw(st.sampled_from([*HOLDS])), start, step, limit, low, high)
    return Loop(counter, width, *(draw(st.booleans()) for _ in range(3)))


def _loop(text: str) -> tuple[ir.Module, ir.Operation]:
    module = mlir.parse(text, "loop.mlir", mlir.context())
    (loop,) = mlir.find(module.operation, ["stablehlo.while"])
    return module, loop


@given(loops())
def test_the_text_of_a_loop_says_how_often_it_runs(loop: Loop) -> None:
    _, op = _loop(loop.mlir())
    assert trip_count(op) == _by_counting(loop.counter)
    module = hlo.read(loop.hlo())
    entry = module.computations[module.entry]
    assert hlo_trip_count.trip_count(module, entry, entry.instructions["w"]) == _by_counting(loop.counter)


def _check_peeled(module: ir.Module, loop: ir.Operation, counter: Counter) -> None:
    """Whether a loop without its last iteration, and that iteration after it, compute what all iterations compute."""
    values, counted = _counted(counter), peelable(loop)
    assert counted is not None
    assert values is not None
    assert counted.trip_count == len(values)
    with module.context:
        peel(loop, counted)
    (shorter,) = mlir.find(module.operation, ["stablehlo.while"])
    assert trip_count(shorter) == len(values) - 1
    found = [int(np.array(each)) for each in stablehlo.eval_module(module, [])]
    assert found == [len(values), sum(values), counter.wrapped(values[-1] + counter.step)]


@given(loops())
@settings(max_examples=40, suppress_health_check=[HealthCheck.filter_too_much])
def test_a_peeled_loop_does_what_it_did(loop: Loop) -> None:
    module, op = _loop(loop.mlir())
    assume(peelable(op) is not None)
    _check_peeled(module, op, loop.counter)


@pytest.mark.parametrize("is_mirrored", [False, True])
@pytest.mark.parametrize(
    ("direction", "start", "step", "limit"),
    [("LT", 1, 2, 127), ("LE", 0, 3, 100), ("GT", 100, -1, 0), ("GE", 5, -1, -128 + 1), ("NE", 6, -2, 0), ("LT", 0, 3, 125)],
)
def test_loops_of_every_direction_are_peeled(direction: str, start: int, step: int, limit: int, is_mirrored: bool) -> None:
    counter = Counter(direction, start, step, limit, -128, 127)
    _check_peeled(*_loop(Loop(counter, 8, is_mirrored, False, False).mlir()), counter)


def test_a_loop_that_wraps_is_not_peeled_by_its_limit() -> None:
    """It runs 213 times; no limit less one step ends it one iteration earlier."""
    _module, op = _loop(Loop(Counter("LT", 0, 3, 127, -128, 127), 8, False, False, False).mlir())
    assert trip_count(op) == 213
    assert peelable(op) is None


def test_narrowing_hides_a_counter() -> None:
    """The test is of the counter's last 8 bits, which wrap where it does not."""
    loop = Loop(Counter("LT", 0, 64, 100, -(2**31), 2**31 - 1), 32, False, False, False).hlo()
    narrow = loop.replace("  %limit = s32[] constant(100)", "  %k = s8[] convert(%i)\n  %limit = s8[] constant(100)")
    for text, count in ((loop, 2), (narrow.replace("compare(%i", "compare(%k"), None)):
        module = hlo.read(text)
        entry = module.computations[module.entry]
        assert hlo_trip_count.trip_count(module, entry, entry.instructions["w"]) == count
