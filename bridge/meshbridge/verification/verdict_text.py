"""A verdict in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshbridge.text import counted

if TYPE_CHECKING:
    from meshbridge.verification.trace import Parting
    from meshbridge.verification.verdict import ResultDifference, Verdict


def headline(verdict: Verdict) -> str:
    """Whether the programs are equal, or which results differ."""
    if not verdict.equal:
        return f"different: {', '.join(f'result {difference.result}' for difference in verdict.differences)}"
    inputs, fields = len(verdict.kinds), len(set(verdict.primes))
    return f"equal on {counted(inputs, 'random input')} over {counted(fields, 'field')}"


def text(verdict: Verdict) -> str:
    """The headline with the probability that it is wrong and the kinds of inputs, or a paragraph for each difference."""
    if verdict.equal:
        return f"{headline(verdict)}: {_chance_text(verdict)}\n  inputs: {'; '.join(verdict.kinds)}"
    differences = [_difference_text(difference) for difference in verdict.differences]
    return "\n".join([*differences, *([] if verdict.parting is None else [_parting_text(verdict.parting)])])


def _chance_text(verdict: Verdict) -> str:
    runs = len(verdict.uniform_primes)
    if not runs:
        return "none of them is uniformly random, so no probability of a wrong verdict is known"
    power = "d" if runs == 1 else f"d^{runs}"
    return (
        "a wrong program, whose results differ by a polynomial of degree d, would pass with probability below "
        f"{_rounded_up(verdict.chance)} * {power}"
    )


def _rounded_up(chance: float) -> str:
    """Two digits, at least as much."""
    rounded = f"{chance:.1e}"
    return rounded if float(rounded) >= chance else f"{chance * 1.05:.1e}"


def _parting_text(parting: Parting) -> str:
    devices = ", ".join(map(str, parting.devices))
    where = f"{parting.location}: the first value that differs is result {parting.result} of '{parting.op}'"
    if parting.devices:
        where += f": on device {devices}, there first in element [{', '.join(map(str, parting.element))}] of the shard"
    return where + _cause_text(parting.cause)


def _cause_text(cause: str) -> str:
    return f"\n  plausible cause: {cause}" if cause else ""


def _difference_text(difference: ResultDifference) -> str:
    if difference.contradiction:
        return f"different: {difference.contradiction}{_cause_text(difference.cause)}"
    element = f"[{', '.join(map(str, difference.first))}]"
    extent = f"result {difference.result} in {difference.elements} of {difference.of} elements, the first at {element}"
    return f"different: {extent}{_cause_text(difference.cause)}"
