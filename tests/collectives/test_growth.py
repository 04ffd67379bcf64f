"""What is written does not grow with the mesh, where groups are named by mesh axes."""

from __future__ import annotations

import re

import pytest

from benchmarks.lowering import COLLECTIVES, MESHES, PERMUTES, program
from meshbridge.ir.groups import KNOWS_MESH_AXES
from meshbridge.lowering.lower_collectives import LowerCollectives


def without_numbers(text: str) -> str:
    return re.sub(r"\d+", "n", text)


@pytest.mark.skipif(not KNOWS_MESH_AXES, reason="needs replica groups by mesh axes, which jaxlib has from 0.10 on")
def test_the_same_text_on_8_and_on_65536_devices() -> None:
    texts = []
    for mesh in MESHES:
        module = program(mesh, COLLECTIVES, 42)
        LowerCollectives(replica_groups="mesh-axes").run(module)
        texts.append(without_numbers(str(module)))
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("emits", [COLLECTIVES, PERMUTES])
def test_dense_groups_are_written_once(emits: tuple[object, ...]) -> None:
    """Equal groups are one attribute, however many collectives share them."""
    module = program(MESHES[1], emits, 84)  # type: ignore[arg-type]
    LowerCollectives().run(module)
    names = ("replica_groups", "source_target_pairs")
    block = module.body.operations[1].regions[0].blocks[0]
    attrs = [op.operation.attributes[name] for op in block.operations for name in names if name in op.operation.attributes]
    assert len(set(attrs)) < len(attrs) / 2
