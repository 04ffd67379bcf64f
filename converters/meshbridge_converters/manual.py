"""Local program -> one callable program on global shapes (stage 5, local -> exported), in place.

    mesh.mesh @m(shape = 2) {meshbridge.axis_names = ["x"]}
    func.func @main(%arg0: tensor<4xf32> {meshbridge.global = tensor<8xf32>, meshbridge.mesh = @m,
                                          meshbridge.split_axes = #mesh.axisarray<[[0]]>}) -> (tensor<f32> {…}) {
      …
      return %r : tensor<f32>
==>
    sdy.mesh @m = <["x"=2]>
    func.func @main(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}]>}) -> (tensor<f32> {…}) {
      %0 = sdy.manual_computation(%arg0) in_shardings=[<@m, [{"x"}]>] out_shardings=[<@m, [], replicated={"x"}>]
        manual_axes={"x"} (%arg1: tensor<4xf32>) {
        …
        sdy.return %r : tensor<f32>
      } : (tensor<8xf32>) -> tensor<f32>
      return %0 : tensor<f32>

XLA partitions nothing in such a program: all axes are manual, so what stands in the body is what runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from meshbridge.dialect import attributes
from meshbridge.dialect.attributes import axis_lists
from meshbridge.dialect.ops import BOUNDARY_PARTIAL, REPLICATED_AXES
from meshbridge.ir.mlir import MANUAL, OpError, entries, ir, main_function, sdy, set_entries
from meshbridge.ir.sharding import Sharding, is_even
from meshbridge_converters import carriers, meshes, sdy_attributes
from meshbridge_converters.carriers import NAMED_IN_HLO, SHARDING
from meshbridge_converters.sdy_attributes import SdyMesh

GLOBAL, SPLIT_AXES = "meshbridge.global", "meshbridge.split_axes"
"""Attributes of a local program's arguments and results: the type before partitioning, the axes per dimension."""


_SAID = (GLOBAL, meshes.MESH, SPLIT_AXES, BOUNDARY_PARTIAL)
"""What an argument or result says of its sharding."""


class _Boundary(NamedTuple):
    """An argument or result of the local program: its global type and its sharding, which tokens have none of."""

    type: ir.Type
    sharding: Sharding | None

    def outer(self, write: _Writer) -> ir.Attribute:
        """The sdy sharding, in which every axis of the mesh splits a dimension, is explicitly replicated, or unreduced."""
        if self.sharding is None:
            return write(Sharding(write.mesh.value.name, ()), 0, named=False)
        return write(self.sharding, ir.RankedTensorType(self.type).rank, named=True)

    def entry(self, write: _Writer) -> dict[str, ir.Attribute]:
        """The attribute that says so of the function's argument or result."""
        if self.sharding is None:
            return {}
        return {SHARDING: write(self.sharding, ir.RankedTensorType(self.type).rank, named=False)}


class _Side:
    """All arguments, or all results, of the local program: their boundaries, of which many are one, and other attributes."""

    def __init__(self, main: ir.Operation, listed: str, types: list[ir.Type]) -> None:
        self.main, self.listed = main, listed
        self.others = entries(main, listed)
        read: dict[tuple[ir.Attribute | ir.Type | None, ...], _Boundary] = {}
        self.boundaries: list[_Boundary] = []
        for index, (local, entry) in enumerate(zip(types, self.others, strict=True)):
            for note in _NOTES:
                entry.pop(note, None)
            said: tuple[ir.Attribute | None, ...] = (None,) * len(_SAID)
            if isinstance(local, ir.RankedTensorType):  # a token is the same on every device
                said = tuple([entry.pop(name, None) for name in _SAID])
                if any(attr is None for attr in said[:3]):
                    where = f"{listed.partition('_')[0]} {index}"
                    expected = f"{where} does not carry {GLOBAL}, {meshes.MESH} and {SPLIT_AXES}"
                    raise OpError(main, expected, hint="mesh-spmdization=boundary")
            found = read.get((local, *said))
            if found is None:
                found = read[local, *said] = _boundary(local, *said)
            self.boundaries.append(found)
        self.distinct = list(read.values())

    @property
    def types(self) -> list[ir.Type]:
        """The global types."""
        return [boundary.type for boundary in self.boundaries]

    def shardings(self, write: _Writer) -> ir.Attribute:
        """Those of all, for the manual computation."""
        written = {id(boundary): boundary.outer(write) for boundary in self.distinct}
        return carriers.per_value_attr([written[id(boundary)] for boundary in self.boundaries])

    def write_entries(self, write: _Writer) -> None:
        """Gives the function's arguments or results their attributes."""
        written = {id(boundary): boundary.entry(write) for boundary in self.distinct}
        columns = zip(self.boundaries, self.others, strict=True)
        set_entries(self.main, self.listed, [others | written[id(boundary)] for boundary, others in columns])


_NOTES = (carriers.OUR_PROPAGATION_EDGES, "sdy.sharding_origins")


