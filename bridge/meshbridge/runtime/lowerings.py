"""JAX's own stages with a partitioned program inside. All uses of JAX's private interfaces for this are here.

JAX traces a function and lowers it to a `MeshComputation`, which it compiles. `replace_computations` substitutes another
computation, and JAX continues with it: it donates, puts arguments on devices, calls back Python, caches what it compiled, and
calls the executable from C++, as for any function of `jax.jit`. All computations pass through
`jax._src.interpreters.pxla.lower_sharding_computation`, which has the same arguments in jax 0.9 to 0.12.

The mark of a computation is one of the compiler options of `jax.jit`, which JAX passes through every transformation: a derivative
or a batched version of a marked function is marked, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from meshbridge.ops.unsupported import INSPECTION

MARK = "meshbridge"
"""The compiler option that marks a function of `meshbridge.jit`; its value says how to partition."""

Options = tuple[tuple[str, Any], ...]


def _as_called(ctx: Any, *values: Any, call: Any, **_: Any) -> Any:
    return lowering.lower_fun(jaxpr_as_fun(call), multiple_results=True)(ctx, *values)


def _inspected(ctx: Any, value: Any, **parameters: Any) -> Any:
    keepalives = ctx.module_context.keepalives
    number = len(keepalives)
    results = _inspect_sharding_lowering_rule(ctx, value, **parameters)
    if len(keepalives) > number:
        call = ir.InsertionPoint.current.block.operations[-1]
        call.attributes["call_target_name"] = ir.StringAttr.get(INSPECTION)
        call.attributes["backend_config"] = ir.StringAttr.get(str(number))
    return results


LOWERING_RULES = ((custom_partitioning_p, _as_called), (inspect_sharding_p, _inspected))
"""The function inside a `custom_partitioning` is lowered like any other code: the partitioner decides its shardings. The
partitioner also answers functions that inspect a sharding, each named by its number among JAX's keep-alives; JAX names it by its
address, for XLA."""


class _Nested(tuple[Any, ...]):
    """Compiler options of a nested function. JAX refuses nested options if there are any: it must not see a mark."""

    def __bool__(self) -> bool:
        return False


class Replacement(pxla.MeshComputation):  # type: ignore[misc]
    """A computation of JAX from which another program is compiled. Its text stays what JAX lowered."""

    _executable: Any

    def __init__(self, lowered: Any) -> None:
        for name, value in vars(lowered).items():
            setattr(self, name, value)
        self._lock = RLock()

    def module_to_compile(self) -> ir.Module:
        """The program that is compiled."""
        raise NotImplementedError

    def compiler_options(self, devices: Sequence[Any]) -> Mapping[str, OptionValue]:
        """XLA's options for that program on these devices, besides those of the user."""
        raise NotImplementedError

    @property
    def devices(self) -> tuple[Any, ...]:
        """The devices that the program runs on, in order; none if all are abstract."""
        return _devices(self)

    def source(self) -> ir.Module:
        """The program that JAX lowered, in a context of our own."""
        return _copied(refine_polymorphic_shapes(self._hlo) if self._has_sizes_to_refine else self._hlo)

    def tell(self, answer: Answer) -> None:
        """Tells a function of `jax.debug.inspect_array_sharding` how a value is sharded, as XLA's partitioner does."""
        sharding = OpSharding()
        if not answer.tiles:
            sharding.type = OpSharding.Type.MANUAL
        elif not any(size > 1 for size in answer.tiles[:-1]):
            sharding.type = OpSharding.Type.REPLICATED
        else:
            sharding.type = OpSharding.Type.OTHER
            sharding.tile_assignment_dimensions, sharding.tile_assignment_devices = list(answer.tiles), list(answer.devices)
            sharding.replicate_on_last_tile_dim = True
        self.compile_args["keepalive"][answer.question](HloSharding.from_proto(sharding))

    def unreplaced(self) -> Any:
        """JAX's own computation, which XLA partitions when it is compiled."""
        computation = object.__new__(pxla.MeshComputation)
        vars(computation).update(vars(self), _executable=None)
        return computation

    @property
    def _has_sizes_to_refine(self) -> bool:
        """Whether the program has symbolic sizes that are known at this call."""
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
        vars(replaced).update(vars(self), _hlo=self.module_to_compile(), _compiler_options_kvs=(), compile_args=refined)
        options = {**self.compiler_options(devices), **dict(self._compiler_options_kvs), **compiler_options}
        return replaced.compile(options, device_assignment=device_assignment)


Replace = Callable[[Any, Any], Any]
"""Returns the substitute of a MeshComputation, given it and its mark."""


def marked(function: Any, options: Mapping[str, Any], marked_with: Any) -> Any:
    """`jax.jit(function, **options)`, marked. A function that `jax.jit` made keeps its options if there are no new ones."""
    jitted = function if not options and is_jitted(function) else _jit(function, **options)
    info = jitted._jit_info
    unmarked = (option for option in info.compiler_options_kvs if option[0] != MARK)
    return _cpp_pjit(jitted._fun, info._replace(compiler_options_kvs=(*unmarked, (MARK, marked_with))))


def is_jitted(function: object) -> bool:
    """Whether `jax.jit` itself made a function. nnx.jit returns functions that look alike, and so does whatever copies the
    attributes of a function that it wraps, such as jax.grad."""
    return isinstance(function, _JITTED)


_JITTED = type(_jit(lambda: None))


