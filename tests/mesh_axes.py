"""Which tests need device groups by mesh axes, and the spellings of groups that this jaxlib knows."""

from __future__ import annotations

import pytest

from meshbridge.ir.groups import KNOWS_MESH_AXES

needs_mesh_axes = pytest.mark.skipif(
    not KNOWS_MESH_AXES, reason="needs replica groups by mesh axes, which jaxlib has from 0.10 on"
)

SPELLINGS = ["dense", "mesh-axes"] if KNOWS_MESH_AXES else ["dense"]
