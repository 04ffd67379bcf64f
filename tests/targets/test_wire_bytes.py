"""What the compilers of accelerators send of our programs is what we wrote, kind by kind.

XLA:GPU keeps every collective as it is. XLA:TPU makes three changes:

- float32 that only products read travels as bfloat16, in half the bytes, where products are computed in bfloat16;
- a reduce-scatter whose shards are too small becomes an all-reduce, of twice the bytes, and a slice; a small all-gather
  becomes one of its operand, padded with zeros;
- a reduce-scatter along a dimension that tiles do not divide is padded, and its shards are moved on by permutes.
"""

from __future__ import annotations

from collections import Counter

import jax
import pytest

import meshbridge
from meshbridge.ir.mlir import context
from meshbridge.read import formats
from meshbridge.runtime import targets
from meshbridge.tools.compare import command
from meshbridge.tools.compare.contestants import OURS, PEERS
from meshbridge.tools.compare.figures import Figures
from testdata.catalogue import MEASURED, build
from tests.targets.installed import target

SMALL = ("misc_fft2", "mlp_ws2d", "moe_grad")
"""What continuous integration compiles, in some seconds each: all kinds of collectives but permutes."""

PROGRAMS = [pytest.param(name, marks=() if name in SMALL else pytest.mark.slow) for name in MEASURED]

EXACT = 1e-3
"""Of all bytes of a program."""

pytestmark = pytest.mark.targets


def compiled(
    program: str, text: str, monkeypatch: pytest.MonkeyPatch, machine: str | None = None
) -> tuple[Counter[str], Figures]:
    """The bytes of the collectives that we write, by HLO's names of their kinds, and what a compiler makes of the program. The
    plan is the best for `machine`, by default the target's device."""
    chosen = target(text)
    machine = machine or chosen.device
    platform = targets.EXPORT_PLATFORM[chosen.machine.platform]
    exported = build(program).export_for(platform)
    report = meshbridge.report(meshbridge.partition(exported, emit="local", machine=machine))
    written: Counter[str] = Counter()
    for collective in report.collectives:
        written[collective.kind.replace("_", "-")] += collective.total_bytes  # type: ignore[assignment]  # typed for int only
    monkeypatch.delenv("XLA_FLAGS")  # they are for tests that run on CPUs
    (compared,) = command.compare_for(formats.unpack(exported, context()), [chosen], machine=machine, without=PEERS)
    found = compared.figures[OURS]
    assert not found.error
    assert len(found.unknown_loops) == len(report.unknown_loops)
    assert found.modelled is not None, found.unmodelled
    return written, found


def check(sent: Counter[str], written: Counter[str]) -> None:
    """Every kind within EXACT of the total."""
    kinds = {*sent, *written}
    exact = EXACT * written.total()
    assert {kind: sent[kind] for kind in kinds} == pytest.approx({kind: written[kind] for kind in kinds}, abs=exact)


def as_all_reduces(written: Counter[str], sent: Counter[str]) -> Counter[str]:
    """What was written, if what is missed of reduce-scatters and all-gathers became all-reduces, of twice the bytes."""
    missed = Counter({kind: written[kind] - sent[kind] for kind in ("reduce-scatter", "all-gather")})
    assert min(missed.values()) >= -EXACT * written.total()
    return written + Counter({"all-reduce": 2 * sum(missed.values())}) - missed


@pytest.mark.parametrize("program", PROGRAMS)
def test_xla_for_gpus_sends_what_we_wrote(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written, found = compiled(program, "gpu:h100:1x1x8", monkeypatch)
    check(Counter(found.bytes_by_kind), written)


@pytest.mark.parametrize("program", PROGRAMS)
def test_xla_for_tpus_sends_what_we_wrote(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with jax.default_matmul_precision("highest"):  # else it computes products in bfloat16
        written, found = compiled(program, "tpu:v5e:2x4", monkeypatch)
    sent = Counter(found.bytes_by_kind)
    check(sent, as_all_reduces(written, sent))


@pytest.mark.slow
def test_xla_for_tpus_pads_some_reduce_scatters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Along a dimension that tiles do not divide."""
    with jax.default_matmul_precision("highest"):
        written, found = compiled("vit", "tpu:v5e:2x4", monkeypatch, machine="bytes")
    assert sum(found.bytes_by_kind.values()) == pytest.approx(1.125 * written.total(), rel=1e-2)


SLOW = pytest.mark.slow


@pytest.mark.parametrize("program", ["moe_grad", pytest.param("gpt3", marks=SLOW), pytest.param("cp_attn_grad", marks=SLOW)])
@pytest.mark.parametrize("target", ["tpu:v5e:2x4", pytest.param("tpu:v5p:2x2x2", marks=SLOW)])
def test_xla_for_tpus_narrows_what_only_products_read(program: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs have no bfloat16 of their own; their plans of the fewest bytes send what only products read."""
    written, found = compiled(program, target, monkeypatch, machine="bytes")
    sent = Counter({kind: sum(by.values()) + by.get("bf16", 0) for kind, by in found.bytes_by_element.items()})
    assert any("bf16" in by for by in found.bytes_by_element.values())
    check(sent, as_all_reduces(written, sent))
