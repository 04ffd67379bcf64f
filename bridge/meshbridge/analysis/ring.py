"""The ring model of a collective's cost: the bytes that one device sends if the group passes its data around in a ring.

The same formulas, one per kind, serve mesh IR, optimised HLO and plans by hand.
"""

from __future__ import annotations

from collections.abc import Callable

WIRE_BYTES: dict[str, Callable[[int, float], float]] = {
    "all-gather": lambda n, size: size * (n - 1) / n,
    "all-reduce": lambda n, size: size * 2 * (n - 1) / n,
    "reduce-scatter": lambda n, size: size * (n - 1) / n,
    "all-to-all": lambda n, size: size * (n - 1) / n,
    "ragged-all-to-all": lambda n, size: size * (n - 1) / n,
    "collective-broadcast": lambda n, size: size * (n - 1) / n,
    "collective-permute": lambda n, size: size,
}
"""Bytes on the wire per device from (devices in a group, bytes of the larger local buffer), by HLO's name of the kind.

The buffer is the larger side: an all-gather's result, a reduce-scatter's operand. A permute's size counts only the devices
that send to another one: the caller scales it by their fraction.
"""
