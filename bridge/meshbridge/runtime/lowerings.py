"""JAX's own stages with a partitioned program inside. What JAX keeps to itself of them is read here, and only here.

JAX traces a function and lowers it to a `MeshComputation`, which it compiles. `replace_computations` has another one put in the
place of that, and JAX goes on from there: it donates, puts arguments on devices, calls back Python, keeps what it has compiled,
and calls the executable from C++, as for any function of `jax.jit`. The one place where all computations pass,
`jax._src.interpreters.pxla.lower_sharding_computation`, has the same arguments in jax 0.9 to 0.12.

What a computation is marked with stands among the compiler options of `jax.jit`, which JAX hands through every transformation:
a derivative or a batched version of a marked function is marked, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import Lock, RLock
from typing import Any

# Nothing public has these.
from jax._src.api import jit as _jit  # JAX's own, whoever has put another one in the place of jax.jit
from jax._src.config import int_state
from jax._src.core import jaxpr_as_fun, jaxprs_in_params
from jax._src.custom_partitioning import custom_partitioning_p
from jax._src.debugging import _inspect_sharding_lowering_rule, inspect_sharding_p
from jax._src.interpreters import partial_eval, pxla
from jax._src.interpreters.mlir import refine_polymorphic_shapes
from jax._src.pjit import _cpp_pjit, jit_p
from jax.interpreters import mlir as lowering
from jax.stages import Lowered
from jaxlib.xla_client import HloSharding, OpSharding

from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir
from meshbridge.machines.machine import OptionValue
from meshbridge.ops.inspections import Answer
from meshbridge.ops.refused import INSPECTION

MARK = "meshbridge"
"""The compiler option that marks a function of `meshbridge.jit`; its value says how to partition."""

Options = tuple[tuple[str, Any], ...]


def _as_called(ctx: Any, *values: Any, call: Any, **_: Any) -> Any:
    return lowering.lower_fun(jaxpr_as_fun(call), multiple_results=True)(ctx, *values)


def _inspected(ctx: Any, value: Any, **parameters: Any) -> Any:
    kept = ctx.module_context.keepalives
    number = len(kept)
    results = _inspect_sharding_lowering_rule(ctx, value, **parameters)
    if len(kept) > number:
        call = ir.InsertionPoint.current.block.operations[-1]
        call.attributes["call_target_name"] = ir.StringAttr.get(INSPECTION)
        call.attributes["backend_config"] = ir.StringAttr.get(str(number))
    return results


LOWERING_RULES = ((custom_partitioning_p, _as_called), (inspect_sharding_p, _inspected))
"""What is within a `custom_partitioning` is a part of the function like any other: whoever partitions the program decides how it
is sharded. That also tells it to what inspects a sharding, which is named by its number among what JAX keeps alive; JAX names it
by its address, for XLA."""


class _Nested(tuple[Any, ...]):
    """Compiler options of a function within another one. There JAX refuses options if there are any: it must not see a mark."""

    def __bool__(self) -> bool:
        return False


class Replacement(pxla.MeshComputation):  # type: ignore[misc]
    """A computation of JAX, of which another program is compiled. Its text stays what JAX has lowered."""

    _executable: Any

    def __init__(self, lowered: Any) -> None:
        for name, value in vars(lowered).items():
            setattr(self, name, value)
        self._lock = RLock()

    def made(self) -> ir.Module:
        """The program that is compiled."""
        raise NotImplementedError

    def compiler_options(self, devices: Sequence[Any]) -> Mapping[str, OptionValue]:
        """XLA's options for that program on these devices, beside those that the user has given."""
        raise NotImplementedError

    @property
    def devices(self) -> tuple[Any, ...]:
        """The devices that the program runs on, in their order; none where all that says so is abstract."""
        return _devices(self)

    def source(self) -> ir.Module:
        """The program that JAX has lowered, in a context of our own."""
        return _copied(refine_polymorphic_shapes(self._hlo) if self._has_sizes_to_refine else self._hlo)

    def tell(self, answer: Answer) -> None:
        """Tells a function of `jax.debug.inspect_array_sharding` how a value is sharded, as XLA's partitioner does."""
        found = OpSharding()
        if not answer.tiles:
            found.type = OpSharding.Type.MANUAL
        elif not any(size > 1 for size in answer.tiles[:-1]):
            found.type = OpSharding.Type.REPLICATED
        else:
            found.type = OpSharding.Type.OTHER
            found.tile_assignment_dimensions, found.tile_assignment_devices = list(answer.tiles), list(answer.devices)
            found.replicate_on_last_tile_dim = True
        self.compile_args["keepalive"][answer.asked](HloSharding.from_proto(found))

    def unreplaced(self) -> Any:
        """JAX's own computation, which XLA partitions where it is compiled."""
        found = object.__new__(pxla.MeshComputation)
        vars(found).update(vars(self), _executable=None)
        return found

    @property
    def _has_sizes_to_refine(self) -> bool:
        """Whether a program of symbolic sizes is called, whose sizes here are known."""
        state = self.compile_args.get("shape_poly_state")
        return state is not None and bool(state.uses_dim_vars)

    def compile(self, compiler_options: Any = None, *, device_assignment: Any = None) -> Any:
        """The executable. The one without further options is made once."""
        with self._lock:
            is_usual = compiler_options is None and device_assignment is None
            if not is_usual or self._executable is None:
                executable = self._compiled(compiler_options or {}, device_assignment)
                if not is_usual:
                    return executable
                self._executable = executable
            return self._executable

    def _compiled(self, compiler_options: Mapping[str, Any], device_assignment: Any) -> Any:
        devices = self.devices or tuple(device_assignment or ())
        if not devices:
            return super().compile()  # JAX says that it needs some
        replaced = object.__new__(pxla.MeshComputation)
        refined = {**self.compile_args, "shape_poly_state": None} if self._has_sizes_to_refine else self.compile_args
        vars(replaced).update(vars(self), _hlo=self.made(), _compiler_options_kvs=(), compile_args=refined)
        given = {**self.compiler_options(devices), **dict(self._compiler_options_kvs), **compiler_options}
        return replaced.compile(given, device_assignment=device_assignment)


