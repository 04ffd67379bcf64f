"""Names of a program in any characters: whatever writes them down writes them as a literal, a comment or a visible text."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge.cost.trace import chrome_trace
from meshbridge.emit.python.code import comment, docstring
from meshbridge.ir import mlir
from meshbridge.ir.errors import MeshError, ShardingWarning
from meshbridge.ir.mlir import OpError, ir
from meshbridge.reports import Report
from meshbridge.text import joined, quoted, table, visible
from meshbridge.tools import cli, console
from tests.emit.python.running import run

NAMES = (
    'a"""; raise SystemExit("ran"); """',
    "a'''; raise SystemExit('ran'); '''",
    'ends in quotes"""',
    "ends in a backslash\\",
    "a\nraise SystemExit('ran')\r\nraise SystemExit('ran')\rb",
    "\x1b[31mred\x1b]0;title\x07\x9b31m\x7f",
    "\u202egnp.exe\u2066\u2069\u200b\u2028\u2029\x85\x0c\x0b\x1c",
    "</script><script>alert(1)</script><img src=x onerror=alert(1)>&amp;{{ 7 * 7 }}",
    "$(touch ran)`touch ran`;%n%s{0}",
    "# coding: utf-7",
    "[bold]rich[/bold] :smile:",
)
"""What ends a literal, a comment or a line in some language, what a terminal obeys, and what changes the order of a line."""

texts = st.text(st.sampled_from("ab \"'\\\n\r\t#<>&$`{}[]\x1b\x07\x9b\x7f\u202e\u2066\u2028\x85\x0cé")).map(
    lambda text: f"n{text}"
)


def is_visible(text: str, keep: str = "\n") -> bool:
    return all(each.isprintable() or each in keep for each in text)


SOURCE = """
def step(weights, x):
    with scope(name):
        hidden = tanh(x @ weights[name])
        return {name: (hidden @ weights[name + "2"]).sum(0)}
"""


@cache
def program(name: str) -> export.Exported:
    """A product whose mesh axis, arguments' keys, result's key, file, function and scope are called `name`."""
    defined: dict[str, Any] = {"scope": jax.named_scope, "name": name, "tanh": jnp.tanh}
    exec(compile(SOURCE, f"{name}.py", "exec"), defined)
    step = defined["step"]
    step.__name__ = step.__qualname__ = name
    mesh = jax.make_mesh((2,), (name,), axis_types=(jax.sharding.AxisType.Auto,))

    def argument(shape: tuple[int, int], *split: str | None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(*split)))

    weights = {name: argument((8, 8), None, name), f"{name}2": argument((8, 8), name)}
    return export.export(jax.jit(step), platforms=["cpu"])(weights, argument((4, 8)))


@cache
def report(name: str) -> Report:
    return meshbridge.report(program(name), machine="h100:1x1x2")


def test_visible() -> None:
    assert visible("\x1b[1m \u202e \x9b é\n\t\ud800") == "\\x1b[1m \\u202e \\x9b é\n\\t\\ud800"
    assert visible("a\nb", keep="") == "a\\nb"
    assert visible("C:\\dir 'x'") == "C:\\dir 'x'"


@given(texts)
@settings(max_examples=100)
def test_the_forms_that_a_text_is_written_in(text: str) -> None:
    assert ast.literal_eval(quoted(text)) == text
    assert is_visible(quoted(text), keep="")
    written = docstring([text, "b", text])
    assert ast.get_docstring(ast.parse(written), clean=False) == joined([text, "b", text]) + "\n"
    assert len(ast.parse(written).body) == 1
    assert not ast.parse("\n".join(comment(text, ""))).body
    assert len(table([("a", text), (text, "b")], left={0}).splitlines()) == 2
    assert is_visible(table([("a", text)], left={0}))


@pytest.mark.parametrize("name", NAMES)
def test_a_program_in_python_defines_what_it_says_and_runs_nothing_else(name: str) -> None:
    text = meshbridge.partition(program(name), emit="shard_map")
    assert is_visible(text)
    tree = ast.parse(text)
    assert [type(each) for each in tree.body] == [ast.Expr, *[ast.Import] * 3, *[ast.ImportFrom] * 3, *[ast.FunctionDef] * 3]
    given = [np.full(shape, 0.1, np.float32) for shape in ((8, 8), (8, 8), (4, 8))]
    (found,) = run(text, given)
    np.testing.assert_allclose(found, (np.tanh(given[2] @ given[0]) @ given[1]).sum(0), rtol=1e-6)


@pytest.mark.parametrize("name", ["on_mesh", "complex", "state", "jnp", "main_on_shards", "out_1"])
def test_a_program_in_python_calls_no_argument_by_its_own_names(name: str) -> None:
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    at = jax.ShapeDtypeStruct((6,), jnp.complex64, sharding=NamedSharding(mesh, PartitionSpec("x")))
    defined: dict[str, Any] = {}
    loop = f"fori(0, 3, lambda i, x: x + {name}, {name}[::-1] * 0) / 4"
    exec(f"def step({name}): return {name}[::-1] * (1 + 2j) + {loop} + {name} / 4", {"fori": jax.lax.fori_loop}, defined)
    text = meshbridge.partition(export.export(jax.jit(defined["step"]))(at), emit="shard_map")
    (found,) = run(text, [np.arange(6, dtype=np.complex64)])
    np.testing.assert_allclose(found, np.arange(6)[::-1] * (1 + 2j) + np.arange(6))


