"""The report's page: whole without a network, every name escaped, pictures of which device holds what, and the JSON behind it."""

from __future__ import annotations

import json
import linecache
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import jax
import jax.numpy as jnp
import jsonschema
import numpy as np
import pytest
from jax import export
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge.analysis.origins import Origin
from meshbridge.cost.communication import Collective
from meshbridge.cost.trace import name_of
from meshbridge.dialect import assembly
from meshbridge.ir.locations import SourceLocation
from meshbridge.ir.mlir import context, ir
from meshbridge.ir.sharding import Mesh
from meshbridge.machines.target import parse
from meshbridge.pages import sources
from meshbridge.pages.communication import by_line
from meshbridge.pages.pictures import MOST_CELLS, Devices
from meshbridge.pages.report_page import report_page
from meshbridge.pages.timeline import timeline
from meshbridge.reports import Report, ShardedArray, Suggestion, report_of
from meshbridge.text import size_text
from meshbridge.tools import cli
from meshbridge.tools.compare import text
from meshbridge.tools.compare.comparison import TargetComparison
from meshbridge.tools.compare.figures import Figures

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "report.schema.json").read_text())

VOID = {"meta", "link", "br", "input", "rect", "line"}
HOSTILE = "</script><script>alert(1)</script>\"'<img src=x onerror=alert(1)>&{{ 7 * 7 }}"


