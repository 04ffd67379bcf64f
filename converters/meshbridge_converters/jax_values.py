"""The values of JAX that hold a program: `jax.export.Exported`, `jax.stages.Lowered`, and functions that `jax.jit` made.

None of them exists before JAX is loaded, so nothing here loads it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.ops.unsupported import is_callback
from meshbridge.read.formats import TEXT, Program
from meshbridge_converters import nnx_names

if TYPE_CHECKING:
    from meshbridge_converters.jax_calling import TreeCalling


def holds(value: object) -> bool:
    """Whether `value` is one of them."""
    return is_exported(value) or is_lowered(value) or is_function(value)


def is_exported(value: object) -> bool:
    """Whether `value` is a `jax.export.Exported`."""
    if "jax" not in sys.modules:
        return False
    from jax.export import Exported

    return isinstance(value, Exported)


def is_lowered(value: object) -> bool:
    """Whether `value` is a `jax.stages.Lowered`."""
    if "jax" not in sys.modules:
        return False
    from jax.stages import Lowered

    return isinstance(value, Lowered)


def is_function(value: object) -> bool:
    """Whether `jax.jit` made `value`, or a library around it: something to be called that can be lowered."""
    return "jax" in sys.modules and callable(value) and not isinstance(value, type) and hasattr(value, "lower")


def is_lowered_only(function: Any) -> bool:
    """Whether a library's function can be lowered, but not traced for an export, as those of `equinox.filter_jit`."""
    return not hasattr(function, "trace")


def lower(function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """The `jax.stages.Lowered` of such a function."""
    stage = function.lower(*arguments, **named)
    return stage if is_lowered(stage) else stage.lowered


@dataclass(frozen=True)
class _Traced:
    """A function whose `trace` gives JAX's own stage: libraries such as Flax put one of theirs around it."""

    function: Any

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)

    def trace(self, *arguments: Any, **named: Any) -> Any:
        from jax.stages import Traced

        stage = self.function.trace(*arguments, **named)
        return stage if isinstance(stage, Traced) else stage.traced

    def lower(self, *arguments: Any, **named: Any) -> Any:
        return self.trace(*arguments, **named).lower()

    def eval_shape(self, *arguments: Any, **named: Any) -> Any:
        return self.trace(*arguments, **named).out_info


def export(function: Any, arguments: Sequence[Any], named: Mapping[str, Any], platform: str | None) -> Any:
    """The `jax.export.Exported` of a jitted function for these arguments, arrays or `jax.ShapeDtypeStruct`s, and for `platform`,
    that of JAX's devices by default.

    It holds whatever the function calls, also kernels whose form JAX does not promise to keep. What is within a
    `custom_partitioning` is a part of the function like any other: whoever partitions the program decides how it is sharded.
    JAX's own errors of tracing stay what they are. Raises MeshError for what an Exported cannot hold, Python callbacks above all.
    """
    from jax.export import DisabledSafetyCheck

    try:
        return _exported(function, arguments, named, platform, ())
    except NotImplementedError as error:
        hint = "leave out the callback; meshbridge.jit of the outermost function runs callbacks, and is not exported"
        place = _callback_location(function, arguments, named, platform) if _CALLBACKS in str(error) else ""
        raise MeshError(f"{place}error: jax.export cannot export the function: {error}\n  hint: {hint}") from error
    except ValueError as error:
        if _NO_GUARANTEE not in str(error):
            raise
        targets = sorted(set(_TARGET.findall(str(error))))
    return _exported(function, arguments, named, platform, tuple(map(DisabledSafetyCheck.custom_call, targets)))


def _callback_location(function: Any, arguments: Sequence[Any], named: Mapping[str, Any], platform: str | None) -> str:
    """Where a function calls Python, before a diagnostic; "" if it does not."""
    platforms = None if platform is None else (platform,)
    module = _Traced(function).trace(*arguments, **named).lower(lowering_platforms=platforms).compiler_ir()
    calls = (op for op in mlir.walk_all(module) if mlir.is_custom_call(op) and is_callback(op))
    return next((f"{mlir.source_location(op)}: " for op in calls), "")


_NO_GUARANTEE, _TARGET = "custom calls whose targets have no compatibility guarantees", re.compile(r"custom_call @([\w$.]+)\(")
"""How JAX refuses to serialize calls, and how it names their targets."""

_CALLBACKS = "host_callbacks"
"""What JAX calls the calls of Python that it refuses to serialize."""


def _exported(
    function: Any, arguments: Sequence[Any], named: Mapping[str, Any], platform: str | None, unchecked: Sequence[Any]
) -> Any:
    from jax import export

    from meshbridge.runtime.lowerings import LOWERING_RULES

    arguments, named = _without_values((tuple(arguments), dict(named)))
    options = {"disabled_checks": unchecked, "_override_lowering_rules": LOWERING_RULES}
    platforms = None if platform is None else (platform,)
    return export.export(_Traced(function), platforms=platforms, **options)(*arguments, **named)


def _without_values(arguments: Any) -> Any:
    """The same arguments, numpy's arrays as their shapes and types where JAX runs in several processes. There it refuses the
    arrays themselves for arguments that are sharded, since each process might have another one; nothing here reads them."""
    import jax
    import numpy as np

    if jax.process_count() == 1:
        return arguments
    return jax.tree.map(lambda leaf: jax.typeof(leaf) if isinstance(leaf, np.ndarray) else leaf, arguments)


def lowered(value: Any, ctx: ir.Context) -> Program:
    """Opens a Lowered: its StableHLO as a module of our own, called with the trees that the function has."""
    module = value.compiler_ir("stablehlo")
    if module is None:
        raise MeshError("error: the jax.stages.Lowered holds no StableHLO")
    name = ir.StringAttr(module.operation.attributes["sym_name"]).value
    # One context does not read what another one holds.
    program, calling = mlir.parse(mlir.to_bytecode(module), name, ctx), _calling(value, name)
    nnx_names.rename(program, calling)
    return Program(program, TEXT, calling=calling)


def _calling(value: Any, name: str) -> TreeCalling:
    import jax

    from meshbridge_converters.jax_calling import TreeCalling

    in_avals = jax.tree.leaves(value.in_avals)
    outputs = jax.tree.leaves(value.out_info)
    kept = sorted(value._lowering.compile_args["kept_var_idx"])  # no public name says which arguments were dropped
    return TreeCalling(name, value.in_tree, in_avals, value.out_tree, outputs, kept, None)
