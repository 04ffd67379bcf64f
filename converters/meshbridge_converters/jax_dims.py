"""Sizes for the symbolic dimensions of a `jax.export` artifact: the same function, for one choice of its shapes.

The module is refined as `Exported.call` has it done for arguments of known shapes: arguments get static types, each after a
conversion to the type that it had, and XLA's shape refinement carries them through, checking the artifact's own assertions.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError, artifacts, context, ir, main_function, stablehlo
from meshbridge_converters import portable

if TYPE_CHECKING:
    from jax.export import Exported

_CONSTRAINT = re.compile(r"symbolic shape constraint .*?, but found -?\d+")
"""What an assertion of the artifact says once it has failed, less the hints to whoever calls from JAX."""

Shape = tuple[int, ...]


def refined(exported: Exported, dims: Mapping[str, int], name: str | None = None) -> Exported:
    """`exported` with its symbolic dimensions of the sizes `dims`, its vjp too; trees, names and shardings stay as they are.

    `name` is what diagnostics call it, the function's own name by default.
    Raises MeshError unless `dims` holds a positive size for each of the symbols, and no other, such that every dimension comes
    out as a size and the constraints of the artifact hold.
    """
    artifact: Any = exported
    sizes = _Sizes(dims, name or artifact.fun_name)
    sizes.check_names(artifact.in_avals)
    in_avals, out_avals = ([sizes.fixed(aval) for aval in avals] for avals in (artifact.in_avals, artifact.out_avals))
    shapes = [in_avals[index].shape for index in artifact.module_kept_var_idx]
    several = len(artifact.platforms) > 1  # the platform's index is a constant to JAX as symbols are
    return dataclasses.replace(
        artifact,
        in_avals=tuple(in_avals),
        out_avals=tuple(out_avals),
        mlir_module_serialized=sizes.refine(artifact.mlir_module_serialized, shapes, several),
        uses_global_constants=several,
        _get_vjp=None if artifact._get_vjp is None else RefinedVjp(artifact, dict(dims)),
    )


@dataclasses.dataclass(frozen=True, eq=False)  # hashed with its Exported, as cheaply as JAX's own functions
class RefinedVjp:
    """What `Exported._get_vjp` calls: the vjp of the artifact with symbols, which JAX knows how to make, refined."""

    original: Any
    dims: Mapping[str, int]

    def __call__(self, primal: Exported) -> Exported:
        return refined(self.original.vjp(), self.dims)


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """The size of each symbol, and what diagnostics call the artifact."""

    dims: Mapping[str, int]
    name: str

    def check_names(self, avals: Sequence[Any]) -> None:
        """Raises MeshError unless the symbols of `avals` are those that have a size, a positive one."""
        symbols = sorted({symbol for aval in avals for dim in _symbolic(aval) for symbol in dim._get_vars()})
        if not symbols:
            raise MeshError(f"{self.name}: error: the artifact has fixed sizes, expected none for {', '.join(self.dims)}")
        if set(symbols) != set(self.dims) or any(size < 1 for size in self.dims.values()):
            raise MeshError(f"{self.name}: error: expected a positive size for each of {', '.join(symbols)}, found {self}")

    def __str__(self) -> str:
        return ", ".join(f"{symbol}={size}" for symbol, size in self.dims.items()) or "none"

    def fixed(self, aval: Any) -> Any:
        """`aval` with its shape evaluated."""
        return aval.update(shape=tuple(dim if isinstance(dim, int) else self.evaluate(dim) for dim in aval.shape))

    def evaluate(self, dim: Any) -> int:
        """The size of a symbolic dimension, which JAX computes in 32 bits.

        Raises MeshError where it comes out negative or does not fit.
        """
        import numpy as np

        try:
            with np.errstate(over="raise"):
                size = int(dim._evaluate(self.dims))
        except (OverflowError, FloatingPointError):
            size = 2**31
        if 0 <= size < 2**31:
            return size
        found = f"it is {size}" if size < 0 else "it is beyond 2**31 - 1"
        raise MeshError(f"{self.name}: error: expected sizes for which the dimension {dim} is a size, but for {self} {found}")

    def refine(self, serialized: bytes, shapes: Sequence[Shape], several_platforms: bool) -> bytes:
        """The module of an artifact for array arguments of `shapes`. Raises MeshError where a constraint of it does not hold."""
        module = portable.deserialize(serialized, self.name, context())
        _fix_arguments(module, shapes)
        try:
            data = artifacts.refine_polymorphic_shapes(mlir.to_bytecode(module), True, True, True)  # assertions, all static, sdy
        except RuntimeError as error:  # XlaRuntimeError
            raise MeshError(f"{self.name}: error: {self._complaint(str(error))}") from None
        module = mlir.parse(data, self.name, module.context)
        _drop_conversions(module)
        with module.context:
            module.operation.attributes["jax.uses_shape_polymorphism"] = ir.BoolAttr.get(several_platforms)
        return portable.serialize(module)

    def _complaint(self, reason: str) -> str:
        broken = _CONSTRAINT.search(reason)
        if broken is not None:
            return f"expected sizes that keep the artifact's constraints, but {self} break the {broken[0]}"
        return f"the artifact cannot be refined to {self}: {reason.splitlines()[0]}"


def _symbolic(aval: Any) -> Iterator[Any]:
    return (dim for dim in aval.shape if not isinstance(dim, int))


def _fix_arguments(module: ir.Module, shapes: Sequence[Shape]) -> None:
    """Gives the last arguments of `main` these shapes, with a conversion of each to the type that the body expects."""
    main = main_function(module)
    block = main.regions[0].blocks[0]
    arguments = list(block.arguments)
    with module.context, ir.Location.unknown(), ir.InsertionPoint.at_block_begin(block):
        for argument, shape in zip(arguments[len(arguments) - len(shapes) :], shapes, strict=True):
            expected = ir.RankedTensorType(argument.type)
            if expected.has_static_shape:
                continue
            argument.set_type(ir.RankedTensorType.get(shape, expected.element_type))
            conversion = stablehlo.ConvertOp(expected, argument).operation
            argument.replace_all_uses_except(conversion.results[0], conversion)
        results = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value).results
        types = [argument.type for argument in arguments]
        main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(types, results))


def _drop_conversions(module: ir.Module) -> None:
    """Removes the conversions of arguments, which convert nothing any more."""
    block = main_function(module).regions[0].blocks[0]
    arguments = set(block.arguments)
    for op in [each.operation for each in block.operations if each.operation.name == "stablehlo.convert"]:
        if op.operands[0] in arguments and op.operands[0].type == op.results[0].type:
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()
