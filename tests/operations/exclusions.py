"""What the drawn families leave out: the family, the reason, and the fault of XLA that a test shows.

`test_exclusions.py` runs each fault; when XLA mends one, its test fails, and the exclusion goes. docs/propagation.md lists them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Exclusion:
    """`what` no case of `family` has, and why: the fault is the test of that name in `test_exclusions.py`."""

    family: str
    what: str
    reason: str
    fault: str


REFUSED_BY_XLA = frozenset((name, dtype) for name in ("erfc", "bessel_i1e") for dtype in ("float8_e4m3fn", "float8_e5m2"))
"""Functions, and the dtypes on which XLA's CPU backend does not compile them."""

_SKIPPED = "XLA skips some windows that read padding alone, where zero times NaN is NaN"

FINITE = {
    "reduce_variadic": "its body compares, and with a NaN is not associative: no order of evaluation is the right one",
    "convolution": _SKIPPED,
    "convolution_gradient": _SKIPPED,
    "scan_op": "it multiplies partial values: the terms of a finite number times infinity add up to NaN",
}
"""Families whose operands hold neither NaN nor infinities, and why: by name."""

EXCLUSIONS = (
    Exclusion(
        "unary",
        "`erfc` and `bessel_i1e` on floats of 8 bits",
        "XLA does not compile them",
        "test_functions_that_xla_does_not_compile",
    ),
    Exclusion(
        "reduce_window_variadic",
        "sums that start from anything but 0",
        "XLA leaves the padding of several operands out, where StableHLO has it hold the initial value",
        "test_windows_of_two_leave_their_padding_out",
    ),
)
"""All but FINITE."""
