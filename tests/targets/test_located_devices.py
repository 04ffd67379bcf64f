"""Devices as XLA's compilers describe them say in which topology they are, and a jitted function is planned for that."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from meshbridge.runtime import targets
from tests.house import ROOT
from tests.targets.installed import target

pytestmark = pytest.mark.targets

LOCATE = """
import json, sys
import numpy as np
from jax.experimental import mesh_utils, topologies
from meshbridge.machines.target import parse
from meshbridge.runtime import devices, targets
found = {}
for text, slices in (("v5e:4x4", 1), ("v5e:8x16", 1), ("v5p:4x4x4", 1), ("7x:2x2x1", 1), ("v5e:4x4", 2)):
    known = list(topologies.get_topology_desc(text.replace("7x", "tpu7x"), "tpu", num_slices=slices).devices)
    by_id = sorted(known, key=lambda device: device.id)
    orders = {"listed": known, "by id": by_id, "second half": by_id[len(by_id) // 2:]}
    if text == "v5e:4x4" and slices == 1:
        orders |= {str(shape): mesh_utils.create_device_mesh(shape, known).flat for shape in ((16,), (4, 4))}
    found[f"{slices} {text}"] = {name: devices.located(list(some))[::2] for name, some in orders.items()}
print(json.dumps(found))
"""

COMPILE = """
import json
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import meshbridge
from meshbridge.machines.target import parse
from meshbridge.runtime import targets
devices = sorted(targets.devices(parse("tpu:v5e:4x4")), key=lambda device: device.id)
mesh = Mesh(np.array(devices).reshape(4, 4), ("data", "model"))
rows, columns = NamedSharding(mesh, P("data")), NamedSharding(mesh, P("data", "model"))
step = meshbridge.jit(lambda x, w: jnp.tanh(x @ w), in_shardings=(rows, columns))
operands = jax.ShapeDtypeStruct((256, 512), jnp.bfloat16), jax.ShapeDtypeStruct((512, 1024), jnp.bfloat16)
report = step.report(*operands)
text = step.lower(*operands).compile().as_text()
print(json.dumps([report.machine, report.why_machine, "all-gather" in text]))
"""


def run(code: str) -> object:
    chosen = target("tpu:v5e:4x4")
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | targets.environment(chosen)
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_where_described_devices_are() -> None:
    assert run(LOCATE) == {
        "1 v5e:4x4": {
            "listed": ["v5e:4x4", "*=y:(1)2+x:(1)2+y:(2)2+x:(2)2"],
            "by id": ["v5e:4x4", "*=y+x"],
            "second half": ["v5e:4x4", "*=y:(2)2+x"],
            "(16,)": ["v5e:4x4", "*=x&y"],
            "(4, 4)": ["v5e:4x4", "*=y+x"],
        },
        "1 v5e:8x16": {
            "listed": ["v5e:8x16", "*=y:(1)8+x:(1)4+y:(8)2+x:(4)2"],
            "by id": ["v5e:8x16", "*=y+x"],
            "second half": ["v5e:8x16", "*=y:(2)8+x"],
        },
        "1 v5p:4x4x4": {
            "listed": ["v5p:4x4x4", "*=z+y:(1)2+x:(1)2+y:(2)2+x:(2)2"],
            "by id": ["v5p:4x4x4", "*=z+y+x"],
            "second half": ["v5p:4x4x4", "*=z:(2)2+y+x"],
        },
        "1 7x:2x2x1": {
            "listed": ["7x:2x2x1", "*=y+x+chip"],
            "by id": ["7x:2x2x1", "*=y+x+chip"],
            "second half": ["7x:2x2x1", "*=x+chip"],
        },
        "2 v5e:4x4": {
            "listed": ["v5e:2x4x4", "*=dcn+y:(1)2+x:(1)2+y:(2)2+x:(2)2"],
            "by id": ["v5e:2x4x4", "*=dcn+y+x"],
            "second half": ["v5e:4x4", "*=y+x"],
        },
    }


def test_a_function_is_compiled_for_the_topology_of_its_mesh() -> None:
    assert run(COMPILE) == ["v5e:4x4", "JAX runs on TPU v5 lite", True]
