"""The StableHLO interpreter that jaxlib carries, as a second oracle: it shares nothing with XLA's compiler.

A local program runs as one partition per device, all in one process. That process is a child of its own: partitions that
wait for each other in vain end it.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Sequence

import numpy as np

from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.runtime.interpreter import interpreted
from tests.operations.side_by_side import side_by_side
from tests.patience import PATIENCE


class InterpreterError(Exception):
    """The interpreter cannot evaluate a program; the text is what it said."""


def evaluate(program: str, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of `main` of a StableHLO program in which no partition waits for another."""
    context = mlir.context()
    context.enable_multithreading(True)  # each partition is a thread that makes types: a context for one thread does not lock
    stablehlo.register_interpreter_dialect(context)
    return interpreted(ir.Module.parse(program, context), arguments)


def evaluate_in_child(program: str, arguments: Sequence[np.ndarray], timeout: float = PATIENCE) -> list[np.ndarray]:
    """The same in a process of its own. Raises InterpreterError."""
    job = pickle.dumps((program, [np.asarray(argument) for argument in arguments]))
    command = [sys.executable, "-m", "tests.operations.interpreter"]
    child = subprocess.run(command, input=job, capture_output=True, timeout=timeout, check=False)
    if child.returncode:
        raise InterpreterError(child.stderr.decode(errors="replace")[-2000:])
    results: list[np.ndarray] = pickle.loads(child.stdout)
    return results


def evaluate_partitions(module: ir.Module, shards: Sequence[Sequence[np.ndarray]]) -> list[list[np.ndarray]]:
    """The results of `main` of a local program by partition; `shards` are the arguments of each. Raises InterpreterError."""
    main = mlir.main_function(module)
    kind = mlir.function_type(main)
    count, inputs, outputs = len(shards), list(kind.inputs), list(kind.results)
    with module.context:
        main.attributes["sym_name"] = ir.StringAttr.get("device")
        _number_channels(main)
    arguments = ", ".join(f"%{index}: {one}" for index, one in enumerate(inputs * count))
    operands = ", ".join(f"%{index}" for index in range(len(inputs) * count))
    results = ", ".join(f"%r#{index}" for index in range(len(outputs) * count))
    types = ", ".join(map(str, outputs * count))
    text = f"""func.func @main({arguments}) -> ({types}) {{
      %r:{len(outputs) * count} = "interpreter.run_parallel"({operands}) {{programs = [[{", ".join(["@device"] * count)}]]}}
      : ({", ".join(map(str, inputs * count))}) -> ({types})
      return {results} : {types} }}"""
    body = "\n".join(str(op) for op in module.body.operations)
    found = evaluate_in_child(f"module {{\n{body}\n{text}\n}}", [argument for mine in shards for argument in mine])
    return [found[start : start + len(outputs)] for start in range(0, len(found), len(outputs))]


def evaluate_side_by_side(module: ir.Module, shards: Sequence[Sequence[np.ndarray]]) -> list[list[np.ndarray]]:
    """The same for any number of partitions, which `side_by_side` makes one program of."""
    outputs = len(mlir.function_type(mlir.main_function(module)).results)
    program = side_by_side(mlir.main_function(module), len(shards))
    found = evaluate(program, [argument for mine in shards for argument in mine])
    return [found[start : start + outputs] for start in range(0, len(found), outputs)]


def _number_channels(main: ir.Operation) -> None:
    """A channel for each collective: the interpreter lets partitions meet by channel and group alone, so that a fast one could
    take the results of the collective before."""
    collectives = [op for op in mlir.walk(main) if "channel_handle" in op.attributes]
    for number, op in enumerate(collectives, 1):
        op.attributes["channel_handle"] = ir.Attribute.parse(f"#stablehlo.channel_handle<handle = {number}, type = 1>")


def _main() -> None:
    program, arguments = pickle.load(sys.stdin.buffer)
    sys.stdout.buffer.write(pickle.dumps(evaluate(program, arguments)))


if __name__ == "__main__":
    _main()