class Tags(HTMLParser):
    """Every tag of a page with its attributes, that they close in order, and the text outside of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._open):
            self.text += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture(scope="module")
def report(exported: export.Exported) -> Report:
    """Of the two-layer network, with a predicted step."""
    return meshbridge.report(exported, machine="v5e:2x4")


def report_with(report: Report, *collectives: Collective) -> Report:
    return replace(report, collectives=collectives)


def test_page_needs_nothing_else(report: Report) -> None:
    page = report.to_html("model.jax_export")
    tags = Tags(page)
    linked = [value for _, attributes in tags.found for key, value in attributes.items() if key in ("src", "href", "action")]
    assert all(value is not None and value.startswith(("#", "data:")) for value in linked), linked
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", page)
    assert "model.jax_export" in tags.text


def test_page_names_every_argument_and_collective(report: Report) -> None:
    tags = Tags(report.to_html())
    assert report.arguments
    assert all(each.name in tags.text for each in (*report.arguments, *report.results))
    assert report.collectives
    assert all(each.why in tags.text for each in report.collectives)
    assert 'P("data", None)' in tags.text


def test_sections_are_where_the_page_links_to(report: Report) -> None:
    tags = Tags(report.to_html())
    targets = {str(link["href"]) for link in tags.named("a")}
    assert targets == {f"#{section['id']}" for section in tags.named("section") if "id" in section}
    assert {"#collectives", "#step", "#shardings"} <= targets


def test_hostile_names_are_text(report: Report) -> None:
    location = SourceLocation(f"/home/{HOSTILE}.py", 3, 1, HOSTILE)
    origin = Origin((HOSTILE, HOSTILE), "forward", location, HOSTILE)
    collective = Collective(HOSTILE, (HOSTILE,), 2, 10.0, 1, location, HOSTILE, HOSTILE, (origin,))
    held = ShardedArray((8,), (4,), "f32", ((HOSTILE,),), (), HOSTILE)
    mesh = Mesh("mesh", (2,), (HOSTILE,))
    hostile = replace(
        report, results=(), mesh=mesh, collectives=(collective,), arguments=(held,), why_machine=HOSTILE, unpredicted=HOSTILE
    )
    for page in (hostile.to_html(HOSTILE), hostile._repr_html_()):
        tags = Tags(page)
        assert not tags.named("img")
        assert len(tags.named("script")) == (2 if "<html" in page else 0)
        assert not [key for _, attributes in tags.found for key in attributes if key.startswith("on")]
        assert tags.text.count(HOSTILE) >= 4
        assert "49" not in tags.text.replace(HOSTILE, "")


def test_hostile_names_of_a_program_are_text() -> None:
    """Of arguments, results, mesh axes and functions, as JAX has them."""
    mesh = jax.make_mesh((8,), (HOSTILE,), axis_types=(jax.sharding.AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec(HOSTILE))

    def function(tree: dict[str, jax.Array]) -> dict[str, jax.Array]:
        with jax.named_scope(HOSTILE.replace("/", "")):
            return {HOSTILE: tree[HOSTILE].sum(axis=0)}

    jitted = jax.jit(function, in_shardings=({HOSTILE: rows},))
    report = meshbridge.report(jitted, {HOSTILE: jax.ShapeDtypeStruct((8, 4), jnp.float32)}, machine="v5e:2x4")
    assert report.collectives
    tags = Tags(report.to_html())
    assert not tags.named("img")
    assert len(tags.named("script")) == 2
    assert HOSTILE in report.mesh.axis_names
    assert f"mesh {HOSTILE} = 8" in tags.text


def test_half_a_surrogate_pair_becomes_a_reference(tmp_path: Path) -> None:
    from meshbridge.tools import console

    console.write_page(str(tmp_path / "page.html"), "a\ud800b")
    assert (tmp_path / "page.html").read_bytes() == b"a&#55296;b"


def test_a_program_without_collectives() -> None:
    program = "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> { return %a : tensor<2xf32> }"
    silent = report_of(assembly.read(program, "silent.mlir", context()), None)
    tags = Tags(silent.to_html())
    assert "The program communicates nothing." in tags.text
    assert "The program communicates nothing." in Tags(silent._repr_html_()).text
    assert {"modules", "step"}.isdisjoint(section.get("id") for section in tags.named("section"))
    jsonschema.validate(json.loads(silent.to_json()), SCHEMA)


def test_ten_thousand_collectives(report: Report) -> None:
    """Equal ones are one row each, whatever their number; the page is that of all their lines."""
    locations = [SourceLocation("model.py", line, 1, "f") for line in range(1, 101)]
    many = [
        Collective(
            "all_gather",
            ("data",),
            2,
            1000.0,
            3,
            location,
            f"sent for {row}",
            origins=(Origin(("LM",), "forward", location, ""),),
        )
        for location in locations
        for row in range(10)
        for _ in range(10)
    ]
    lines = list(by_line(json.loads(report_with(report, *many).to_json())["collectives"]))
    assert len(lines) == 100
    assert {len(line.collectives) for line in lines} == {10}
    assert {(each.operations, each.executions, each.total) for line in lines for each in line.collectives} == {(10, 30, 30_000.0)}
    assert sum(line.share for line in lines) == pytest.approx(1)
    page = report_with(report, *many).to_html()
    assert len(page) < 3_000_000
    assert page.count("<p>sent for ") == 1000
    assert len(report_with(report, *many)._repr_html_()) < 20_000


def test_a_collective_that_stands_for_several_is_listed_once(report: Report) -> None:
    first, second = (SourceLocation("a.py", line, 1, "f") for line in (1, 2))
    origins = (Origin(("A",), "forward", first, "", 0.25), Origin(("B",), "backward", second, "", 0.75))
    combined = Collective("all_reduce", ("data",), 2, 100.0, 2, first, "2 in one", origins=origins)
    (line,) = by_line(json.loads(report_with(report, combined).to_json())["collectives"])
    assert line.where == "a.py:2"
    (row,) = line.collectives
    assert [(each.path, each.phase, each.total) for each in row.origins] == [("B", "backward", 150.0), ("A", "forward", 50.0)]
    assert row.others == ("a.py:1",)


def test_modules_are_a_tree(report: Report) -> None:
    def collective(*modules: str) -> Collective:
        location = SourceLocation("a.py", 1)
        return Collective("all_reduce", ("data",), 2, 100.0, 1, location, origins=(Origin(modules, "backward", location, ""),))

    page = report_with(report, collective("LM", "Block_0", "Dense"), collective("LM", "Block_1"), collective()).to_html()
    section = page[page.index('<section id="modules">') : page.index('<section id="collectives">')]
    assert section.count("<details") == 2  # of LM and Block_0
    assert [name for name in ("LM", "Block_0", "Dense", "Block_1") if f">{name} <" in section] == [
        "LM",
        "Block_0",
        "Dense",
        "Block_1",
    ]
    assert "outside of any module" in section


def test_suggestions_stand_beside_what_they_save(exported: export.Exported, report: Report) -> None:
    tried = meshbridge.report(exported, machine="bytes", suggest=2)
    assert tried.tried
    tags = Tags(tried.to_html())
    assert "#suggestions" in {link["href"] for link in tags.named("a")}
    assert all(each.change in tags.text for each in tried.suggestions)
    jsonschema.validate(json.loads(tried.to_json()), SCHEMA)
    saving = Suggestion("leave it", (), (), None, None, report.wire_bytes / 2, None, report.peak_bytes)
    shown = Tags(replace(report, suggestions=(saving,), tried=4).to_html()).text
    assert "Of 4 changes tried" in shown
    assert "-50 %" in shown
    assert "None of them saves" in Tags(replace(report, tried=4).to_html()).text
    assert "tried" not in Tags(report.to_html()).text


def axes_of(*named: tuple[str, int]) -> Devices:
    return Devices({"axes": dict(named), "devices": int(np.prod([size for _, size in named])), "device_ids": None})


def titles(devices: Devices, shape: tuple[int, ...], *split: tuple[str, ...], unreduced: tuple[str, ...] = ()) -> list[list[str]]:
    """By panel, what its cells say."""
    held = {"shape": shape, "shard_shape": shape, "element_type": "f32", "sharding": split, "unreduced": unreduced, "name": "x"}
    (found,) = devices.sharded([held], "argument")
    return [[cell.title.removeprefix("device").removeprefix("s ").strip() for cell in panel] for panel in found.picture.panels]


PICTURES = [
    ((8, 8), (("data",), ()), [["0\N{EN DASH}3", "4\N{EN DASH}7"]]),
    ((8, 8), ((), ("model",)), [["0, 4", "1, 5", "2, 6", "3, 7"]]),
    ((8, 8), (("model",), ("data",)), [["0", "4", "1", "5", "2", "6", "3", "7"]]),
    ((8,), (("data", "model"),), [[*"01234567"]]),
    ((8,), (("model", "data"),), [[*"04152637"]]),
    ((8,), (("model:(1)2",),), [["0, 1, 4, 5", "2, 3, 6, 7"]]),
    ((8,), (("model:(2)2",),), [["0, 2, 4, 6", "1, 3, 5, 7"]]),
    ((), (), [["0\N{EN DASH}7"]]),
    ((8, 8), ((), ()), [["0\N{EN DASH}7"]]),
]


@pytest.mark.parametrize(("shape", "split", "expected"), PICTURES)
def test_pictures_say_who_holds_what(
    shape: tuple[int, ...], split: tuple[tuple[str, ...], ...], expected: list[list[str]]
) -> None:
    assert titles(axes_of(("data", 2), ("model", 4)), shape, *split) == expected


@pytest.mark.parametrize("spec", [("a", "b"), ("b", None, "a"), (("b", "a"), None), (None, ("a", "c"), "b"), ("c", "b", "a")])
def test_pictures_are_those_of_jax(spec: tuple[object, ...]) -> None:
    """JAX says which indices each device holds: devices share a cell exactly if they share indices."""
    mesh = jax.make_mesh((2, 2, 2), ("a", "b", "c"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
    shape = (8,) * len(spec)
    indices: dict[str, set[int]] = {}
    for device, index in NamedSharding(mesh, PartitionSpec(*spec)).devices_indices_map(shape).items():
        indices.setdefault(str(index), set()).add(device.id)
    split = [() if axes is None else (axes,) if isinstance(axes, str) else axes for axes in spec]
    devices = Devices({"axes": {"a": 2, "b": 2, "c": 2}, "devices": 8, "device_ids": [each.id for each in mesh.devices.flat]})
    cells = [cell for panel in titles(devices, shape, *split) for cell in panel]  # type: ignore[arg-type]
    assert sorted(map(sorted, map(_devices, cells))) == sorted(map(sorted, indices.values()))


def _devices(title: str) -> Iterator[int]:
    for run in title.split(", "):
        first, _, last = run.partition("\N{EN DASH}")
        yield from range(int(first), int(last or first) + 1)


def test_three_split_dimensions_are_panels() -> None:
    found = titles(axes_of(("a", 2), ("b", 2), ("c", 2)), (4, 4, 4), ("a",), ("b",), ("c",))
    assert found == [["0", "2", "4", "6"], ["1", "3", "5", "7"]]


def test_large_meshes_are_cut() -> None:
    """Of 2**20 devices some are drawn, and a line says of how many."""
    devices = axes_of(("data", 1024), ("model", 1024))
    held = {"shape": (4096,), "shard_shape": (4,), "element_type": "f32", "sharding": [["data"]], "unreduced": [], "name": ""}
    (found,) = devices.sharded([held], "argument")
    (panel,) = found.picture.panels
    assert len(panel) == MOST_CELLS
    assert panel[0].title.startswith("1024 devices: 0, 1, 2")
    assert panel[0].lines == ("1,024 dev.",)
    assert found.picture.captions == ("columns: dimension 0 in 1024 along data, of which 16 are drawn",)
    assert found.holdings[0].name == "argument 0"
    assert len(devices.picture().panels[0]) == MOST_CELLS**2


def test_renumbered_devices_are_named_by_their_ids() -> None:
    devices = Devices({"axes": {"x": 2, "y": 2}, "devices": 4, "device_ids": [3, 2, 1, 0]})
    assert [cell.title for cell in devices.picture().panels[0]] == ["device 3", "device 2", "device 1", "device 0"]
    assert titles(devices, (4,), ("x",)) == [["3, 2", "1, 0"]]


def test_equal_shardings_share_a_picture_and_uneven_shards_are_said_to_be() -> None:
    devices = axes_of(("x", 4))
    shapes = [((8,), (2,)), ((6,), (2,)), ((10,), (3,))]
    held = [
        {"shape": shape, "shard_shape": shard, "element_type": kind, "sharding": [["x"]], "unreduced": ["x"], "name": f"w{size}"}
        for size, ((shape, shard), kind) in enumerate(zip(shapes, ("f32", "bf16", "!quant.any"), strict=True))
    ]
    (found,) = devices.sharded(held, "argument")
    assert found.spec == 'P("x", unreduced={"x"})'
    assert [(each.name, each.type, each.size, each.is_uneven) for each in found.holdings] == [
        ("w0", "f32[8]", 8.0, False),
        ("w1", "bf16[6]", 4.0, True),
        ("w2", "!quant.any[10]", None, True),
    ]
    assert found.picture.captions[-1].startswith("terms of a sum along x")


def test_snippets(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("one\ntwo\nthree\nfour\nfive\n")
    assert [(line.number, line.text, line.is_meant) for line in sources.snippet(str(file), 1)] == [
        (1, "one", True),
        (2, "two", False),
        (3, "three", False),
    ]
    assert not sources.snippet(str(file), 6)
    file.write_text("changed\n")
    assert [line.text for line in sources.snippet(str(file), 1)] == ["changed"]
    assert not sources.snippet(str(tmp_path / "none.py"), 1)
    assert not sources.snippet("", 0)
    assert not sources.snippet("a\0.py", 1)


def test_only_python_is_shown(tmp_path: Path) -> None:
    """A program names files as it likes: what it names must not end up in a page that somebody sends on."""
    (tmp_path / "secret.txt").write_text("password\n")
    (tmp_path / "latin.py").write_bytes(b"\xff\xfe\n")
    assert not sources.snippet(str(tmp_path / "secret.txt"), 1)
    assert not sources.snippet(str(tmp_path / "latin.py"), 1)


def test_cells_of_notebooks_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(linecache.cache, "<cell>", (5, None, ["x @ w\n"], "<cell>"))
    assert [line.text for line in sources.snippet("<cell>", 1)] == ["x @ w"]


def test_timeline_has_every_slice(report: Report) -> None:
    assert report.step is not None
    found = timeline(report.step)
    assert sum(len(track["slices"]) for track in found["tracks"]) == len(report.step.slices)
    assert found["tracks"][0]["name"] == "compute"
    for track in found["tracks"]:
        ends = [0.0] * track["lanes"]
        for lane, name, start, length, _ in track["slices"]:
            assert start >= ends[lane] * (1 - 1e-6) - 1e-6
            ends[lane] = start + length
            assert found["names"][name]
        assert max(ends) <= found["seconds"] * 1e6 * (1 + 1e-6)


def _looped() -> Report:
    """Of five layers in a loop, whose weights are donated."""
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    rows, weights = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("data",), (None, None, "model")))

    def layers(stack: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return stack * 2, jax.lax.scan(lambda carried, w: (jnp.tanh(carried @ w), None), x, stack)[0]

    jitted = jax.jit(layers, in_shardings=(weights, rows), out_shardings=(weights, rows), donate_argnums=0)
    shapes = (jax.ShapeDtypeStruct((5, 512, 512), jnp.float32), jax.ShapeDtypeStruct((64, 512), jnp.float32))
    return meshbridge.report(export.export(jitted)(*shapes), machine="v5e:2x4")


def test_timeline_says_where_a_loop_repeats_its_first_iteration() -> None:
    report = _looped()
    assert report.step is not None
    found = timeline(report.step)
    ((name, start, length, iterations),) = found["folds"]
    assert found["names"][name].startswith("while of 5 iterations test_report_page.py:")
    assert iterations == 5
    (loop,) = next(track for track in found["tracks"] if track["name"] == "loops")["slices"]
    assert start == pytest.approx(loop[2] + loop[3] / 5)
    assert start + length == pytest.approx(loop[2] + loop[3])
    for track in found["tracks"]:  # the slices of the body stand before it, in the first iteration
        inside = [each for each in track["slices"] if each[4] == 5]
        assert all(each[2] + each[3] <= start * (1 + 1e-6) for each in inside)


def test_the_parts_of_memory_add_up() -> None:
    memory = _looped().memory
    assert memory.donated > 0
    detail = Tags(_looped().to_html()).text.partition("about, per device: ")[2].partition("\n")[0]
    parts = [size_text(part) for part in (memory.arguments, memory.results, memory.temporaries, memory.donated)]
    assert detail == "arguments {}, results {}, temporaries {}, less {} of donated arguments".format(*parts)
    assert memory.arguments + memory.results + memory.temporaries - memory.donated == memory.peak


def test_slices_are_named_by_the_line_of_the_user(report: Report) -> None:
    assert report.step is not None
    with context():
        library, own = ir.Location.file("/venv/site-packages/flax/linen/transforms.py", 3, 1), ir.Location.file("model.py", 42, 8)
        at = ir.Location.callsite(ir.Location.name("scan", library), [ir.Location.name("loss", own)])
        part = replace(report.step.slices[0], name="stablehlo.while of 4 iterations", location=at)
        assert name_of(replace(part, executions=1)) == "while of 4 iterations model.py:42"


def test_notebook_shows_the_lines_that_send_most(report: Report) -> None:
    tags = Tags(report._repr_html_())
    assert "on the wire" in tags.text
    most = max(report.collectives, key=lambda each: each.total_bytes)
    assert f"{most.origins[0].location.file}:{most.origins[0].location.line}" in tags.text


def programs(mesh: jax.sharding.Mesh) -> Iterator[export.Exported]:
    rows = NamedSharding(mesh, PartitionSpec("data"))
    shape = jax.ShapeDtypeStruct((8, 4), jnp.float32)
    yield export.export(jax.jit(lambda x: jnp.sin(x), in_shardings=rows))(shape)
    yield export.export(jax.jit(lambda x: {"sum": x.sum()}, in_shardings=rows))(shape)
    yield export.export(jax.jit(lambda x: jax.lax.while_loop(lambda y: y.sum() < 9, lambda y: y * 2, x), in_shardings=rows))(
        shape
    )
    yield export.export(jax.jit(lambda x, i: jax.lax.switch(i, [jnp.sin, lambda y: y - y.sum(0)], x), in_shardings=(rows, None)))(
        shape, jax.ShapeDtypeStruct((), jnp.int32)
    )


UNKNOWN = """
mesh.mesh @m(shape = 8)
func.func @main(%x: tensor<16xf32>) -> tensor<16xf32> {
  %s = mesh.sharding @m split_axes = [[0]] : !mesh.sharding
  %0 = mesh.shard %x to %s : tensor<16xf32>
  %1 = stablehlo.custom_call @unknown(%0) : (tensor<16xf32>) -> tensor<16xf32>
  return %1 : tensor<16xf32>
}
"""


def test_json_is_as_its_schema_says(mesh: jax.sharding.Mesh, report: Report) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    found = [meshbridge.report(program, machine=machine) for program in programs(mesh) for machine in ("bytes", "v5e:2x4")]
    found.append(meshbridge.report(assembly.read(UNKNOWN, "program.mlir", context())))
    assert any(each.not_partitioned for each in found)
    assert any(each.unknown_loops for each in found)
    assert any(each.unknown_branches for each in found)
    for each in (report, *found):
        jsonschema.validate(json.loads(each.to_json()), SCHEMA)
        Tags(each.to_html())


def test_schema_documents_every_key(report: Report) -> None:
    """A key that is in the JSON and not in the schema is refused, and the other way round."""
    read = json.loads(report.to_json())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**read, "more": 1}, SCHEMA)
    for key in SCHEMA["properties"]:
        assert key in read
        assert f"`{key}`" in (Path(__file__).parents[2] / "docs" / "report-json.md").read_text(), key


def test_report_writes_a_page(exported: export.Exported, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, page = tmp_path / "model.jax_export", tmp_path / "out.html"
    program.write_bytes(exported.serialize())
    assert cli.main(["report", str(program), "--html", str(page)]) == 0
    assert "on the wire per device" in capsys.readouterr().out
    assert f"<h1>{program}</h1>" in page.read_text("utf-8")


def test_page_on_standard_output_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (
        ["report", "x", "--html", "-"],
        ["report", "x", "--machine", "v5e:2x4", "--perfetto", "-"],
        ["compare", "x", "--html", "-"],
    ):
        assert cli.main(command) == 2
        assert f"error: {command[-2]} needs a file: what is printed goes to standard output" in capsys.readouterr().err


@pytest.mark.slow
def test_comparison_on_a_page(exported: export.Exported, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, page = tmp_path / "model.jax_export", tmp_path / "out.html"
    program.write_bytes(exported.serialize())
    assert cli.main(["compare", str(program), "--html", str(page)]) == 0
    printed, tags = capsys.readouterr().out, Tags(page.read_text("utf-8"))
    (wire,) = re.findall(r"^wire bytes +(.*)$", printed, re.M)
    for cell in ("xla-shardy", "xla-gspmd", "temporary bytes", *re.split(r"  +", wire)):
        assert cell in tags.text
    assert {"#comparison", "#collectives"} <= {str(link["href"]) for link in tags.named("a")}


def test_who_fails_has_no_bar(report: Report) -> None:
    """Of a target, without its compiler."""
    figures = {"meshbridge": Figures(), "xla-shardy": Figures(error="no <room>")}
    versus = text.target_versus(TargetComparison(parse("tpu:v5e:2x4"), 8, figures))
    assert versus.bars == (("meshbridge", 0), ("xla-shardy", None))
    page = report_page(json.loads(report.to_json()), name="x", comparisons=[versus])
    section = page[page.index('<section id="comparison">') : page.index('<section id="collectives">')]
    tags = Tags(section.partition("</section>")[0] + "</section>")
    assert "8 devices of TPU v5e, compiled ahead of time" in tags.text
    assert "xla-shardy failed: no <room>" in tags.text


def test_page_of_several_targets_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["compare", "x", "--target", "tpu:v5e:2x4", "--target", "gpu:h100:1x1x8", "--html", "x.html"]
    assert cli.main(asked) == 2
    assert "--html draws one --target, found 2" in capsys.readouterr().err
