"""One module per family of ops: its traits and sharding rules, beside its SPMD lowerings. Importing this package registers
all."""

from importlib import import_module

FAMILIES = (
    "collectives",
    "composites",
    "contractions",
    "convolutions",
    "creation",
    "custom_calls",
    "dynamic_slices",
    "elementwise",
    "indexing",
    "slicing",
    "ragged_dot",
    "reductions",
    "selections",
    "shapes",
    "sorts",
    "structure",
    "tensor_ops",
    "transforms",
    "windows",
)
"""The modules that register rules and traits. `docs/status.md` names the module of each op."""

for family in FAMILIES:
    import_module(f"{__name__}.{family}")
