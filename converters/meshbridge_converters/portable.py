"""StableHLO portable artifacts: MLIR bytecode of the versioned dialect VHLO, with sdy beside it as `jax.export` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from meshbridge.ir.mlir import MeshError, ParseError, artifacts, ir, stablehlo, to_bytecode, walk_all
from meshbridge.lowering.replicas import BY_PARTITION
from meshbridge.read import bytecode
from meshbridge.read.formats import Format, Program, copy_module, refuse_unknown


def detect(data: bytes) -> bool:
    """Whether `data` is bytecode whose producer is StableHLO."""
    return (bytecode.producer(data) or b"").startswith(b"StableHLO")


@contextmanager
def _diagnostics(ctx: ir.Context) -> Iterator[list[str]]:
    """Collects the messages that these entry points of StableHLO would print on standard error."""
    messages: list[str] = []

    def collect(diagnostic: ir.Diagnostic) -> bool:
        # An exception in here would be printed by C++. The text of damaged input need not be text.
        with suppress(UnicodeDecodeError, RuntimeError):
            messages.append(str(diagnostic.message))
        return True

    handler: Any = ctx.attach_diagnostic_handler(collect)
    try:
        yield messages
    finally:
        handler.detach()


def deserialize(data: bytes, filename: str, ctx: ir.Context) -> ir.Module:
    """The StableHLO module of an artifact. Raises ParseError, also for an artifact that is truncated."""
    with _diagnostics(ctx) as messages:
        try:
            module = stablehlo.deserialize_portable_artifact(ctx, data)
        except ValueError as error:
            reason = messages[0] if messages else str(error)
            raise ParseError(f"{filename}: error: not a readable StableHLO portable artifact: {reason}") from None
    refuse_unknown(module, filename)
    return module


_VERSIONED = frozenset(("builtin", "sdy", "vhlo"))
"""The dialects of an artifact. JAX hands sdy on beside VHLO."""


def serialize(module: ir.Module, version: str | None = None) -> bytes:
    """The artifact of `module`, readable by every StableHLO since `version`; without one since four weeks before this one, or
    since BY_AXES where device groups name mesh axes, of which an older version has lists of all devices.

    Raises MeshError where an operation has no versioned form, as those of the mesh dialect.
    """
    if holds_mesh_ops(module):
        hint = "mesh IR and local programs are MLIR text (.mlir) or bytecode (.mlirbc)"
        raise MeshError(f"<module>: error: a StableHLO portable artifact cannot hold mesh IR\n  hint: {hint}")
    version = version or _version(module)
    with _diagnostics(module.context), suppress(ValueError):
        found: bytes = stablehlo.serialize_portable_artifact(copy_module(module), version, True)  # leaves its module as VHLO
        if bytecode.dialects(found) <= _VERSIONED:
            return found
    try:
        # What jax.export calls: it expands CHLO and MHLO, and refuses other dialects. It takes three times as long. As bytecode:
        # the same call for every jaxlib since 0.9.
        return bytes(artifacts.serialize_portable_artifact(to_bytecode(module), version, True))
    except RuntimeError as error:  # XlaRuntimeError
        reason = str(error).splitlines()[0].rpartition("error: ")[2]  # what follows is how StableHLO reads it back
        raise MeshError(f"<module>: error: cannot be written as a StableHLO portable artifact: {reason}") from None


def _version(module: ir.Module) -> str:
    version = stablehlo.get_version_from_compatibility_requirement(stablehlo.StablehloCompatibilityRequirement.WEEK_4)
    if any(map(_names_axes, walk_all(module))):
        version = max(version, BY_AXES, key=lambda version: [int(part) for part in version.split(".")])
    return version


BY_AXES = "1.16.0"
"""The first version of StableHLO with device groups along mesh axes."""


def _names_axes(op: ir.Operation) -> bool:
    if op.name not in BY_PARTITION or "replica_groups" not in op.attributes:
        return False
    return not isinstance(op.attributes["replica_groups"], ir.DenseElementsAttr)


def holds_mesh_ops(module: ir.Module) -> bool:
    """Whether a module declares a mesh of the mesh dialect, as it does at every stage between the source and StableHLO."""
    return any(view.operation.name == "mesh.mesh" for view in module.body.operations)


def _read(data: bytes, filename: str, ctx: ir.Context) -> Program:
    return Program(deserialize(data, filename, ctx), FORMAT)


FORMAT = Format(
    name="portable",
    summary="a StableHLO portable artifact",
    detect=detect,
    read=_read,
    write=lambda program: serialize(program.module, program.version),
    suffixes=(".stablehlo", ".vhlo"),
)
