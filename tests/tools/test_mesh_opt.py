"""`mesh-opt`'s command line, and the notation of expected diagnostics."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshbridge import pass_names, pipeline
from meshbridge.ir.mlir import MeshError
from meshbridge.ir.passes import PASSES
from meshbridge.lowering.lower_collectives import LowerCollectives
from meshbridge.tools import expectations, mesh_opt


def test_every_pass_is_a_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs each pass alone, by its name, over a program that gives it nothing to do."""
    program = tmp_path / "input"
    program.write_text("mesh.mesh @mesh(shape = 2)\nfunc.func @main() { return }")
    known = pass_names.registered_passes()
    assert {"sharding-propagation", "mesh-spmdization", "lower-collectives", "inline-calls"} <= set(known)
    for name in known:
        assert mesh_opt.main([str(program), f"--{name}"]) == 0, capsys.readouterr().err
        assert "func.func @main" in capsys.readouterr().out


def test_help_names_passes_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        mesh_opt.main(["--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    for name in pass_names.registered_passes():
        assert f"--{name}" in printed
    assert "form: default exported" in printed


SHARDY = """\
sdy.mesh @mesh = <["x"=2]>
func.func @main(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<8xf32> {
  return %arg0 : tensor<8xf32>
}
"""


@pytest.mark.parametrize("step", ["sharding-propagation", "sharding-refinement", "mesh-spmdization"])
def test_a_pass_that_does_not_read_the_shardings_warns(step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "shardy.mlir"
    program.write_text(SHARDY)
    assert mesh_opt.main([str(program), f"--{step}", "--mesh-spmdization"]) == 0
    assert capsys.readouterr().err == (
        f"{program}: warning: {step} does not read the shardings of the program, which are in the notation 'sdy'\n"
        "  hint: run --import-shardings before, which turns them into annotations of the mesh dialect\n"
    )
    assert mesh_opt.main([str(program), "--import-shardings", f"--{step}"]) == 0
    assert capsys.readouterr().err == ""


PLUGIN = '''\
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import Pass, register

@register
@dataclass(frozen=True)
class Rename(Pass):
    """Renames the first function."""
    name: ClassVar[str] = "rename-first"
    to: str = "other"

    def run(self, module: ir.Module) -> None:
        with module.context:
            module.body.operations[0].operation.attributes["sym_name"] = ir.StringAttr.get(self.to)
'''


@pytest.mark.parametrize(
    "flags", [["--rename-first=to=it"], ["--pass-pipeline=rename-first{to=it}"], ["--mlir-print-ir-after=rename-first"]]
)
def test_a_plugin_adds_flags(flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, plugin = tmp_path / "input", tmp_path / "plugin.py"
    program.write_text("func.func @main() { return }")
    plugin.write_text(PLUGIN)
    with PASSES.restored():
        command = [str(program), f"--load-pass-plugin={plugin}", "--load-pass-plugin", str(plugin), *flags]
        assert mesh_opt.main(command) == 0, capsys.readouterr().err
    assert ("@it" in capsys.readouterr().out) == ("to=it" in flags[0])


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        (None, "", "FileNotFoundError: "),
        ("a b", "", "SyntaxError: invalid syntax (plugin.py, line 1)"),
        ("\n1 / 0", ":2", "ZeroDivisionError: division by zero"),
        (PLUGIN.replace("rename-first", "simplify"), ":7", "MeshError: error: pass 'simplify' is registered already"),
    ],
)
def test_a_plugin_that_fails_is_named(
    text: str | None, at: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = tmp_path / "plugin.py"
    if text is not None:
        plugin.write_text(text)
    assert mesh_opt.main([f"--load-pass-plugin={plugin}", "--rename-first"]) == 2
    assert f"{plugin}{at}: error: cannot be executed as a pass plugin: {message}" in capsys.readouterr().err


def test_pipeline_text() -> None:
    steps = pass_names.parse_pipeline("builtin.module(inline-calls, lower-collectives{form=local replica-groups=mesh-axes})")
    assert [step.name for step in steps] == ["inline-calls", "lower-collectives"]
    assert steps[1] == LowerCollectives(form="local", replica_groups="mesh-axes")
    assert pass_names.parse_pipeline("") == ()


@pytest.mark.parametrize("text", ["a b", "inline-calls{", "builtin.module(inline-calls))", "inline-calls;cse", "{}"])
def test_malformed_pipeline_text(text: str) -> None:
    with pytest.raises(MeshError, match="error: expected 'pass' or "):
        pass_names.parse_pipeline(text)


def test_stages_that_can_be_emitted_extend_each_other() -> None:
    annotated, mesh, local = (pipeline.build(pipeline.Options(emit=form)) for form in ("annotated", "mesh", "local"))
    assert annotated.until("legal") == mesh.until("legal")
    assert [stage.name for stage in annotated.stages] == [stage.name for stage in mesh.until("decided").stages]
    assert local.until("optimised") == mesh


TEXT = """\
one // expected-error {{same line}}
// expected-error @+2 {{two below}}
// expected-warning@below {{next that expects nothing}}
four
// expected-error-re @above {{found {{[0-9]+}} of}}
// expected-note @unknown {{anywhere}}
"""


def test_expectations_resolve_lines() -> None:
    found = [(entry.kind, entry.line) for entry in expectations.expectations(TEXT)]
    assert found == [("error", 1), ("error", 4), ("warning", 4), ("error", 4), ("note", None)]


def test_mismatches_name_both_sides() -> None:
    expected = expectations.expectations(TEXT)
    text = "f:1:3: error: on the same line\nf:4:1: error: found 12 of them\nf:9:9: error: a surprise\nf: note: anywhere at all"
    complaints = expectations.mismatches(expected, expectations.diagnostics(text))
    assert complaints == [
        "unexpected error at line 9: a surprise",
        "expected error at line 4 was not produced: two below",
        "expected warning at line 4 was not produced: next that expects nothing",
    ]
