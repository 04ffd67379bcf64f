"""HloSharding strings: read as XLA reads them, and refused, not run into, where XLA ends the process."""

from __future__ import annotations

import random
from itertools import product
from math import prod

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxlib.xla_client import HloSharding

from meshbridge.ir.sharding import AxisRef
from meshbridge.ir.subaxes import factor
from meshbridge_converters import hlo_shardings
from meshbridge_converters.hlo_shardings import Tiling
from tests.fuzz import mutators
from tests.fuzz.mutators import Source

SUBGROUPS = st.lists(st.sampled_from(["manual", "unreduced", "replicated"]), max_size=3, unique=True)


@st.composite
def tiled(draw: st.DrawFn) -> str:
    """Versions 1 and 2: an iota over a transposed shape, or a list; the tiles group its dimensions in order."""
    shape = draw(st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=4))
    order = draw(st.permutations(range(len(shape))))
    sizes = [shape[axis] for axis in order]
    tiles = sizes if draw(st.booleans()) else [prod(sizes[:1]), prod(sizes[1:])]
    kinds = draw(SUBGROUPS)[: len(tiles) - 1]
    listed = ",".join(map(str, draw(st.permutations(range(prod(shape))))))
    iota = f"<=[{','.join(map(str, shape))}]T({','.join(map(str, order))})" if len(shape) > 1 else f"<=[{shape[0]}]"
    last = f" last_tile_dims={{{', '.join(kinds)}}}" if kinds else ""
    return f"{{devices=[{','.join(map(str, tiles))}]{iota if draw(st.booleans()) else listed}{last}}}"


@st.composite
def named(draw: st.DrawFn) -> str:
    """Version 3: axes and halves of axes of size 4, dealt to two dimensions and the subgroups."""
    axes = [(name, draw(st.sampled_from([2, 4]))) for name in draw(st.permutations("abc"))]
    refs = []
    for name, size in axes:
        halves = [AxisRef(name, 1, 2), AxisRef(name, 2, 2)]
        refs += halves if size == 4 and draw(st.booleans()) else [AxisRef(name)]
    dealt: dict[str, list[AxisRef]] = {}
    for ref in refs:
        home = draw(st.sampled_from(["0", "1", "replicated", "unreduced", "nothing"]))
        dealt.setdefault("nothing" if _continues(dealt.get(home), ref) else home, []).append(ref)
    dims = tuple(tuple(dealt.get(dim, ())) for dim in "01")
    groups = tuple((kind, tuple(dealt.get(kind, ()))) for kind in ("replicated", "unreduced"))
    count = prod(size for _, size in axes)
    ids = tuple(draw(st.permutations(range(count)))) if draw(st.booleans()) else ()
    mesh = factor(axes, (), device_ids=() if ids == tuple(range(count)) else ids)
    opened = tuple(dim for dim in range(2) if draw(st.booleans()))
    return hlo_shardings.print_named(Tiling("named", mesh=mesh, dims=dims, open_dims=opened, axes=groups))


def _continues(refs: list[AxisRef] | None, ref: AxisRef) -> bool:
    return bool(refs) and ref.size is not None and refs is not None and refs[-1].name == ref.name


@given(text=tiled())
def test_tiles_are_those_of_xla(text: str) -> None:
    (ours,) = hlo_shardings.parse(text)
    theirs = HloSharding.from_string(text)
    if theirs.is_tiled() and len(ours.subgroups) <= 1:  # XLA puts several subgroups in an order of its own
        assert [*ours.tiles, *(size for _, size in ours.subgroups)] == list(theirs.tile_assignment_dimensions())
        assert list(ours.devices) == list(theirs.tile_assignment_devices())
    shape = [*ours.tiles, *(size for _, size in ours.subgroups)]
    if ours.subgroups:
        assert prod(shape) == theirs.num_devices() or not theirs.is_tiled()


@pytest.mark.skipif(jax.__version_info__ < (0, 10), reason="its XLA cannot read shardings that name axes")
@given(text=named())
def test_named_ones_read_and_print_as_in_xla(text: str) -> None:
    (ours,) = hlo_shardings.parse(text)
    assert str(HloSharding.from_string(text)) == text
    assert hlo_shardings.print_named(ours) == text


EXAMPLES = (
    "{replicated}",
    "{maximal device=3 shard_as 12}",
    "{devices=[2,4]<=[2,4]T(1,0) shard_like 1}",
    "{devices=[2,2,2]0,1,2,3,4,5,6,7 last_tile_dims={manual, replicated}}",
    "{{devices=[2,1,4]<=[8] last_tile_dim_replicate}, {unknown}, {manual}}",
    "{mesh['x'=2,'y'=4], device_ids=([4,2]T(1,0)), [{'x', ?}, {'y':(1)2}], replicated={'y':(2)2}}",
    "{mesh['x'=2,'y'=4,'z'=2], [{'y'}], unreduced={'x'}, manual={'z'}}",
    "{maximal_mesh[device_id=3]}",
)


def test_mutants_are_read_or_refused() -> None:
    """Whatever stands there, the answer is a tiling or a ValueError."""
    accepted: set[str] = set()
    for example, seed in product(EXAMPLES, range(1500)):
        text = mutators.mutant(Source(example, "text", example.encode()), seed).decode(errors="replace")
        try:
            found = hlo_shardings.parse(text)
        except ValueError:
            continue
        accepted.add(text)
        assert all(tiling.kind in (*hlo_shardings.KINDS, "tiled", "named") for tiling in found)
    assert len(accepted - set(EXAMPLES)) > 50


def test_nothing_is_too_long() -> None:
    generator = random.Random(0)
    for _ in range(20):
        text = "".join(generator.choice("{}[]()<=,0123456789 'x'mesh?T") for _ in range(20_000))
        with pytest.raises(ValueError, match=r"not an HloSharding|unknown axis|expected"):
            hlo_shardings.parse("{devices=[" + text)
