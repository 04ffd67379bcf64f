"""meshbridge partitions sharded StableHLO programs on MLIR's mesh dialect, with every collective explicit.

    import meshbridge
    partitioned = meshbridge.partition(exported)      # jax.export.Exported in, jax.export.Exported out
    executable = meshbridge.compile(exported)         # runs through PJRT, called as the function itself

A program is a `jax.export.Exported`, a function that `jax.jit` made together with arguments for it, a `jax.stages.Lowered`, an
MLIR module (`meshbridge.mlir.ir.Module`), or a `Program` that `load` read from a file of any known format.
Every error that the user can repair is a `MeshError`, a ValueError whose text is the diagnostic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from meshbridge import console, formats, pipeline
from meshbridge.analysis.report import Report, partition_and_report
from meshbridge.formats import Program
from meshbridge.interface.rule_notation import LoopsAndMaps
from meshbridge.interface.sharding_rules import register_sharding_rule
from meshbridge.mlir import MeshError, OpError, ParseError, ShardingWarning, VerifyError, context, ir

if TYPE_CHECKING:
    from jax.export import Exported
    from jax.stages import Lowered, Wrapped

    from meshbridge.pjrt import Executable

__all__ = [
    "LoopsAndMaps",
    "MeshError",
    "OpError",
    "ParseError",
    "Program",
    "Report",
    "ShardingWarning",
    "VerifyError",
    "__version__",
    "compile",
    "load",
    "partition",
    "register_sharding_rule",
    "report",
    "save",
]

__version__ = console.VERSION


@overload
def partition(program: Program) -> Program: ...
@overload
def partition(program: Exported) -> Exported: ...
@overload
def partition(program: Wrapped, *arguments: Any, **named: Any) -> Exported: ...
@overload
def partition(program: ir.Module | Lowered) -> ir.Module: ...  # type: ignore[overload-cannot-match]  # where JAX is not followed
def partition(program: Any, *arguments: Any, **named: Any) -> Any:
    """Partitions a program: the same function for its caller, every collective explicit inside.

    What is given is left as it is. An Exported or a Program gives a new one of its kind, an MLIR module or a
    `jax.stages.Lowered` a new module (global shapes outside, one manual computation over all mesh axes inside). A function that
    `jax.jit` made is exported for `arguments` and `named`, which may be `jax.ShapeDtypeStruct`s, and gives an Exported.
    Shardings of an Exported's arguments and results that were open are filled in with what was decided.

    Raises MeshError with a located diagnostic.
    """
    opened = formats.unpack(program, context(), arguments, named)
    pipeline.partition_module(opened.module)
    return opened if isinstance(program, Program) else formats.pack(opened)


def report(program: Any, *arguments: Any, **named: Any) -> Report:
    """What `program` communicates once it is partitioned, and why; what it computes twice, and how much memory it needs.

    It takes what `partition` takes, and leaves it as it is. Raises MeshError.
    """
    return partition_and_report(formats.unpack(program, context(), arguments, named).module, emit="mesh")[0]


def load(path: str, dims: Mapping[str, int] | None = None) -> Program:
    """Reads a program from a file of any known format, told by content; `-` is standard input.

    `dims` are the sizes of its symbolic dimensions by name, which a `jax.export` artifact may have.
    Raises ParseError, and MeshError for other sizes than the program needs.
    """
    return console.read_program(path, dims)


def save(program: Program | Exported | ir.Module, path: str) -> None:
    """Writes a program in the format that the suffix of `path` asks for, else in the one that it came in; whole or not at all.

    Raises MeshError.
    """
    chosen = formats.choose(formats.unpack(program, context()), path)
    console.write_bytes(path, chosen.format.write(chosen))


def compile(program: Any, *arguments: Any, devices: Sequence[Any] | None = None, **named: Any) -> Executable:
    """Compiles what `partition` takes for PJRT devices, all of JAX's by default; see `meshbridge.pjrt.compile`.

    Raises MeshError.
    """
    from meshbridge import pjrt  # imports JAX

    return pjrt.compile(program, *arguments, devices=devices, **named)
