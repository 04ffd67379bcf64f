"""`meshbridge run` of a program that is mapped to meshes."""

from __future__ import annotations

import argparse
from typing import Any

import jax
import numpy as np

from meshbridge.ir.mlir import MeshError
from meshbridge.pipelines.mapped_function import mapped
from meshbridge.read import files
from meshbridge.read.formats import Program, copy_module
from meshbridge.runtime import pjrt, reference
from meshbridge.runtime.compiler_options import CompilerOptions
from meshbridge.tools import console, trial


def run(options: argparse.Namespace, program: Program) -> int:
    """Runs a mapped program on virtual devices, and prints what `meshbridge run` prints. `--check` compares with all fragments on
    one device."""
    console.refuse_ignored("meshbridge run", {"--local": "on a program that is mapped to meshes"}, {"--local": options.local})
    with files.about(files.display_name(options.input), program.format.wording):
        function = mapped(program, None, {}, CompilerOptions.of("best"))
        given = None if options.inputs is None else trial.load_arrays(options.inputs)
        arrays = trial.random_inputs(function.inputs, options.seed) if given is None else trial.typed(function.inputs, given)
        results = function(*arrays)
        values = [pjrt.whole(result) for result in results]
        ran = trial.RunResult(tuple(_result(number, *each) for number, each in enumerate(zip(results, values, strict=True))))
        console.say(ran.table())
        if options.outputs is not None:
            trial.save_arrays(options.outputs, values)
        if options.check:
            wanted = reference.unsharded(copy_module(function.lower().source.module), arrays)
            error = trial.worst(values, wanted)
            console.say(
                f"largest difference from the unsharded run: absolute {error.absolute:.3g}, relative {error.relative:.3g}"
            )
            if error.relative > options.tolerance:
                raise MeshError(
                    f"error: a result differs by {error.relative:.3g} relative, expected at most {options.tolerance:.3g}"
                )
    return 0


def _result(number: int, result: jax.Array, value: np.ndarray[Any, Any]) -> trial.ResultOfRun:
    sharding = result.sharding
    assert isinstance(sharding, jax.sharding.NamedSharding), "of an executable"
    return trial.ResultOfRun(f"result {number}", value.dtype.name, sharding.spec, value)
