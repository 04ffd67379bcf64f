"""lit's configuration: `lit tests/lit` runs every RUN line here, with the commands of the Python that runs lit."""

import os
import sys
from pathlib import Path

import lit.formats
from jaxlib.mlir.dialects import sdy

from meshbridge.ir.groups import KNOWS_MESH_AXES

config.name = "meshbridge"  # noqa: F821  # lit defines it
config.test_format = lit.formats.ShTest(execute_external=False)  # noqa: F821
config.suffixes = [".mlir"]  # noqa: F821
config.excludes = ["Inputs"]  # noqa: F821
config.test_source_root = Path(__file__).parent  # noqa: F821

scratch = Path(os.environ.get("MESHBRIDGE_LIT_OUTPUT", Path(__file__).parent / "Output"))
config.test_exec_root = scratch  # noqa: F821

commands = Path(sys.executable).parent
config.environment["PATH"] = os.pathsep.join([str(commands), os.environ["PATH"]])  # noqa: F821
config.environment["JAX_PLATFORMS"] = "cpu"  # noqa: F821
config.substitutions.append(("%testdata", str(Path(__file__).parents[2] / "testdata")))  # noqa: F821

if KNOWS_MESH_AXES:
    config.available_features.add("replica-group-mesh-axes")  # noqa: F821

if hasattr(sdy, "FuncDataFlowEdgeOp"):
    config.available_features.add("sdy-func-data-flow-edge")  # noqa: F821