Replace = Callable[[Any, Any], Any]
"""What is put in the place of a MeshComputation, by that and by what it is marked with."""


def marked(function: Any, options: Mapping[str, Any], marked_with: Any) -> Any:
    """`jax.jit(function, **options)`, marked. A function that `jax.jit` has made keeps its options where there are no others."""
    jitted = function if not options and is_jitted(function) else _jit(function, **options)
    known = jitted._jit_info
    given = (option for option in known.compiler_options_kvs if option[0] != MARK)
    return _cpp_pjit(jitted._fun, known._replace(compiler_options_kvs=(*given, (MARK, marked_with))))


def is_jitted(function: object) -> bool:
    """Whether `jax.jit` itself has made a function: nnx.jit gives functions that look alike, and so does whatever copies the
    attributes of a function that it wraps, jax.grad for one."""
    return isinstance(function, _JITTED)


_JITTED = type(_jit(lambda: None))


def replace_computations(by: Replace) -> None:
    """From now on, what is marked, or holds a function that is, is compiled as what `by` puts in its place. A second time does
    nothing."""
    with _making:
        if _originals:
            return
        _originals.extend((pxla.lower_sharding_computation, partial_eval.custom_staging_rules[jit_p]))

    lower_as_it_is, stage_as_it_is = _originals

    def lower_computation(
        jaxpr: Any, *arguments: Any, compiler_options_kvs: Options, lowering_parameters: Any, **named: Any
    ) -> Any:
        given = tuple(option for option in compiler_options_kvs if option[0] != MARK)
        moves = not getattr(jaxpr, "jaxpr", jaxpr).eqns  # as jax.device_put does, whose shardings may be of any devices
        mark = _marked_with(compiler_options_kvs) or _marked_within(jaxpr) or (None if moves else everywhere())
        if mark is None or _is_as_written(lowering_parameters):
            return lower_as_it_is(jaxpr, *arguments, compiler_options_kvs=given, lowering_parameters=lowering_parameters, **named)
        rules = (*LOWERING_RULES, *(lowering_parameters.override_lowering_rules or ()))
        inlined = replace(lowering_parameters, override_lowering_rules=rules)
        lowered = lower_as_it_is(jaxpr, *arguments, compiler_options_kvs=given, lowering_parameters=inlined, **named)
        return by(lowered, mark) if _partitions(lowered) > 1 else lowered

    def stage(trace: Any, source: Any, *arguments: Any, **parameters: Any) -> Any:
        options = parameters["compiler_options_kvs"]
        if _marked_with(options) is not None:
            others = tuple(option for option in options if option[0] != MARK)
            parameters["compiler_options_kvs"] = others or _Nested(options)
        return stage_as_it_is(trace, source, *arguments, **parameters)

    pxla.lower_sharding_computation = lower_computation
    partial_eval.custom_staging_rules[jit_p] = stage


