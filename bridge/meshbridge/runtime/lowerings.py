"""JAX's own stages with a partitioned module inside. What JAX keeps to itself of them is read here, and only here.

JAX traces a function and lowers it; the module of the `jax.stages.Lowered` is partitioned, and JAX goes on from there: it
compiles, donates, puts arguments on devices, calls back Python and calls the executable, as for any function of `jax.jit`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import Any, NamedTuple

import jax

# Nothing public has these.
from jax._src.api_util import InternalFloatingPointError
from jax._src.config import bool_state, trace_context
from jax._src.core import jaxpr_as_fun, trace_state_clean
from jax._src.custom_partitioning import custom_partitioning_p
from jax.interpreters import mlir as lowering
from jax.stages import Lowered

from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir
from meshbridge.machines.machine import OptionValue

__all__ = ["InternalFloatingPointError", "trace_state_clean"]


def _as_called(ctx: Any, *values: Any, call: Any, **_: Any) -> Any:
    return lowering.lower_fun(jaxpr_as_fun(call), multiple_results=True)(ctx, *values)


LOWERING_RULES = ((custom_partitioning_p, _as_called),)
"""What is within a `custom_partitioning` is a part of the function like any other: whoever partitions the program decides how it
is sharded."""


class Static(NamedTuple):
    """The arguments of a jitted function that it is traced with as they are."""

    positions: tuple[int, ...]
    names: tuple[str, ...]


def is_jitted(function: object) -> bool:
    """Whether `jax.jit` itself has made a function: others, such as nnx.jit, give functions that look alike."""
    return hasattr(function, "_jit_info")


def static_arguments(jitted: Any) -> Static:
    """Those of a function that `jax.jit` has made: by position, and by name, as JAX completes one from the other."""
    known = jitted._jit_info
    return Static(tuple(known.static_argnums), tuple(known.static_argnames))


def context() -> tuple[Any, ...]:
    """What changes how a function is traced beside its arguments: JAX's settings, and the mesh of `jax.set_mesh`."""
    held: tuple[Any, ...] = trace_context()
    return held


def context_with_devices() -> tuple[Any, ...]:
    """The same and the devices of that mesh, where JAX is not tracing."""
    mesh = () if jax.sharding.get_abstract_mesh().empty else (jax.sharding.get_mesh(),)
    return (*mesh, *context())


def lower(jitted: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Lowered:
    """The Lowered of a jitted function, by LOWERING_RULES. Raises what JAX raises."""
    inlined = lowering.LoweringParameters(override_lowering_rules=LOWERING_RULES)
    with as_a_whole():
        found: Lowered = jitted.trace(*arguments, **named).lower(_private_parameters=inlined)
    return found


@contextmanager
def as_a_whole() -> Iterator[None]:
    """While a function is traced to be partitioned: those of `meshbridge.jit` within it are partitioned with it."""
    with ExitStack() as stack:
        if _setting:
            stack.enter_context(_setting[0](True))
        yield


def is_partitioned_as_a_whole() -> bool:
    """Whether the function that this thread traces is to be partitioned as it is."""
    return bool(_setting) and bool(_setting[0].value)


def tell_wholes_apart() -> None:
    """Has JAX keep what it traces `as_a_whole` apart from all else that it traces, by a setting of its own kind.

    JAX then forgets what it has traced before: only a process that has functions of `meshbridge.jit` needs it.
    """
    with _making:
        if not _setting:
            said = "whether functions of meshbridge.jit are partitioned with the function that is traced"
            made = bool_state(_NAME, default=False, help=said, include_in_jit_key=True, include_in_trace_context=True)
            _setting.append(made)


_NAME = "meshbridge_as_a_whole"
_setting: list[Any] = []
_making = Lock()


def module(lowered: Lowered) -> ir.Module:
    """Its program, in a context of our own: one does not read what another one holds."""
    held = lowered.compiler_ir("stablehlo")
    return mlir.parse(mlir.to_bytecode(held), str(held.operation.attributes["sym_name"]).strip('"'), mlir.context())


def devices(lowered: Lowered) -> tuple[Any, ...]:
    """The devices that JAX takes the function to run on, in their order; none where all that says so is abstract."""
    return tuple(lowered._lowering._device_list or ())


def with_module(lowered: Lowered, module: ir.Module, compiler_options: Mapping[str, OptionValue]) -> Lowered:
    """The same Lowered of another module, compiled under these of XLA's options unless `compile` is told others."""
    computation = copy.copy(lowered._lowering)
    computation._hlo, computation._executable = module, None
    computation._compiler_options_kvs = (*compiler_options.items(), *computation._compiler_options_kvs)
    found = copy.copy(lowered)
    found._lowering = computation
    return found
