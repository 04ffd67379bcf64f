"""The files of machines: one of the user's own, what comes with meshbridge, topologies, and what is no such file."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from meshbridge.ir.mlir import MeshError
from meshbridge.machines import machine, target
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.runtime import targets
from tests.house import BRIDGE
from tests.machines.examples import MINE

NETWORK = '[network]\nsource = "its box"\nname = "net"\nbandwidth = 1e9\nlatency = 1e-6\nlaunch = 1e-6\nefficiency = 1\n'


def test_a_device_of_one_s_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    found = target.parse(f"gpu:{path}:1x1x2").machine
    assert (found.name, found.flops["bf16"], found.memory_bytes) == ("mine", 1e14, 1 << 34)
    assert " ".join(targets.text_proto(targets.target_config(found))) == (
        'platform_name: "CUDA" gpu_device_info { core_count: 40 cuda_compute_capability { major: 9 minor: 0 '
        "feature_extension: ACCELERATED_FEATURES } device_memory_size: 17179869184 memory_bandwidth: 1000000000000 "
        'name: "mine" } device_description_str: "mine"'
    )


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("platform =", "platform", "not a TOML file: "),
        ('platform = "gpu"\n', "", "platform is missing"),
        ("bandwidth = 1e12", "", "memory.bandwidth is missing"),
        ("launch = 2e-6", "", "link.launch is missing"),
        ("launch = 2e-6", "launch = 0", "link.launch: expected a positive number, found 0"),
        ("launch = 2e-6", "launch = 2e-6\nkinds = { gather = {} }", "unknown key link.kinds.gather, expected all_gather, "),
        (
            "launch = 2e-6",
            "launch = 2e-6\nkinds.all_gather = { latency = 1 }",
            "unknown key link.kinds.all_gather.latency, expected launch, ",
        ),
        (
            "launch = 2e-6",
            "launch = 2e-6\nkinds.all_gather = { launch = 0 }",
            "link.kinds.all_gather.launch: expected a positive number",
        ),
        (
            "launch = 2e-6",
            "launch = 2e-6\nkinds.all_gather = { efficiency = 2 }",
            "link.kinds.all_gather.efficiency: expected a number above 0",
        ),
        ('kind = "switch"', 'kind = "bus"', "link.kind: expected torus or switch, found 'bus'"),
        ('kind = "switch"', "", "link.kind: expected torus or switch, found None"),
        ("reduction = 1", "wrap_all = true", "link.reduction is missing"),
        ('kind = "switch"', 'kind = "torus"', "link.wrap_multiple is missing"),
        ('kind = "switch"', 'kind = "torus"\nwrap_multiple = 4\nwrap_all = 1', "link.wrap_all: expected true or false, found 1"),
        ("efficiency = 0.5", "efficiency = 1.5", "link.efficiency: expected a number above 0 and of at most 1, found 1.5"),
        ("efficiency = 0.8", "efficiency = 0.0", "step.efficiency: expected a number above 0 and of at most 1, found 0.0"),
        (
            '["all_gather"]',
            '["gather"]',
            "step.async_collectives: expected some of all_gather, all_reduce, reduce_scatter, ",
        ),
        ('["all_gather"]', "[1]", "collective_broadcast, collective_permute, found 1"),
        (
            "combines_collectives = true",
            'combines_collectives = true\ntwo_stage = { all_to_all = "all" }',
            "unknown key step.two_stage.all_to_all, expected all_gather, ",
        ),
        (
            "combines_collectives = true",
            'combines_collectives = true\ntwo_stage = { all_gather = "some" }',
            "step.two_stage: expected some of all, rings, square, found 'some'",
        ),
        (
            "[compiler]",
            '[step.best]\nasync_collectives = ["permute"]\n[options.explicit]\nxla_a = 1\n[compiler]',
            "step.best.async_collectives: expected some of all_gather, all_reduce, reduce_scatter, ",
        ),
        (
            "[compiler]",
            "[step.best]\nlaunch = 1\n[compiler]",
            "unknown key step.best.launch, expected async_collectives, collective_pipelining, ",
        ),
        (
            "combines_collectives = true",
            'combines_collectives = true\ncollective_pipelining = "some"',
            "step.collective_pipelining: expected one of none, offloaded, all, found 'some'",
        ),
        (
            "[compiler]",
            '[step.best]\ncollective_pipelining = "some"\n[options.explicit]\nxla_a = 1\n[compiler]',
            "step.best.collective_pipelining: expected one of none, offloaded, all, found 'some'",
        ),
        (
            "[compiler]",
            '[step.best]\ncollective_matmul = "no"\n[compiler]',
            "step.best.collective_matmul: expected true or false, found 'no'",
        ),
        (
            "[compiler]",
            "[step.best]\ncollective_matmul = true\n[compiler]",
            "options.explicit is missing: step.best says what a step does",
        ),
        ("launch = 1e-6", "launch = 1e-6\nrow_elements = -1", "step.row_elements: expected no negative number, found -1"),
        ("launch = 1e-6", "launch = -1", "step.launch: expected no negative number, found -1"),
        ("[step]", "[steps]", "step is missing"),
        ("[compiler]", "[network]\nspeed = 3\n[compiler]", "network.source is missing"),
        ("[compiler]", NETWORK + "held_price = -1\n[compiler]", "network.held_price: expected no negative number, found -1"),
        ("launch = 2e-6", "launch = 2e-6\nheld_price = 1", "unknown key link.held_price, expected"),
        ("devices_per_chip = 1", "devices_per_chip = 2", "chip is missing: it says what connects the 2 devices of one"),
        ("bf16 = 1e14", 'bf16 = "fast"', "flops.bf16: expected a number, found 'fast'"),
        ("devices_per_chip = 1", "devices_per_chip = true", "devices_per_chip: expected a whole number, found True"),
        ("[memory]", "[storage]", "memory is missing"),
        ('source = "its box"', 'source = "its box"\nspeed = 3', "unknown key memory.speed, expected source, bytes, bandwidth"),
        ('"gpu"', '"npu"', "expected platform tpu or gpu or cpu, found 'npu'"),
        ('name = "mine"', "", "compiler.name is missing"),
    ],
)
def test_files_that_describe_no_device(before: str, after: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE.replace(before, after))
    with pytest.raises(MeshError) as caught:
        machine.load(path)
    assert str(caught.value).startswith(f"{path}: error: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("section", "before", "now"),
    [
        ("", 'kinds = ["Ours"]', "device_kinds"),
        *(
            ("step.", line, now)
            for line, now in (
                ("repeats = true", "duplicates_expensive_ops"),
                ("combines = true", "combines_collectives"),
                ('asynchronous = ["all_gather"]', "async_collectives"),
                ('staged = { all_gather = "all" }', "two_stage"),
                ('prefetches = "all"', "collective_pipelining"),
                ("slices = true", "fuses_slices"),
                ("divides = true", "collective_matmul"),
                ("opens = true", "refines_constraints"),
                ("arranged = 1e9", "copy_bandwidth"),
                ("copied_bytes = 1e9", "aliased_gather_copy_bytes"),
            )
        ),
        *(
            ("step.best.", line, now)
            for line, now in (
                ('asynchronous = ["all_gather"]', "async_collectives"),
                ('prefetches = "all"', "collective_pipelining"),
                ("divides = true", "collective_matmul"),
            )
        ),
    ],
)
def test_keys_of_earlier_releases_are_refused_by_name(section: str, before: str, now: str, tmp_path: Path) -> None:
    """In a file that is of an earlier release as a whole, in which the keys of today are missing."""
    path, key = tmp_path / "mine.toml", before.partition(" ")[0]
    without = "".join(line for line in MINE.splitlines(keepends=True) if not line.startswith(now))
    heading = {"": "[flops]", "step.": "[compiler]", "step.best.": "[compiler]"}[section]
    line = f"[step.best]\n{before}" if section == "step.best." else before
    path.write_text((MINE if section == "step.best." else without).replace(heading, f"{line}\n{heading}", 1))
    with pytest.raises(MeshError) as caught:
        machine.load(path)
    assert str(caught.value) == f"{path}: error: {section}{key}: `{key}` is now `{now}`"


def test_a_value_of_earlier_releases_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE.replace("[compiler]", 'collective_pipelining = "aside"\n[compiler]', 1))
    with pytest.raises(MeshError, match=r"step\.collective_pipelining: `aside` is now `offloaded`"):
        machine.load(path)


def test_a_machine_reads_the_same_in_every_process() -> None:
    """A plan that is kept for other processes is found by this text, which must not depend on how strings are hashed."""
    script = "from meshbridge.machines.machine import named; print(named('v5p').under('best'))"
    texts = {
        subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(texts) == 1


def test_a_device_under_its_best_options(tmp_path: Path) -> None:
    """What the file does not say of them is as by default."""
    path = tmp_path / "mine.toml"
    best = '[step.best]\nasync_collectives = ["all_reduce"]\ncollective_pipelining = "all"\n[options.explicit]\nxla_a = 1\n'
    path.write_text(MINE.replace("[compiler]", f"{best}[compiler]", 1))
    found = target.of_machine(f"{path}:1x1x2").machine
    under = target.of_machine(f"{path}:1x1x2", compiler_options="best").machine
    assert (found.async_collectives, found.collective_pipelining, found.collective_matmul) == (("all_gather",), "none", False)
    assert (under.async_collectives, under.collective_pipelining, under.collective_matmul) == (("all_reduce",), "all", False)
    assert replace(under, async_collectives=found.async_collectives, collective_pipelining="none") == found
    assert machine.named("v5p").under("default") == machine.named("v5p")


def test_what_comes_with_meshbridge() -> None:
    """Each device says where its figures come from, and what its compiler must know of it."""
    for (platform, name), each in machine.machines().items():
        path = BRIDGE / "machines" / platform / f"{name}.toml"
        assert each.platform == platform
        assert path.read_text().count("source = ") == {"tpu": 5 + (name == "7x"), "gpu": 6, "cpu": 4}[platform]
        assert 5e4 < each.link.launch_bytes < 2e7
        for dtype in ("f8E4M3FN", "bf16", "f16", "f32", "f64", "si8", "ui4", "i32", "complex<f32>"):
            assert each.peak(dtype) > 0
        if platform != "cpu":
            assert each.flops["bf16"] > 1e14
            assert 1 << 33 < each.memory_bytes < 1 << 38
            assert 5e11 < each.memory_bandwidth < 1e13
            assert len(each.topology) == 3 or name in ("v5e", "v6e")
            assert each.network is not None
            assert each.network.rate < each.link.rate


def test_holding_costs_more_where_launches_do() -> None:
    """The price of a network counts on several nodes or slices, if its machine has one."""
    expected = {"neutral": None, "h100": 4, "h100:1x1x8": 4, "h100:1x2x8": 8, "a100:1x2x8": 4, "v5p:2x4x4x4": None}
    assert {name: CompileTarget.of(name).held_price for name in expected} == expected


def test_the_template_is_a_machine() -> None:
    """Whoever copies it has every key, with its meaning."""
    found = machine.load(BRIDGE / "machines" / "template.toml")
    assert [link.name for link in (found.network, found.link, found.chip) if link is not None] == ["network", "link", "chip"]
    assert found.peak("f32") == found.flops["bf16"]
    with pytest.raises(MeshError, match="machine 'template' has no FLOP/s for token, expected those of token"):
        found.peak("token")


@pytest.mark.parametrize(
    ("written", "topology", "slices", "devices"),
    [
        ("v5p:4x4x4", (4, 4, 4), 1, 64),
        ("v5p:2x4x4x4", (4, 4, 4), 2, 128),
        ("v5e:3x2x4", (2, 4), 3, 24),
        ("7x:2x2x1", (2, 2, 1), 1, 8),
        ("h100:1x4x8", (1, 4, 8), 1, 32),
        ("cpu8:8", (8,), 1, 8),
        (f"{BRIDGE}/machines/gpu/a100.toml:2x1x4", (2, 1, 4), 1, 8),
    ],
)
def test_machines_with_their_topology(written: str, topology: tuple[int, ...], slices: int, devices: int) -> None:
    found = target.of_machine(written)
    assert (found.topology, found.slices, found.devices) == (topology, slices, devices)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("v5p", "expected a machine DEVICE:TOPOLOGY, as in v5p:4x4x4 or h100:1x1x8, found 'v5p'"),
        ("v9:4x4", "unknown machine 'v9', expected one of 7x, "),
        ("v5p:4x4", "machine 'v5p:4x4': expected a topology of 3 positive numbers with x between them (x, y, z), found '4x4'"),
        ("h100:2x1x1x8", "expected a topology of 3 positive numbers with x between them (slices, hosts, devices)"),
    ],
)
def test_what_is_no_machine_with_a_topology(written: str, message: str) -> None:
    with pytest.raises(MeshError) as caught:
        target.of_machine(written)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("after", "message"),
    [
        ("[options.implicit]\nxla_a = true", "unknown key options.implicit, expected explicit, partitioned"),
        ("[options]\nexplicit = true", "options.explicit: expected a table, found True"),
        ("[options.explicit]\nxla_a = [1]", "options.explicit.xla_a: expected a single value, found [1]"),
    ],
)
def test_files_whose_options_are_none(after: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"{MINE}\n{after}\n")
    with pytest.raises(MeshError) as caught:
        machine.load(path)
    assert str(caught.value) == f"{path}: error: {message}"
