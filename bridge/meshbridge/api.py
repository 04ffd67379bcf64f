"""What meshbridge does for Python callers; `meshbridge` itself has all of it by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from meshbridge import pipeline
from meshbridge.ir.mlir import context, ir
from meshbridge.read import files, formats
from meshbridge.read.formats import Program
from meshbridge.report import Report, partition_and_report

if TYPE_CHECKING:
    from jax.export import Exported
    from jax.stages import Lowered, Wrapped

    from meshbridge.runtime.pjrt import Executable


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
    return partition_and_report(formats.unpack(program, context(), arguments, named).module, pipeline.Options(emit="mesh"))[0]


def load(path: str, dims: Mapping[str, int] | None = None) -> Program:
    """Reads a program from a file of any known format, told by content; `-` is standard input.

    `dims` are the sizes of its symbolic dimensions by name, which a `jax.export` artifact may have.
    Warns of annotations that contradict each other by a ShardingWarning.
    Raises ParseError, and MeshError for other sizes than the program needs. On a damaged binary MLIR's reader may crash, and the
    process with it: check files that nobody vouches for with the command `meshbridge convert`, which answers with a diagnostic.
    """
    program = files.parse_program(files.read_bytes(path), files.display_name(path), dims)
    files.warn(program)
    return program


def save(program: Program | Exported | ir.Module, path: str) -> None:
    """Writes a program in the format that the suffix of `path` asks for, else in its own. Files are complete or absent.

    Raises MeshError.
    """
    chosen = formats.choose(formats.unpack(program, context()), path)
    files.write_bytes(path, chosen.format.write(chosen))


def compile(program: Any, *arguments: Any, devices: Sequence[Any] | None = None, **named: Any) -> Executable:
    """Compiles what `partition` takes, at any stage up to `local`, for PJRT devices: all of JAX's by default.

    As many are used as the mesh has. What is given is left as it is. A jitted function is traced with `arguments` and `named`;
    an artifact for several platforms is compiled for the devices' own.
    Raises MeshError for a program that cannot be partitioned, or that needs more devices than there are.
    """
    import jax  # half a second, which nothing else here needs

    from meshbridge.runtime import pjrt

    available = tuple(devices if devices is not None else jax.devices())
    opened = formats.unpack(program, context(), arguments, named)
    if available:
        opened = formats.for_platform(opened, pjrt.platform(available[0]))
    pipeline.partition_module(opened.module, pipeline.Options(emit="local"))
    return pjrt.load(opened, available)
