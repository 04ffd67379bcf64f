"""The figures read from the optimised HLO of one device's program."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshbridge.analysis import hlo, hlo_flops
from meshbridge.analysis.hlo_communication import communication


@dataclass(frozen=True)
class HloFigures:
    """Per device and run. Bytes are wire bytes in the ring model (see `ring`); loops count by their trip counts."""

    wire_bytes: float = 0.0
    scattered_bytes: float = 0.0
    "Wire bytes with each all-reduce whose result is only sliced counted as a reduce-scatter (XLA forms none on CPU)."
    bytes_by_kind: dict[str, float] = field(default_factory=dict)
    bytes_by_element: dict[str, dict[str, float]] = field(default_factory=dict)
    "By kind and by HLO's type names: compilers send float32 as bfloat16 if only products read it."
    count_by_kind: dict[str, int] = field(default_factory=dict)
    collectives: int = 0
    executed_collectives: int = 0
    synchronous: int = 0
    "The executed collectives that block the device."
    asynchronous: int = 0
    "The executed collectives with a start and a done instruction."
    exposed_bytes: float = 0.0
    "Wire bytes of synchronous collectives, and of asynchronous ones without computation meanwhile."
    overlapped_bytes: float = 0.0
    "Wire bytes of asynchronous collectives with computation meanwhile."
    flops: float = 0.0
    "Of dot products and convolutions, two for each multiply-add."
    widened_flops: float = 0.0
    "The flops of products of 16-bit floats with 32-bit results: XLA's model of GPUs takes them to be very slow."
    uncounted_calls: tuple[str, ...] = ()
    "Custom calls that may compute products without a known number of flops."
    unknown_loops: tuple[str, ...] = ()
    "Loops without a known trip count: their bodies are counted once."


def figures(text: str) -> HloFigures:
    """The figures of a module as XLA prints it. Raises HloError for a text that is not optimised HLO."""
    module = hlo.read(text)
    communicated = communication(module)
    computed = hlo_flops.count_flops(module)
    return HloFigures(
        wire_bytes=communicated.wire_bytes,
        scattered_bytes=communicated.scattered_bytes,
        bytes_by_kind=communicated.bytes_by_kind(),
        bytes_by_element=communicated.bytes_by_element(),
        count_by_kind=communicated.count_by_kind(),
        collectives=len(communicated.collectives),
        executed_collectives=communicated.executed,
        synchronous=communicated.executed - communicated.asynchronous,
        asynchronous=communicated.asynchronous,
        exposed_bytes=communicated.wire_bytes - communicated.overlapped_bytes,
        overlapped_bytes=communicated.overlapped_bytes,
        flops=computed.total,
        widened_flops=computed.widened,
        uncounted_calls=computed.uncounted,
        unknown_loops=communicated.unknown_loops,
    )
