"""Everything that is read from the optimised HLO of one device's program."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshbridge.analysis import hlo, hlo_flops
from meshbridge.analysis.hlo_communication import communication


@dataclass(frozen=True)
class HloFigures:
    """All per device and run. Bytes are wire bytes in the ring model (see `ring`), loop bodies as often as they go round."""

    wire_bytes: float = 0.0
    scattered_bytes: float = 0.0
    "Wire bytes if each all-reduce that is only sliced were the reduce-scatter that it amounts to (XLA forms none on CPU)."
    bytes_by_kind: dict[str, float] = field(default_factory=dict)
    bytes_by_element: dict[str, dict[str, float]] = field(default_factory=dict)
    "Of each kind by HLO's names of the element types: compilers send float32 as bfloat16 where only products read it."
    count_by_kind: dict[str, int] = field(default_factory=dict)
    collectives: int = 0
    executed_collectives: int = 0
    synchronous: int = 0
    "Of the executed collectives, those for which the device waits at once."
    asynchronous: int = 0
    "Those that are begun by one instruction and waited for by another."
    exposed_bytes: float = 0.0
    "Wire bytes of synchronous collectives, and of asynchronous ones during which nothing computes."
    overlapped_bytes: float = 0.0
    "Wire bytes of asynchronous collectives during which something computes."
    flops: float = 0.0
    "Of dot products and convolutions, two for each multiply-add."
    widened_flops: float = 0.0
    "Of them, those of products of 16-bit floats whose results have 32 bits: XLA's model of GPUs takes them to be very slow."
    uncounted_calls: tuple[str, ...] = ()
    "Custom calls that may compute products but do not say how many."
    unknown_loops: tuple[str, ...] = ()
    "Loops without a known trip count: their bodies are counted once."


def figures(text: str) -> HloFigures:
    """The figures of a module as XLA prints it. Raises HloError for a text that is not optimised HLO."""
    module = hlo.read(text)
    sent = communication(module)
    computed = hlo_flops.count_flops(module)
    return HloFigures(
        wire_bytes=sent.wire_bytes,
        scattered_bytes=sent.scattered_bytes,
        bytes_by_kind=sent.bytes_by_kind(),
        bytes_by_element=sent.bytes_by_element(),
        count_by_kind=sent.count_by_kind(),
        collectives=len(sent.collectives),
        executed_collectives=sent.executed,
        synchronous=sent.executed - sent.asynchronous,
        asynchronous=sent.asynchronous,
        exposed_bytes=sent.wire_bytes - sent.overlapped_bytes,
        overlapped_bytes=sent.overlapped_bytes,
        flops=computed.total,
        widened_flops=computed.widened,
        uncounted_calls=computed.uncounted,
        unknown_loops=sent.unknown_loops,
    )
