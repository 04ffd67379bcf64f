"""A file of a device of the user's own, and placements on machines by name."""

from __future__ import annotations

from meshbridge.ir.sharding import Mesh
from meshbridge.machines import layout, target
from meshbridge.machines.layout import Placement

MINE = """
platform = "gpu"
summary = "A card of our own"
topology = ["slices", "hosts", "devices"]
devices_per_chip = 1
[flops]
source = "our own bench"
bf16 = 1e14
[memory]
source = "its box"
bytes = 17_179_869_184
bandwidth = 1e12
[link]
source = "its box"
name = "cable"
kind = "switch"
size = 4
bandwidth = 5e10
latency = 1e-6
launch = 2e-6
efficiency = 0.5
reduction = 1
[step]
source = "our own bench"
launch = 1e-6
efficiency = 0.8
duplicates_expensive_ops = false
combines_collectives = true
async_collectives = ["all_gather"]
[compiler]
name = "mine"
platform_name = "CUDA"
[compiler.gpu_device_info]
core_count = 40
[compiler.gpu_device_info.cuda_compute_capability]
major = 9
minor = 0
feature_extension = "ACCELERATED_FEATURES"
"""


def placed(machine: str, layout_text: str = "", **sizes: int) -> Placement:
    """A mesh with these axes on a machine, written `v5p:4x4x4`, in a layout, written `data=ici`."""
    return layout.place(Mesh("m", tuple(sizes.values()), tuple(sizes)), target.of_machine(machine, layout_text))
