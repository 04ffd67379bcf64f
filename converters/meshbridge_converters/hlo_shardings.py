"""HloSharding strings, as `mhlo.sharding` attributes carry them, as frozen values; all of their versions.

    sharding := "{" words "}" | "{" named "}" | "{" sharding ("," sharding)* "}"
    words    := in any order, each once: replicated | manual | unreduced | unknown | maximal device=N
                | devices=[tiles] followed by a list of devices or <=[shape]T(permutation)
                | last_tile_dim_replicate | last_tile_dims={kind, …} | shard_as N | shard_like N | metadata={…}
    named    := mesh['x'=2,'y'=4], device_ids=(…), [{'x', ?}, {'y':(1)2}], replicated={…}, unreduced={…}, manual={…}
                | maximal_mesh[device_id=N]

Metadata, which says for people where XLA has a sharding from, may follow a named one, too. It is read over.

The text is read and checked here alone: XLA's own reader ends the process over many strings that make no sense. What XLA prints
is in the tests' hands, as the oracle.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, pairwise
from math import prod

import numpy as np
from jaxlib.xla_client import HloSharding, OpSharding

from meshbridge.ir.sharding import MAX_DEVICES, Axes, AxisRef, Mesh
from meshbridge.ir.subaxes import factor
from meshbridge.text import did_you_mean
from meshbridge_converters.hlo_tokens import Reader

MAX_DIMENSIONS = 32
"""Of a tile assignment: as many as numpy arrays had for long. No tensor of a program comes near."""

KINDS = ("replicated", "manual", "unreduced", "unknown", "maximal")
"""The words that are a sharding by themselves."""

METADATA = "metadata"
"""The word before what says where XLA has a sharding from."""

SUBGROUPS = ("manual", "unreduced", "replicated")
"""What the devices may be that share a tile."""


@dataclass(frozen=True)
class Group:
    """The number that ties values together, by `shard_as` or by `shard_like`."""

    number: int
    like: bool = False


Refs = tuple[AxisRef, ...]


@dataclass(frozen=True)
class Tiling:
    """The sharding of one value.

    `kind` is tiled, named, replicated, maximal, manual, unknown or unreduced. A tiled one has `tiles` per tensor dimension, then
    `subgroups` of devices (what they are, and how many devices), and all `devices` in row-major order of tiles and subgroups.
    A named one has axes per tensor dimension, `open_dims` that may be split further, and `axes` per kind of subgroup. A maximal
    one has one device. `mesh` is what version 3 names. `group` ties the values that must be sharded alike.
    """

    kind: str
    tiles: tuple[int, ...] = ()
    subgroups: tuple[tuple[str, int], ...] = ()
    devices: tuple[int, ...] = ()
    group: Group | None = None
    mesh: Mesh | None = None
    dims: tuple[Refs, ...] = ()
    open_dims: tuple[int, ...] = ()
    axes: tuple[tuple[str, Refs], ...] = ()

    def axes_of(self, kind: str) -> Refs:
        """The axes of a named one that are manual, replicated or unreduced."""
        return dict(self.axes).get(kind, ())


@lru_cache(maxsize=4096)
def parse(text: str) -> tuple[Tiling, ...]:
    """The shardings in an HloSharding string: one, or the elements of a tuple.

    Raises ValueError for a string that is not an HloSharding, or that contradicts itself.
    """
    reader = Reader(text)
    reader.expect("{")
    if reader.next == "}":
        raise ValueError("not an HloSharding: it is empty")
    if reader.next == "{":
        found = tuple(reader.list_of(_braced, "}"))
    else:
        found = (_body(reader),)
        reader.expect("}")
    if reader.next:
        raise reader.error("expected nothing after the last '}'")
    return found


def has_metadata(text: str) -> bool:
    """Whether an HloSharding string holds metadata, which `parse` reads over."""
    return METADATA in text and any(token == METADATA for token, _ in Reader(text).tokens)


def parse_axes(text: str) -> tuple[Mesh, Axes]:
    """Axes of a mesh as HLO says along which devices form groups, `mesh['x'=2,'y'=4] {'y':(1)2}`: 2x2x2 and (1,).

    Raises ValueError for text that is none.
    """
    reader = Reader(text)
    reader.expect("mesh")
    mesh = _mesh(reader)
    reader.expect("{")
    refs = reader.list_of(lambda reader: _axis(reader, mesh), "}")
    cut = factor(mesh.named_axes, refs, device_ids=mesh.device_ids)
    return cut, tuple(axis for ref in refs for axis in cut.axes_of(ref))


def _braced(reader: Reader) -> Tiling:
    reader.expect("{")
    found = _body(reader)
    reader.expect("}")
    return found


def _body(reader: Reader) -> Tiling:
    if reader.accept("mesh"):
        return _named(reader)
    if reader.accept("maximal_mesh"):
        reader.expect("[", "device_id", "=")
        device = reader.number(0)
        reader.expect("]")
        _accept_metadata(reader)
        return Tiling("maximal", devices=(device,))
    return _worded(reader)


def _no_value(reader: Reader) -> bool:
    return True


def _device(reader: Reader) -> int:
    reader.expect("=")
    return reader.number(0)


def _skip_metadata(reader: Reader) -> None:
    """`={…}`, braces within and strings included."""
    reader.expect("=", "{")
    depth = 1
    while depth:
        if not reader.next:
            raise reader.error("expected '}' after the metadata")
        depth += {"{": 1, "}": -1}.get(reader.take(), 0)


def _accept_metadata(reader: Reader) -> None:
    """What may stand at the end of a sharding that names its mesh."""
    if reader.next == "," and reader.ahead(1) == METADATA:
        reader.expect(",", METADATA)
        _skip_metadata(reader)


def _last_tile_dims(reader: Reader) -> list[str]:
    reader.expect("=", "{")
    return reader.list_of(_subgroup, "}")


def _subgroup(reader: Reader) -> str:
    if reader.next not in SUBGROUPS:
        raise reader.error(f"expected one of {', '.join(SUBGROUPS)}")
    return reader.take()


def _numbers(reader: Reader, opening: str, closing: str, least: int = 1) -> list[int]:
    reader.expect(opening)
    found = reader.list_of(lambda reader: reader.number(least), closing)
    if not 0 < len(found) <= MAX_DIMENSIONS:
        raise ValueError(f"not an HloSharding: expected 1 to {MAX_DIMENSIONS} numbers in {opening}…{closing}, found {len(found)}")
    return found


def _tile_assignment(reader: Reader) -> tuple[list[int], tuple[int, ...]]:
    """`[tiles]`, and the devices in row-major order of the tiles."""
    reader.expect("=")
    tiles = _numbers(reader, "[", "]")
    count, shown = prod(tiles), f"devices=[{','.join(map(str, tiles))}]"
    if count > MAX_DEVICES:
        raise ValueError(f"{shown} has {count} tiles, expected at most {MAX_DEVICES}")
    if reader.accept("<="):
        return tiles, _iota(reader, count, shown)
    devices = [reader.number(0)]
    while reader.accept(","):
        devices.append(reader.number(0))
    if sorted(devices) != list(range(count)) or count == 1:
        listed = ",".join(map(str, devices[:16])) + (",…" if len(devices) > 16 else "")
        expected = f"the devices 0 to {count - 1}, each once" if count > 1 else "more than one device"
        raise ValueError(f"{shown} needs {expected}, found {listed}")
    return tiles, tuple(devices)


def _iota(reader: Reader, count: int, shown: str) -> tuple[int, ...]:
    """`[shape]`, and perhaps `T(permutation)`: 0, 1, 2, … in that shape, transposed."""
    shape = _numbers(reader, "[", "]")
    listed = ",".join(map(str, shape))
    if prod(shape) != count:
        raise ValueError(f"{shown} has {count} tiles, but <=[{listed}] has {prod(shape)} devices")
    order = list(range(len(shape)))
    if reader.accept("T"):
        order = _numbers(reader, "(", ")", 0)
        if sorted(order) != list(range(len(shape))):
            raise ValueError(f"T({','.join(map(str, order))}) is not a permutation of the dimensions of [{listed}]")
    return tuple(np.arange(count).reshape(shape).transpose(order).ravel().tolist())


_WORDS: dict[str, Callable[[Reader], object]] = {
    **dict.fromkeys(KINDS, _no_value),
    "device": _device,
    "devices": _tile_assignment,
    "last_tile_dim_replicate": _no_value,
    "last_tile_dims": _last_tile_dims,
    "shard_as": lambda reader: reader.number(0),
    "shard_like": lambda reader: reader.number(0),
    METADATA: _skip_metadata,
}
"""The words of versions 1 and 2, and what follows each."""

_EXCLUDING = (
    frozenset((*KINDS, "devices")),
    frozenset(("last_tile_dims", "last_tile_dim_replicate")),
    frozenset(("shard_as", "shard_like")),
)
"""Words of which a sharding has at most one."""

_NEEDING = {"device": "maximal", "maximal": "device", "last_tile_dims": "devices", "last_tile_dim_replicate": "devices"}


def _worded(reader: Reader) -> Tiling:
    said: dict[str, object] = {}
    while reader.next not in ("}", ""):
        if reader.next not in _WORDS or reader.next in said:
            raise reader.error(f"expected one of {', '.join(word for word in _WORDS if word not in said)}")
        word = reader.take()
        said[word] = _WORDS[word](reader)
    for excluding in _EXCLUDING:
        if len(both := [word for word in said if word in excluding]) > 1:
            raise ValueError(f"not an HloSharding: it says both {both[0]} and {both[1]}")
    for word, needed in _NEEDING.items():
        if word in said and needed not in said:
            raise ValueError(f"not an HloSharding: {word} needs {needed}")
    group = next((Group(int(str(said[word])), word == "shard_like") for word in ("shard_as", "shard_like") if word in said), None)
    kind = next((word for word in said if word in _EXCLUDING[0]), None)
    if kind is None:
        raise ValueError(f"not an HloSharding: expected one of {', '.join((*KINDS, 'devices'))} in it")
    return replace(_of_kind(kind, said), group=group)


def _of_kind(kind: str, said: dict[str, object]) -> Tiling:
    if kind == "maximal":
        return Tiling(kind, devices=(int(str(said["device"])),))
    if kind != "devices":
        return Tiling(kind)
    assignment, last = said["devices"], said.get("last_tile_dims", ["replicated"] if "last_tile_dim_replicate" in said else [])
    assert isinstance(assignment, tuple)
    assert isinstance(last, list)
    tiles, devices = assignment
    rank = len(tiles) - len(last)
    if rank < 0:
        raise ValueError(f"not an HloSharding: last_tile_dims names {len(last)} dimensions, devices has {len(tiles)}")
    subgroups = tuple((kind, size) for kind, size in zip(last, tiles[rank:], strict=True) if size > 1)
    return Tiling("tiled", tuple(tiles[:rank]), subgroups, devices)


def _named(reader: Reader) -> Tiling:
    mesh = _mesh(reader)
    reader.accept(",")
    if reader.next in ("replicated", "manual", "unreduced"):
        kind = reader.take()
        _accept_metadata(reader)
        return Tiling(kind, mesh=mesh)
    reader.expect("[")
    dims = reader.list_of(lambda reader: _dimension(reader, mesh), "]")
    subgroups: dict[str, Refs] = {}
    _accept_metadata(reader)
    while reader.accept(","):
        if reader.next not in SUBGROUPS or reader.next in subgroups:
            raise reader.error(f"expected one of {', '.join(kind for kind in SUBGROUPS if kind not in subgroups)}")
        kind = reader.take()
        reader.expect("=", "{")
        subgroups[kind] = tuple(reader.list_of(lambda reader: _axis(reader, mesh), "}"))
        _check_order(kind, subgroups[kind], mesh)
        _accept_metadata(reader)
    split = tuple(refs for refs, _ in dims)
    if any(ref.size is not None for ref in subgroups.get("manual", ())):
        raise ValueError("a sub-axis is manual, expected axes")
    for refs in (*split, *subgroups.values()):
        _check_fused(refs)
    _check_disjoint([ref for refs in (*split, *subgroups.values()) for ref in refs], mesh)
    opened = tuple(index for index, (_, is_open) in enumerate(dims) if is_open)
    axes = tuple((kind, subgroups[kind]) for kind in SUBGROUPS if subgroups.get(kind))
    return Tiling("named", mesh=mesh, dims=split, open_dims=opened, axes=axes)


def _mesh(reader: Reader) -> Mesh:
    reader.expect("[")
    axes = tuple(reader.list_of(_mesh_axis, "]"))
    names, count = [name for name, _ in axes], prod(size for _, size in axes)
    if len(set(names)) < len(names):
        raise ValueError(f"not an HloSharding: the mesh has two axes of one name among {', '.join(map(repr, names))}")
    if count > MAX_DEVICES:
        raise ValueError(f"the mesh has {count} devices, expected at most {MAX_DEVICES}")
    if reader.ahead(1) != "device_ids":
        return factor(axes, ())
    reader.expect(",", "device_ids", "=", "(")
    if reader.next == "[":
        ids = _iota(reader, count, "the mesh")
        reader.expect(")")
    else:
        ids = tuple(reader.list_of(lambda reader: reader.number(0), ")"))
    in_order = list(range(count))
    if sorted(ids) != in_order:
        raise ValueError(f"not an HloSharding: device_ids needs the devices 0 to {count - 1}, each once")
    return factor(axes, (), device_ids=() if list(ids) == in_order else ids)


def _mesh_axis(reader: Reader) -> tuple[str, int]:
    name = reader.name()
    reader.expect("=")
    return name, reader.number()


def _dimension(reader: Reader, mesh: Mesh) -> tuple[Refs, bool]:
    """Its axes, and whether it is open."""
    reader.expect("{")
    refs: list[AxisRef] = []
    while not reader.accept("}"):
        if refs:
            reader.expect(",")
        if reader.accept("?"):
            reader.expect("}")
            return tuple(refs), True
        refs.append(_axis(reader, mesh))
    return tuple(refs), False


def _axis(reader: Reader, mesh: Mesh) -> AxisRef:
    """An axis by name (or, as XLA allows, by number), or a part of one."""
    said, sizes = reader.name(), dict(mesh.named_axes)
    name = said
    if said not in sizes and re.fullmatch(r"[0-9]{1,6}", said) and int(said) < len(sizes):
        name = list(sizes)[int(said)]
    if name not in sizes:
        known = ", ".join(f"'{axis}'" for axis in sizes) or "none"
        raise ValueError(f"unknown axis '{said}', expected one of the mesh's axes: {known}{did_you_mean(said, sizes)}")
    if not reader.accept(":"):
        return AxisRef(name)
    reader.expect("(")
    pre = reader.number()
    reader.expect(")")
    ref = AxisRef(name, pre, reader.number(2))
    assert ref.size is not None
    if ref.size >= sizes[name] or sizes[name] % (pre * ref.size):
        raise ValueError(f"{ref} is not a part of the axis '{name}' of size {sizes[name]}")
    return ref


def _check_order(kind: str, refs: Refs, mesh: Mesh) -> None:
    keys = [(mesh.runs[ref.name], ref.pre) for ref in refs]
    if keys != sorted(keys):
        raise ValueError(f"not an HloSharding: expected the {kind} axes in the order of the mesh")


def _check_fused(refs: Refs) -> None:
    for outer, inner in pairwise(refs):
        if outer.name == inner.name and outer.size is not None and outer.pre * outer.size == inner.pre:
            raise ValueError(f"not an HloSharding: {outer} and {inner} stand side by side, expected them as one")


def _check_disjoint(refs: Sequence[AxisRef], mesh: Mesh) -> None:
    """Every axis, and every part of one, is used once; the parts go together."""
    sizes = dict(mesh.named_axes)
    for one, other in combinations(refs, 2):
        ends = [ref.pre * (ref.size or sizes[ref.name]) for ref in (one, other)]
        if one.name == other.name and (one == other or (one.pre < ends[1] and other.pre < ends[0])):
            raise ValueError(
                f"not an HloSharding: the axis {one} is used twice" + (f", again as {other}" if one != other else "")
            )
    factor(mesh.named_axes, refs)


_PRINTED = {
    "replicated": OpSharding.Type.REPLICATED,
    "manual": OpSharding.Type.MANUAL,
    "unreduced": OpSharding.Type.UNREDUCED,
}


def print_tiled(
    tiles: Sequence[int], subgroups: Sequence[tuple[str, int]], shape: Sequence[int], order: Sequence[int], devices: Sequence[int]
) -> str:
    """The string of a tiled sharding over a mesh of `shape`, whose axes in `order` make up the tiles of each dimension, then the
    subgroups. `devices` in row-major order of the mesh, empty for 0, 1, 2, …
    """
    if all(size == 1 for size in tiles):
        if all(kind == "replicated" for kind, _ in subgroups):
            return "{replicated}"
        if [kind for kind, _ in subgroups] in (["manual"], ["unreduced"]):
            return f"{{{subgroups[0][0]}}}"
    dims, types = [*tiles, *(size for _, size in subgroups)], [_PRINTED[kind] for kind, _ in subgroups]
    if not devices:
        return str(HloSharding.iota_tile(dims, list(shape), list(order), types))
    grid = np.array(devices, dtype=np.int64).reshape(shape).transpose(order).reshape(dims)
    return str(HloSharding.subgroup_with_device_ordering(np.ascontiguousarray(grid), types))


def print_named(tiling: Tiling) -> str:
    """The string of a named sharding, as XLA prints it."""
    assert tiling.mesh is not None
    mesh = ",".join(f"{_quoted(AxisRef(name))}={size}" for name, size in tiling.mesh.named_axes)
    ids = f", device_ids=({','.join(map(str, tiling.mesh.device_ids))})" if tiling.mesh.device_ids else ""
    dims = [", ".join([*map(_quoted, refs), *["?"] * (dim in tiling.open_dims)]) for dim, refs in enumerate(tiling.dims)]
    groups = [f", {kind}={{{', '.join(map(_quoted, refs))}}}" for kind in KINDS if (refs := tiling.axes_of(kind))]
    return f"{{mesh[{mesh}]{ids}, [{', '.join(f'{{{dim}}}' for dim in dims)}]{''.join(groups)}}}"


def _quoted(ref: AxisRef) -> str:
    return str(ref) if "'" in ref.name else str(ref).replace('"', "'")