_originals: list[Any] = []
_making = Lock()


def _marked_with(options: Options) -> Any:
    return next((value for name, value in options if name == MARK), None)


def _marked_within(jaxpr: Any) -> Any:
    """What the first function is marked with that a jaxpr calls; None where none is."""
    waiting, seen = [getattr(jaxpr, "jaxpr", jaxpr)], set()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        for eqn in each.eqns:
            if eqn.primitive is jit_p and (found := _marked_with(eqn.params["compiler_options_kvs"])) is not None:
                return found
            waiting += [getattr(inner, "jaxpr", inner) for inner in jaxprs_in_params(eqn.params)]
    return None


def _is_as_written(parameters: Any) -> bool:
    """Whether a computation is exported, or lowered by `lower`, to be partitioned by whoever asks."""
    return bool(parameters.for_export or parameters.override_lowering_rules == LOWERING_RULES)


def _partitions(lowered: Any) -> int:
    attributes = lowered._hlo.operation.attributes
    return ir.IntegerAttr(attributes["mhlo.num_partitions"]).value if "mhlo.num_partitions" in attributes else 1


def everywhere() -> Any:
    """What every computation is marked with (`set_everywhere`); None where none is."""
    return _marks[_everywhere[0].value] if _everywhere else None


def set_everywhere(marked_with: Any) -> Any:
    """Marks every computation of this process from now on, None those alone that are marked themselves; gives what was set
    before.

    JAX keeps what it traces and compiles apart by that. The first time it forgets what it has traced before.
    """
    with _making:
        if not _everywhere:
            said = "how meshbridge partitions every function: the number of the options that it was told, 0 for not at all"
            _everywhere.append(int_state(_NAME, 0, said, include_in_jit_key=True, include_in_trace_context=True))
        if marked_with not in _marks:
            _marks.append(marked_with)
        before = everywhere()
        _everywhere[0]._set(_marks.index(marked_with))
    return before


_NAME = "meshbridge_everywhere"
_everywhere: list[Any] = []
_marks: list[Any] = [None]
"""JAX's settings are numbers and strings, since they are flags of commands too; these are what the numbers stand for."""


def lower(jitted: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Lowered:
    """The Lowered of a jitted function as it is written, by LOWERING_RULES. Raises what JAX raises."""
    inlined = lowering.LoweringParameters(override_lowering_rules=LOWERING_RULES)
    found: Lowered = jitted.trace(*arguments, **named).lower(_private_parameters=inlined)
    return found


def replacement(lowered: Lowered) -> Replacement | None:
    """What stands in the place of JAX's computation; None where that is compiled as it is."""
    found = lowered._lowering
    return found if isinstance(found, Replacement) else None


def module(lowered: Lowered) -> ir.Module:
    """Its program, in a context of our own: one does not read what another one holds."""
    return _copied(lowered.compiler_ir("stablehlo"))


def _copied(held: Any) -> ir.Module:
    return mlir.parse(mlir.to_bytecode(held), str(held.operation.attributes["sym_name"]).strip('"'), mlir.context())


def devices(lowered: Lowered) -> tuple[Any, ...]:
    """The devices that JAX takes the function to run on, in their order; none where all that says so is abstract."""
    return _devices(lowered._lowering)


def _devices(computation: Any) -> tuple[Any, ...]:
    return tuple(computation._device_list or ())
