"""What the user wrote on a dimension stays in front of it, open or not, with or without priority; propagation and refinement only
add axes after it. Programs are drawn with annotations at every kind of place, and compared with numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshbridge
from meshbridge import pipeline
from meshbridge.dialect.ops import OPEN_DIMS, ShardingOp
from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Split
from meshbridge.read.import_shardings import ImportShardings
from meshbridge.tools import cli

Array = np.ndarray[Any, np.dtype[np.float32]]
Names = tuple[tuple[str, ...], tuple[str, ...]]

SIZE = 16
TYPE, HALF = f"tensor<{SIZE}x{SIZE}xf32>", f"tensor<{SIZE // 2}x{SIZE}xf32>"
MESH = 'sdy.mesh @m = <["a"=2, "b"=2, "c"=2]>'
NUMBER = "test.number"

AXES: list[Names] = [
    ((), ()),
    (("a",), ()),
    ((), ("b",)),
    (("b",), ("a",)),
    (("a", "c"), ()),
    ((), ("c", "a")),
    (("c", "b"), ("a",)),
    (("c",), ("b",)),
]
MANUAL_AXES: list[Names] = [(("a",), ()), (("a", "c"), ()), (("a",), ("b",))]


@dataclass
class Drawn:
    """A program as text, and the numpy values of what it computes."""

    lines: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    values: list[Array] = field(default_factory=list)

    def add(self, line: str, value: Array, results: int = 1) -> None:
        """A line that defines one more value, the first of some results."""
        name = f"%v{len(self.names)}"
        self.lines.append(f"    {name}:{results} = {line}")
        self.names.append(f"{name}#0")
        self.values.append(value)


def _sharding(draw: st.DrawFn, choices: Sequence[Names] = AXES) -> str:
    """A sharding whose dimensions are closed or open, some with priorities."""
    dims = []
    for axes in draw(st.sampled_from(choices)):
        entries = [f'"{axis}"' for axis in axes] + ["?"] * draw(st.booleans())
        dims.append(f"{{{', '.join(entries)}}}" + (draw(st.sampled_from(["", "", "p0", "p1", "p2"])) if entries else ""))
    return f"<@m, [{', '.join(dims)}]>"


def _on_op(draw: st.DrawFn) -> str:
    return f" {{sdy.sharding = #sdy.sharding_per_value<[{_sharding(draw)}]>}}" if draw(st.booleans()) else ""


def _on_boundary(draw: st.DrawFn) -> str:
    return f" {{sdy.sharding = #sdy.sharding{_sharding(draw)}}}" if draw(st.integers(0, 3)) else ""


def _tanh(draw: st.DrawFn, x: str, y: str) -> str:
    return f"stablehlo.tanh {x}{_on_op(draw)} : {TYPE}"


def _add(draw: st.DrawFn, x: str, y: str) -> str:
    return f"stablehlo.add {x}, {y}{_on_op(draw)} : {TYPE}"


def _dot(draw: st.DrawFn, x: str, y: str) -> str:
    return f"stablehlo.dot_general {x}, {y}, contracting_dims = [1] x [0]{_on_op(draw)} : ({TYPE}, {TYPE}) -> {TYPE}"


def _transpose(draw: st.DrawFn, x: str, y: str) -> str:
    return f"stablehlo.transpose {x}, dims = [1, 0]{_on_op(draw)} : ({TYPE}) -> {TYPE}"


def _constraint(draw: st.DrawFn, x: str, y: str) -> str:
    return f"sdy.sharding_constraint {x} {_sharding(draw)} : {TYPE}"


def _manual(draw: st.DrawFn, x: str, y: str) -> str:
    ins, outs = (_sharding(draw, MANUAL_AXES) for _ in range(2))
    return f"""sdy.manual_computation({x}) in_shardings=[{ins}] out_shardings=[{outs}] manual_axes={{"a"}} (%local: {HALF}) {{
      %inner = stablehlo.tanh %local : {HALF}
      sdy.return %inner : {HALF}
    }} : ({TYPE}) -> {TYPE}"""


def _loop(draw: st.DrawFn, x: str, y: str) -> str:
    return f"""stablehlo.while(%carried = {x}, %count = %zero) : {TYPE}, tensor<i32> cond {{
      %more = stablehlo.compare LT, %count, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    }} do {{
      %next = stablehlo.add %count, %one : tensor<i32>
      %inner = stablehlo.tanh %carried{_on_op(draw)} : {TYPE}
      stablehlo.return %inner, %next : {TYPE}, tensor<i32>
    }}"""


def _sum(x: Array, y: Array) -> Array:
    return x + y


def _product(x: Array, y: Array) -> Array:
    return x @ y


KINDS: list[tuple[Callable[[st.DrawFn, str, str], str], Callable[[Array, Array], Array], int]] = [
    (_tanh, lambda x, y: np.tanh(x), 1),
    (_add, _sum, 1),
    (_dot, _product, 1),
    (_transpose, lambda x, y: x.T, 1),
    (_constraint, lambda x, y: x, 1),
    (_manual, lambda x, y: np.tanh(x), 1),
    (_loop, lambda x, y: np.tanh(np.tanh(np.tanh(x))), 2),
]


@st.composite
def programs(draw: st.DrawFn) -> tuple[str, list[Array], list[Array]]:
    """A module, its arguments, and its results."""
    rng = np.random.default_rng(0)
    arguments = [rng.standard_normal((SIZE, SIZE)).astype(np.float32) / 4 for _ in range(3)]
    drawn = Drawn(names=["%arg0", "%arg1", "%arg2"], values=list(arguments))
    for _ in range(draw(st.integers(2, 7))):
        write, compute, results = draw(st.sampled_from(KINDS))
        left, right = (draw(st.integers(0, len(drawn.names) - 1)) for _ in range(2))
        line = write(draw, drawn.names[left], drawn.names[right])
        drawn.add(line, compute(drawn.values[left], drawn.values[right]), results)
        if draw(st.integers(0, 3)) == 0:
            drawn.lines.append(
                f"    sdy.sharding_group {draw(st.sampled_from(drawn.names))} group_id={draw(st.integers(0, 1))} : {TYPE}"
            )
    chosen = [len(drawn.names) - 1, *draw(st.lists(st.integers(0, len(drawn.names) - 1), max_size=2))]
    takes = ", ".join(f"%arg{index}: {TYPE}{_on_boundary(draw)}" for index in range(3))
    gives = ", ".join(f"{TYPE}{_on_boundary(draw)}" for _ in chosen)
    constants = [
        f"    %{name} = stablehlo.constant dense<{n}> : tensor<i32>" for name, n in (("zero", 0), ("one", 1), ("three", 3))
    ]
    returned = f"    return {', '.join(drawn.names[index] for index in chosen)} : {', '.join([TYPE] * len(chosen))}"
    body = "\n".join([*constants, *drawn.lines, returned])
    text = f"{MESH}\nfunc.func @main({takes}) -> ({gives}) {{\n{body}\n}}\n"
    return text, arguments, [drawn.values[index] for index in chosen]


def _module(text: str) -> ir.Module:
    return mlir.parse(text, "drawn.mlir", mlir.context())


def _starts_with(found: Split, written: Split) -> bool:
    return all(axes[: len(kept)] == kept for axes, kept in zip(found, written, strict=True))


def _split(shard: ir.Operation) -> Split:
    return ShardingOp(shard.operands[1].owner).value.padded(2).split_axes


def _check_annotated(text: str) -> None:
    """Every annotation of the source, by a number that it is given, is followed by the program that is annotated."""
    module = _module(text)
    pipeline.run([ImportShardings()], module)
    with module.context:
        shards = [op for op in mlir.walk_all(module) if op.name == "mesh.shard"]
        for number, shard in enumerate(shards):
            shard.attributes[NUMBER] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
    written = [
        (_split(shard), list(ir.DenseI64ArrayAttr(shard.attributes[OPEN_DIMS])) if OPEN_DIMS in shard.attributes else [])
        for shard in shards
    ]
    pipeline.run(pipeline.build(pipeline.Options(emit="annotated")).starting_at("annotated").passes, module)
    found = {}
    for op in mlir.walk_all(module):
        if op.name == "mesh.shard" and NUMBER in op.attributes:
            number = ir.IntegerAttr(op.attributes[NUMBER]).value
            found[number] = _split(op)
            kept, opened = written[number]
            assert _starts_with(found[number], kept), (number, kept, found[number])
            closed = [dim for dim in range(2) if dim not in opened]
            assert all(found[number][dim] == kept[dim] for dim in closed), (number, kept, found[number])
    assert len(found) == len(written)


def _dims(sharding: ir.Attribute) -> list[list[str]]:
    tensor = mlir.sdy.TensorShardingAttr(sharding)
    dims = [mlir.sdy.DimensionShardingAttr(dim) for dim in tensor.dimension_shardings]
    return [[str(mlir.sdy.AxisRefAttr(axis).name) for axis in dim.axes] for dim in dims]


def _boundary(module: ir.Module) -> list[list[list[str]] | None]:
    """Per argument, then per result, the axes that split each dimension; None where nothing is said."""
    main = mlir.main_function(module)
    kind = mlir.function_type(main)
    found: list[list[list[str]] | None] = []
    for side, count in (("arg_attrs", len(kind.inputs)), ("res_attrs", len(kind.results))):
        entries = [ir.DictAttr(entry) for entry in ir.ArrayAttr(main.attributes[side])] if side in main.attributes else []
        found += [_dims(entry["sdy.sharding"]) if "sdy.sharding" in entry else None for entry in entries] or [None] * count
    return found


@pytest.mark.filterwarnings("ignore::meshbridge.ShardingWarning")
@given(programs())
def test_written_axes_stay(program: tuple[str, list[Array], list[Array]]) -> None:
    text, arguments, expected = program
    _check_annotated(text)
    module = _module(text)
    declared = _boundary(module)
    for wanted, decided in zip(declared, _boundary(meshbridge.partition(module)), strict=True):
        if wanted is not None:
            assert decided is not None
            assert all(axes[: len(kept)] == kept for axes, kept in zip(decided, wanted, strict=True)), (wanted, decided)
    for found, value in zip(meshbridge.compile(_module(text))(*arguments), expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-4 * np.abs(value).max())


GROUP = """
sdy.mesh @m = <["a"=2, "b"=2, "c"=2]>
func.func @main(%x: tensor<16x16xf32> {{sdy.sharding = #sdy.sharding<@m, {first}>}},
                %y: tensor<16x16xf32> {{sdy.sharding = #sdy.sharding<@m, {second}>}},
                %z: tensor<16x16xf32>) -> (tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>) {{
  sdy.sharding_group %x group_id=0 : tensor<16x16xf32>
  sdy.sharding_group %y group_id=0 : tensor<16x16xf32>
  sdy.sharding_group %z group_id=0 : tensor<16x16xf32>
  %0 = stablehlo.add %x, %y : tensor<16x16xf32>
  return %0, %y, %z : tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>
}}
"""


def _grouped(first: str, second: str) -> list[list[list[str]] | None]:
    return _boundary(meshbridge.partition(_module(GROUP.format(first=first, second=second))))[:3]


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        ('[{"a"}, {}]', '[{"a"}, {}]', [["a"], []]),
        ('[{"a", ?}, {?}]', '[{"a", "b"}, {"c"}]', [["a", "b"], ["c"]]),
        ('[{"a", "b", ?}, {?}]', '[{"a", ?}, {"c", ?}]', [["a", "b"], ["c"]]),
        ("[{?}, {?}]", '[{}, {"c"}]', [[], ["c"]]),
    ],
)
def test_annotations_of_a_group_are_joined(first: str, second: str, joined: list[list[str]]) -> None:
    assert _grouped(first, second) == [joined] * 3


@pytest.mark.parametrize(
    ("first", "second"),
    [('[{"a"}, {}]', '[{}, {"b"}]'), ('[{"a"}, {}]', '[{"a", "b"}, {}]'), ('[{"a", ?}, {?}]', '[{"b", ?}, {?}]')],
)
def test_contradicting_annotations_of_a_group_stay(first: str, second: str) -> None:
    """Both are kept, what has none follows the first, and the user is told where they contradict each other."""
    with pytest.warns(meshbridge.ShardingWarning, match=r":7:3: warning: .* expected .* like the member at \S+:6:3"):
        found = _grouped(first, second)
    written = _boundary(_module(GROUP.format(first=first, second=second)))
    for wanted, decided in zip((written[0], written[1], written[0]), found, strict=True):
        assert wanted is not None
        assert decided is not None
        assert all(axes[: len(kept)] == kept for axes, kept in zip(decided, wanted, strict=True)), (wanted, decided)


def test_the_command_line_prints_the_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "group.mlir"
    source.write_text(GROUP.format(first='[{"a"}, {}]', second='[{}, {"b"}]'))
    assert cli.main(["partition", str(source), "-o", str(tmp_path / "out.mlir")]) == 0
    complaint = capsys.readouterr().err
    expected = "takes in a value annotated [{}, {b}], expected [{a}, {}] like the member at"
    assert complaint.startswith(f"{source}:7:3: warning: 'sdy.sharding_group' op {expected} {source}:6:3")
    assert complaint.count("warning") == 1