class Page(HTMLParser):
    """The scripts and images of a page, by their attributes, and the handlers of events in it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.active: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "img", "iframe", "object", "base"):
            self.active.append(f"{tag} {attrs}")
        self.active += [key for key, _ in attrs if key.startswith("on")]


@pytest.mark.parametrize("name", NAMES)
def test_pages(name: str) -> None:
    page = report(name).to_html(name)
    assert is_visible(page)
    assert Page(page).active == Page(report("plain").to_html("plain")).active != []
    assert is_visible(report(name)._repr_html_())


JSON: dict[str, Callable[[Report], str]] = {
    "report": Report.to_json,
    "perfetto": lambda report: chrome_trace(report.step),  # type: ignore[arg-type]  # there is one on a machine with a topology
}


def strings(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for each in value:
            yield from strings(each)
    if isinstance(value, str):
        yield value


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", JSON)
def test_json_keeps_names_as_they_are(kind: str, name: str) -> None:
    text = JSON[kind](report(name))
    assert text.isascii()
    assert is_visible(text)
    assert any(name in each for each in strings(json.loads(text)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("by", ["collective", "module", "line"])
def test_tables(by: Any, name: str) -> None:
    lines = report(name).table(by).split("\n")
    assert all(is_visible(line, keep="") for line in lines)
    plain = report("plain").table(by).split("\n")
    assert _unwrapped(lines) == _unwrapped(plain), "long names wrap lines, and begin none"


def _unwrapped(lines: list[str]) -> int:
    """How many lines there are, without those that continue one."""
    return sum(not line.startswith("      ") for line in lines)


COMMANDS = {
    "report": ["report", "{}", "--machine", "h100:1x1x2", "--html", "{}.html", "--model-explorer", "{}.json"],
    "explain": ["explain", "{}"],
    "diff": ["diff", "{}", "--but", "machine=bytes"],
    "search": ["search", "{}", "--machine", "h100:1x1x2", "--ignore-annotations", "--constraints", "1", "--seconds", "1"],
    "partition": ["partition", "{}", "-o", "-", "--emit", "shard_map", "--report"],
    "mesh": ["partition", "{}", "-o", "-", "--emit", "mesh", "--timing"],
    "convert": ["convert", "{}", "-o", "-", "--to", "mesh"],
    "refused": ["partition", "{}", "-o", "-", "--layout", "{}=hosts", "--machine", "h100:1x1x2"],
    "no file": ["report", "{}\x1b[31m\u202e"],
}
"""Command lines; `{}` is a file whose name, as all names in it, is hostile."""


@pytest.mark.parametrize("name", NAMES[5:7])
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_print_nothing_that_a_terminal_obeys(
    command: str, name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name.replace("/", " ")
    path.write_bytes(program(name).serialize())
    status = cli.main([each.replace("{}", str(path)) for each in COMMANDS[command]])
    printed = capfd.readouterr()
    assert is_visible(printed.out)
    assert is_visible(printed.err)
    assert "internal error" not in printed.err
    assert status == (1 if command in ("refused", "no file") else 0), printed.err


TEXT = """
sdy.mesh @mesh = <["NAME"=2]>
func.func @main(%a: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"NAME"}]>} loc("NAME"), %b: tensor<8xf32>)
    -> (tensor<4xf32> {jax.result_info = "NAME"}) {
  %0 = stablehlo.custom_call @"NAME"(%a, %b) : (tensor<4xf32>, tensor<8xf32>) -> tensor<4xf32> loc("NAME":1:2)
  return %0 : tensor<4xf32>
}
"""
"""The same in MLIR's text, which may also name a call, and hold a NUL."""


@pytest.mark.parametrize("name", [*NAMES, "\0nul"])
@pytest.mark.parametrize("command", ["report", "explain", "partition --emit shard_map", "partition --emit mesh", "run"])
def test_text_with_such_names(command: str, name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "program.mlir"
    path.write_text(TEXT.replace("NAME", "".join(f"\\{byte:02X}" for byte in name.encode())))
    status = cli.main([*command.split(), str(path)])
    printed = capfd.readouterr()
    assert is_visible(printed.out)
    assert is_visible(printed.err)
    assert "internal error" not in printed.err
    assert status == (1 if command in ("partition --emit shard_map", "run") else 0), printed.err


def test_diagnostics_are_visible() -> None:
    with mlir.context(), ir.Location.file("\x1b.mlir", 1, 2):
        (function,) = ir.Module.parse("func.func private @f()").body.operations
        op_error = OpError(function.operation, "found '\x1b[2J'", "say \u202e")
    for error in (op_error, MeshError("\x1b[2J\n  hint: \u202e"), ShardingWarning("\x1b[2J\u202e")):
        assert "\\x1b[2J" in str(error)
        assert is_visible(str(error))


@pytest.mark.parametrize("shell", console.SHELLS)
@pytest.mark.parametrize("name", NAMES)
def test_completion_of_a_flag_with_such_help(shell: str, name: str) -> None:
    """A pass of another package brings its own help."""
    from meshbridge.tools.completion import completion

    parser = console.Parser(prog="mesh-opt")
    parser.add_completion()
    text = completion(parser, shell, {"--its-pass": name})
    assert is_visible(text, keep="\n\t")
