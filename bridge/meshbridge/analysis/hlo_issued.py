"""Finds the instruction that starts each collective of an optimised module, and the one that waits for it.

| written as | by the compiler for | is |
|---|---|---|
| `all-gather` | CPU, TPU | synchronous |
| `all-gather-start`, `all-gather-done` | GPU, TPU (permutes) | asynchronous, unless the GPU's configuration says `is_sync` |
| `async-start`, `async-done` around a computation that contains it | any | asynchronous |
| `call-start`, `call-done` around a computation that contains it | TPU, on its SparseCore | asynchronous |
| a fusion that contains an all-reduce and a slice of its result | TPU | a synchronous reduce-scatter |
| a chain of fusions that all contain it | TPU | asynchronous |

In a chain, `AsyncCollectiveStart` reads the collective of the first fusion and `AsyncCollectiveDone` that of the last; those
between them compute meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from meshbridge.analysis.hlo import Computation, HloError, HloModule, Instruction
from meshbridge.analysis.hlo_schedule import HloSchedule
from meshbridge.analysis.ring import WIRE_BYTES

Site = tuple[Computation, Instruction]
"""An instruction and its computation."""


@dataclass(frozen=True)
class IssuedCollective:
    """A collective `op` of `computation`, which is part of one instruction of the schedule if `fused`."""

    computation: Computation
    op: Instruction
    fused: bool
    asynchronous: bool = False
    overlapped: bool = False

    @property
    def kind(self) -> str:
        return self.op.opcode.removesuffix("-start")


def issued_collectives(module: HloModule) -> dict[tuple[str, str], list[IssuedCollective]]:
    """By computation and instruction, the collectives that it starts. Raises HloError for one without an end."""
    schedule = HloSchedule(module)
    issued: dict[tuple[str, str], list[IssuedCollective]] = defaultdict(list)
    chains: dict[str, dict[str, list[tuple[Site, Site]]]] = {_START: defaultdict(list), _DONE: defaultdict(list)}
    for computation, op in _scheduled(module):
        key = (computation.name, op.name)
        if op.opcode.removesuffix("-start") in WIRE_BYTES:
            issued[key].append(_begun(schedule, computation, op, (computation, op), fused=False))
        elif op.opcode == "send" and op.attribute("is_host_transfer") != "true":
            raise HloError(f"send %{op.name}: what devices send each other by send and recv is not read; only collectives are")
        elif op.runs_inline:
            for body, collective in _fused_collectives(module, op):
                if _CHAINED not in collective.attributes:
                    issued[key].append(_begun(schedule, computation, op, (body, collective), fused=True))
                elif (end := _end(body, collective)) is not None:
                    chains[end][_chain(collective)].append(((computation, op), (body, collective)))
    for chain, starts in chains[_START].items():
        dones = chains[_DONE].pop(chain, [])
        if len(starts) != 1 or len(dones) != 1:
            raise HloError(f"the asynchronous collective of chain {chain} is begun {len(starts)} and ended {len(dones)} times")
        ((computation, op), (body, collective)), (done, _) = starts[0], dones[0]
        overlapped = schedule.overlaps((computation, op), done)
        issued[computation.name, op.name].append(
            IssuedCollective(body, collective, fused=True, asynchronous=True, overlapped=overlapped)
        )
    if chains[_DONE]:
        raise HloError(f"asynchronous collectives of chains {sorted(chains[_DONE])} are ended but not begun")
    return issued


_CHAINED = '"async_collective_fusion_config"'
_START, _DONE = "AsyncCollectiveStart", "AsyncCollectiveDone"


def _scheduled(module: HloModule) -> Iterator[Site]:
    """The instructions of computations with a schedule of their own."""
    for computation in module.computations.values():
        if computation.name not in module.inlined:
            yield from ((computation, op) for op in computation.instructions.values())


def _fused_collectives(module: HloModule, op: Instruction) -> Iterator[Site]:
    """The collectives inside an instruction."""
    for body in module.called(op):
        for inner in body.instructions.values():
            if inner.runs_inline:
                yield from _fused_collectives(module, inner)
            elif inner.opcode in WIRE_BYTES:
                yield body, inner


def _begun(schedule: HloSchedule, computation: Computation, op: Instruction, site: Site, *, fused: bool) -> IssuedCollective:
    if not op.opcode.endswith("-start") or op.attribute("is_sync") == "true":
        return IssuedCollective(*site, fused=fused)
    done = schedule.done(computation, op)
    return IssuedCollective(
        *site, fused=fused, asynchronous=True, overlapped=schedule.overlaps((computation, op), (computation, done))
    )


def _end(body: Computation, collective: Instruction) -> str | None:
    """The end of its chain at which a collective is; None in the middle."""
    targets = {user.attribute("custom_call_target") for user in body.users[collective.name]}
    return next((end for end in (_START, _DONE) if end in targets), None)


def _chain(collective: Instruction) -> str:
    chain = collective.attribute("chain_id")
    if chain is None:
        raise HloError(f"{collective.opcode} %{collective.name} is a part of an asynchronous collective, but has no chain_id")
    return chain
