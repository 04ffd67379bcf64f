"""What a program is planned and compiled for: how users write it, and as options of passes."""

from __future__ import annotations

from dataclasses import fields
from math import inf
from pathlib import Path
from typing import Any

import pytest

from meshbridge import pass_names, pipeline
from meshbridge.ir.mlir import MeshError
from meshbridge.ir.passes import Pass
from meshbridge.machines import machine
from meshbridge.machines.compile_target import NO_DEVICE, PARTS, CompileTarget, bytes_in
from meshbridge.overlap.attention.ring_attention import RingAttention
from tests.machines.examples import MINE


def test_a_target_is_resolved_once() -> None:
    found = CompileTarget.of("v5p:4x4x4", "data=x", "best", "80GB")
    assert found.machine == machine.named("v5p").under("best")
    assert found.devices is not None
    assert (found.devices.topology, found.devices.layout, found.devices.machine) == ((4, 4, 4), {"data": ("x",)}, found.machine)
    assert (found.written_limit, found.implied_limit) == (80e9, inf)
    assert found.but() == found
    assert found.but(machine="v5e:2x4", layout="") == CompileTarget.of("v5e:2x4", "", "best", 80e9)
    alone = found.without_topology
    assert alone == CompileTarget.of("v5p", compiler_options="best", memory_limit="80GB")
    assert alone.without_topology == alone


@pytest.mark.parametrize("name", NO_DEVICE)
def test_targets_without_a_device(name: str) -> None:
    found = CompileTarget.of(name)
    assert (found.machine, found.devices, found.written_limit, found.implied_limit) == (None, None, inf, inf)
    assert found.but(memory_limit="2GB").written_limit == 2e9
    with pytest.raises(MeshError, match=f"machine '{name}' is no device, expected one of .*v5p"):
        found.check_device()
    with pytest.raises(AssertionError):
        CompileTarget("v5p")


def test_the_limit_of_memory() -> None:
    has = machine.named("h100").memory_bytes
    limits = {None: (inf, has), "none": (inf, inf), "16GiB": (16 * 2**30, inf), 1e9: (1e9, inf)}
    for written, expected in limits.items():
        found = CompileTarget.of("h100", memory_limit=written)
        assert (found.written_limit, found.implied_limit) == expected
        assert found.but() == found


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"machine": "abacus"}, "unknown machine 'abacus', expected one of bytes, neutral, "),
        ({"machine": 3}, "machine is 3, expected the name of one or the path of its file"),
        ({"machine": "v5p:4x4"}, "expected a topology of 3 positive numbers"),
        ({"layout": "data"}, "expected a layout AXIS=LINK"),
        ({"machine": "v5p", "layout": "data"}, "expected a layout AXIS=LINK"),
        ({"machine": "v5p:4x4x4", "layout": "data"}, "expected a layout AXIS=LINK"),
        ({"compiler_options": "fast"}, "compiler-options is 'fast', expected one of default, best"),
        ({"memory_limit": "much"}, "memory-limit is 'much', expected a positive number of bytes"),
    ],
)
def test_what_is_no_target(written: dict[str, Any], message: str) -> None:
    for read in (CompileTarget.of, pipeline.Options.of):
        with pytest.raises(MeshError) as caught:
            read(**written)
        assert message in str(caught.value)


def test_a_layout_needs_a_topology() -> None:
    with pytest.raises(MeshError, match="layout has no effect without a machine of a topology"):
        pipeline.Options.of(machine="v5p", layout="data=x")


def test_options_are_written_by_their_names() -> None:
    options = pipeline.Options.of(machine="v5p:4x4x4", layout="data=x", collectives="off")
    assert options.but(machine="v5e:2x4", inside="closed") == pipeline.Options.of(
        machine="v5e:2x4", layout="data=x", collectives="off", inside="closed"
    )
    written = options.all_written()
    assert {*written} == {*PARTS, *(each.name for each in fields(options))} - {"target"}
    assert pipeline.Options.of(**written) == options
    assert options.limited(1e9).target == options.target.but(memory_limit=1e9)


@pytest.mark.parametrize(
    ("text", "size"), [(1e9, 1e9), (5, 5), ("7", 7), ("80GB", 80e9), ("16 GiB", 16 * 2**30), ("1.5TB", 1.5e12), ("2e3 MB", 2e9)]
)
def test_sizes(text: float | str, size: float) -> None:
    assert bytes_in(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-3GB", "0", "3 parsecs", "1.2.3", "nan", "inf", float("nan"), float("inf"), -1])
def test_what_is_no_size(text: float | str) -> None:
    with pytest.raises(MeshError, match=r"memory-limit is .*, expected a positive number of bytes, or one as in 80GB"):
        CompileTarget.of(memory_limit=text)


TARGETED = [name for name, step in pass_names.registered_passes().items() if "target" in vars(step)["__dataclass_fields__"]]
"""The passes that are for a target."""


def target_of(step: Pass) -> CompileTarget:
    found: CompileTarget = step.target  # type: ignore[attr-defined]
    return found


def test_passes_with_a_target() -> None:
    assert {"sharding-refinement", "mesh-spmdization", "merge-permutes", "lower-collectives", "keep-schedule"} < {*TARGETED}


@pytest.mark.parametrize("name", TARGETED)
def test_a_pass_takes_the_parts_of_its_target(name: str, tmp_path: Path) -> None:
    """In any order, and as any of its options are written."""
    text = "layout=data=x,model=y+z compiler-options=best machine=v5p:4x4x4 memory-limit=80GB"
    expected = CompileTarget.of("v5p:4x4x4", "data=x,model=y+z", "best", "80GB")
    assert target_of(pass_names.make_pass(name, text)) == expected
    assert (
        target_of(pass_names.parse_pipeline(f"builtin.module({name}{{{text.replace('-options', '_options')}}})")[0]) == expected
    )
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    assert target_of(pass_names.make_pass(name, f"machine={path}")) == CompileTarget.of(str(path))
    assert {*PARTS} <= {*pass_names.defaults(pass_names.make_pass(name))}
    assert pass_names.defaults(pass_names.make_pass(name, text))["machine"] == "v5p:4x4x4"
    with pytest.raises(MeshError, match="unknown machine 'abacus'"):
        pass_names.make_pass(name, "machine=abacus")
    with pytest.raises(MeshError, match="layout has no effect without a machine of a topology, as in v5p:4x4x4"):
        pass_names.make_pass(name, "machine=v5p layout=data=x")
    with pytest.raises(MeshError, match="compiler-options is 'fast', expected one of default, best"):
        pass_names.make_pass(name, "machine=v5p compiler-options=fast")


def test_parts_of_no_target() -> None:
    with pytest.raises(MeshError, match="option 'compiler-options' of pass 'keep-schedule' has no effect without machine"):
        pass_names.make_pass("keep-schedule", "compiler-options=best")
    with pytest.raises(MeshError, match="pass 'simplify' has no option 'machine'"):
        pass_names.make_pass("simplify", "machine=v5p")
    with pytest.raises(MeshError, match="pass 'keep-schedule' has no option 'target', expected one of machine, layout, "):
        pass_names.make_pass("keep-schedule", "target=v5p")


def test_an_option_by_its_earlier_name() -> None:
    expected = RingAttention(CompileTarget.of("v5e", memory_limit=8e9))
    assert pass_names.make_pass("ring-attention", "machine=v5e memory=8e9") == expected
    assert pass_names.make_pass("ring-attention", "machine=v5e memory-limit=8GB") == expected