def _boundary(local: ir.Type, whole: Any, mesh: Any, split: Any, partial: Any) -> _Boundary:
    if whole is None:
        return _Boundary(local, None)
    terms = attributes.integers(partial) if partial is not None else ()
    return _Boundary(ir.TypeAttr(whole).value, Sharding(attributes.symbol(mesh), attributes.axis_array(split), terms))


def wrap_manual(module: ir.Module) -> None:
    """Makes `main` a function on global shapes whose body is one `sdy.manual_computation` over all axes of the mesh.

    Arguments and results keep their attributes and locations and get `sdy.sharding` in place of `meshbridge.*`; every mesh is an
    `sdy.mesh` again. A module without a mesh is left as it is.

    Raises OpError where an argument or result does not say how it is sharded or has unequal shards, or where they are on
    different meshes.
    """
    with module.context, ir.Location.unknown():
        restored = meshes.restore(module)
        if restored:
            _wrap(main_function(module), restored)
        for op in module.body.operations:  # of the way back to GSPMD, which there is none of from here
            if NAMED_IN_HLO in op.operation.attributes:
                del op.operation.attributes[NAMED_IN_HLO]


def _wrap(main: ir.Operation, known: Mapping[str, SdyMesh]) -> None:
    body = main.regions[0].blocks[0]
    terminator = body.operations[-1].operation
    arguments = _Side(main, "arg_attrs", [argument.type for argument in body.arguments])
    results = _Side(main, "res_attrs", [operand.type for operand in terminator.operands])
    distinct = [*arguments.distinct, *results.distinct]
    mesh = _the_mesh(main, distinct, known)
    write = _Writer(mesh)
    if mesh.value.size > 1:  # else nothing is manual: XLA before jaxlib 0.10 leaves the computation unexpanded on one device
        for boundary in distinct:
            _check_even(main, boundary, mesh)
        _put_inside(main, body, terminator, arguments, results, write)
    for side in (arguments, results):
        side.write_entries(write)


def _put_inside(
    main: ir.Operation, body: ir.Block, terminator: ir.Operation, arguments: _Side, results: _Side, write: _Writer
) -> None:
    """Makes the body of `main` that of a manual computation."""
    global_arguments, global_results = arguments.types, results.types
    entry = body.create_before(*global_arguments, arg_locs=[argument.location for argument in body.arguments])
    ip = ir.InsertionPoint(entry)
    attrs = {
        "in_shardings": arguments.shardings(write),
        "out_shardings": results.shardings(write),
        "manual_axes": sdy.ManualAxesAttr.get([ir.StringAttr.get(name) for name in write.mesh.value.runs]),
    }
    operands = list(entry.arguments)
    manual = ir.Operation.create(MANUAL, global_results, operands, attrs, regions=1, loc=main.location, ip=ip)
    ir.Operation.create("func.return", [], list(manual.results), loc=terminator.location, ip=ip)
    body.append_to(manual.regions[0])
    returned = list(terminator.operands)
    ir.Operation.create("sdy.return", [], returned, loc=terminator.location, ip=ir.InsertionPoint(terminator))
    terminator.erase()

    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(global_arguments, global_results))


def _the_mesh(main: ir.Operation, boundaries: Iterable[_Boundary], known: Mapping[str, SdyMesh]) -> SdyMesh:
    """The one mesh of the program; a program that has no tensors at its boundary is on the first."""
    names = {boundary.sharding.mesh: None for boundary in boundaries if boundary.sharding is not None}
    if len(names) > 1:
        raise OpError(main, f"has arguments and results on several meshes: {', '.join(f'@{name}' for name in names)}")
    name = next(iter(names or known))
    if name not in known:
        raise OpError(main, f"is on the unknown mesh @{name}")
    return known[name]


def _check_even(main: ir.Operation, boundary: _Boundary, mesh: SdyMesh) -> None:
    """A manual computation has no padding at its boundary, and neither have JAX's arrays."""
    if boundary.sharding is None:
        return
    shape, split = tuple(ir.RankedTensorType(boundary.type).shape), boundary.sharding.split_axes
    if not is_even(shape, mesh.value, boundary.sharding.padded(len(shape)).split_axes):
        raise OpError(
            main,
            f"has an argument or result of shape {list(shape)} in shards that are not equal, split_axes = {axis_lists(split)}",
            hint="the form 'exported' needs equal shards at the boundary; the form 'local' does not",
        )


class _Writer:
    """Writes shardings over a mesh, each of them once: a model has thousands of arguments, and few shardings."""

    def __init__(self, mesh: SdyMesh) -> None:
        self.mesh = mesh
        self._written: dict[tuple[Sharding, int, bool], ir.Attribute] = {}

    def __call__(self, sharding: Sharding, rank: int, *, named: bool) -> ir.Attribute:
        """The sdy sharding of a tensor of `rank` dimensions; `named`: it names the axes along which the tensor is replicated."""
        key = (sharding, rank, named)
        if key not in self._written:
            unused = sorted(set(range(self.mesh.value.rank)) - {*sharding.used_axes, *sharding.partial_axes})
            extras = {REPLICATED_AXES: attributes.axes_attr(unused)} if named else {}
            self._written[key] = sdy_attributes.write(sharding, rank, extras, self.mesh)
        return self._written[key]