def replace_computations(by: Replace) -> None:
    """From now on, a computation that is marked, or contains a marked function, is compiled as its substitute `by`. A second call
    has no effect."""
    with _making:
        if _originals:
            return
        _originals.extend((pxla.lower_sharding_computation, partial_eval.custom_staging_rules[jit_p]))

    lower_as_it_is, stage_as_it_is = _originals

    def lower_computation(
        jaxpr: Any, *arguments: Any, compiler_options_kvs: Options, lowering_parameters: Any, **named: Any
    ) -> Any:
        _, function, *_ = arguments  # the name of the API that compiles, and the function's
        plain = tuple(option for option in compiler_options_kvs if option[0] != MARK)
        moves = not getattr(jaxpr, "jaxpr", jaxpr).eqns  # as jax.device_put does, whose shardings may be of any devices
        mark = _marked_with(compiler_options_kvs) or _marked_within(jaxpr) or (None if moves else everywhere(function))
        if mark is None or _is_as_written(lowering_parameters):
            return lower_as_it_is(jaxpr, *arguments, compiler_options_kvs=plain, lowering_parameters=lowering_parameters, **named)
        rules = (*LOWERING_RULES, *(lowering_parameters.override_lowering_rules or ()))
        inlined = replace(lowering_parameters, override_lowering_rules=rules)
        lowered = lower_as_it_is(jaxpr, *arguments, compiler_options_kvs=plain, lowering_parameters=inlined, **named)
        return by(lowered, mark) if _partitions(lowered) > 1 else lowered

    def stage(trace: Any, source: Any, *arguments: Any, **parameters: Any) -> Any:
        options = parameters["compiler_options_kvs"]
        if _marked_with(options) is not None:
            unmarked = tuple(option for option in options if option[0] != MARK)
            parameters["compiler_options_kvs"] = unmarked or _Nested(options)
        return stage_as_it_is(trace, source, *arguments, **parameters)

    pxla.lower_sharding_computation = lower_computation
    partial_eval.custom_staging_rules[jit_p] = stage


_originals: list[Any] = []
_making = Lock()


def _marked_with(options: Options) -> Any:
    return next((value for name, value in options if name == MARK), None)


def _marked_within(jaxpr: Any) -> Any:
    """The mark of the first marked function that a jaxpr calls; None if there is none."""
    waiting, visited = [getattr(jaxpr, "jaxpr", jaxpr)], set()
    while waiting:
        inner_jaxpr = waiting.pop()
        if id(inner_jaxpr) in visited:
            continue
        visited.add(id(inner_jaxpr))
        for eqn in inner_jaxpr.eqns:
            if eqn.primitive is jit_p and (mark := _marked_with(eqn.params["compiler_options_kvs"])) is not None:
                return mark
            waiting += [getattr(inner, "jaxpr", inner) for inner in jaxprs_in_params(eqn.params)]
    return None


def _is_as_written(parameters: Any) -> bool:
    """Whether a computation is exported, or lowered by `lower`, for the caller to partition."""
    return bool(parameters.for_export or parameters.override_lowering_rules == LOWERING_RULES)


def _partitions(lowered: Any) -> int:
    attributes = lowered._hlo.operation.attributes
    return ir.IntegerAttr(attributes["mhlo.num_partitions"]).value if "mhlo.num_partitions" in attributes else 1


def everywhere(function: str | None = None) -> Any:
    """The mark of all computations (`set_everywhere`); None if there is none, or if it leaves the function of that name."""
    mark = _marks[_everywhere[0].value] if _everywhere else None
    return None if mark is None or (function is not None and mark.leaves(function)) else mark


def set_everywhere(marked_with: Any) -> Any:
    """Marks every computation of this process from now on, but those that the mark's `leaves` names; None leaves only those that
    are marked themselves. Returns the mark before.

    JAX caches what it traces and compiles by the mark. The first call clears what it has traced before.
    """
    with _making:
        number = _number(marked_with)
        before = everywhere()
        _everywhere[0]._set(number)
    return before


@contextmanager
def all_marked(marked_with: Any) -> Iterator[None]:
    """Meanwhile, every computation of this thread is marked."""
    with _making:
        number = _number(marked_with)
    with _everywhere[0](number):
        yield


def _number(marked_with: Any) -> int:
    """The value of JAX's setting that stands for a mark."""
    if not _everywhere:
        help_text = "how meshbridge partitions every function: the number of the options that it was told, 0 for not at all"
        _everywhere.append(int_state(_NAME, 0, help_text, include_in_jit_key=True, include_in_trace_context=True))
    if marked_with not in _marks:
        _marks.append(marked_with)
    return _marks.index(marked_with)


_NAME = "meshbridge_everywhere"
_everywhere: list[Any] = []
_marks: list[Any] = [None]
"""JAX's settings are numbers and strings, since they are also command-line flags; these are the values of the numbers."""


def lower(jitted: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Lowered:
    """The Lowered of a jitted function, not partitioned, by LOWERING_RULES. Raises what JAX raises."""
    inlined = lowering.LoweringParameters(override_lowering_rules=LOWERING_RULES)
    lowered: Lowered = jitted.trace(*arguments, **named).lower(_private_parameters=inlined)
    return lowered


def replacement(lowered: Lowered) -> Replacement | None:
    """The substitute of JAX's computation; None if it is compiled unchanged."""
    computation = lowered._lowering
    return computation if isinstance(computation, Replacement) else None


def module(lowered: Lowered) -> ir.Module:
    """Its program, in a context of our own: contexts do not share what they hold."""
    return _copied(lowered.compiler_ir("stablehlo"))


def _copied(held: Any) -> ir.Module:
    return mlir.parse(mlir.to_bytecode(held), str(held.operation.attributes["sym_name"]).strip('"'), mlir.context())


def devices(lowered: Lowered) -> tuple[Any, ...]:
    """The devices on which JAX runs the function, in order; none if all are abstract."""
    return _devices(lowered._lowering)


def _devices(computation: Any) -> tuple[Any, ...]:
    return tuple(computation._device_list or ())
