"""The house rules that a machine can check: imports go one way, registries are documented, tests stand where their sources do."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args

import pytest

import meshbridge
from meshbridge import backends, partitioning, pass_names, pipeline
from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir
from meshbridge.read import formats
from meshbridge.read.formats import Format
from tests import house_figures
from tests.house import BRIDGE, CONVERTERS, LAYERS, ROOT, TESTS, imports, imports_by_line
from tests.house_figures import op_tables


def test_imports_go_down() -> None:
    height = {name: -level for level, layer in enumerate(LAYERS) for name in layer.split()}
    assert set(height) == {path.stem for path in BRIDGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    upwards = []
    for path in sorted(BRIDGE.rglob("*.py")):
        own = path.relative_to(BRIDGE).parts[0].removesuffix(".py")
        for name in imports(path):
            first, _, rest = name.partition(".")
            other = rest.partition(".")[0]
            other = other if other in height else "__init__"
            if first == "meshbridge" and other != own and height[other] >= height[own]:
                upwards.append(f"{path.relative_to(BRIDGE)} imports {name}")
    assert not upwards


TABLES = {
    "analysis/device_numbers.py": "what ops compute, on the numbers of devices",
    "analysis/known_values.py": "what ops compute, on integers",
    "collectives/combine_collectives.py": "how collectives of a kind are laid out side by side",
    "collectives/commuting_ops.py": "the reductions that ops of two operands commute with",
    "ir/exchange.py": "stands below `ops`, where traits are",
    "ir/mlir.py": "stands below `ops`, where traits are",
    "legalize/inline_calls.py": "conditions under which annotations say nothing",
    "overlap/attention/masked_blocks.py": "what ops compute, on intervals",
}
"""Files outside of `ops/` that have tables of op names, and what these say that is no trait."""


def test_what_an_op_is_stands_in_ops() -> None:
    assert {table.partition(":")[0] for table in op_tables()} == set(TABLES)


def test_verify_shares_no_code_with_what_it_verifies() -> None:
    for path in (BRIDGE / "verification").rglob("*.py"):
        ours = [name.split(".") for name in imports(path) if name.startswith("meshbridge.")]
        assert all(parts[1] in ("verification", "text") or parts[1:3] == ["ir", "mlir"] for parts in ours), path


def test_the_solver_knows_no_meshes_and_no_programs() -> None:
    for path in (BRIDGE / "solver").rglob("*.py"):
        ours = [name for name in imports(path) if name.startswith("meshbridge.")]
        assert all(name.startswith(("meshbridge.solver", "meshbridge.ir.errors.")) for name in ours), path


def test_the_house_imports_no_converter() -> None:
    for path in BRIDGE.rglob("*.py"):
        assert not [name for name in imports(path) if name.startswith("meshbridge_converters")], path


SUITES = (
    "codebases",
    "distributed",
    "fuzz",
    "growth",
    "lit",
    "models",
    "operations",
    "plans",
    "programs",
    "rewrites",
    "targets",
    "zoo",
)
"""Folders of tests that go across all modules, and mirror no folder of the sources."""

OF_THE_REPOSITORY = ("test_ci", "test_docs", "test_hidden_state", "test_house", "test_repository", "test_simulator", "test_wheel")
"""Tests of no module: of the repository, and of the package as a whole."""


def _modules_beside(folder: Path) -> set[str]:
    """The modules and packages that the tests in a folder are named by."""
    others = {TESTS / "converters": CONVERTERS, TESTS / "benchmarks": ROOT / "benchmarks"}
    source = others.get(folder, BRIDGE / folder.relative_to(TESTS))
    return {path.stem for path in source.glob("*") if path.suffix == ".py" or (path / "__init__.py").exists()}


def test_tests_are_named_by_what_they_test() -> None:
    """`tests/ir/test_uses.py` tests `ir/uses.py`, and `test_uses_in_loops.py` would test one aspect of it."""
    astray = []
    for path in sorted(TESTS.rglob("test_*.py")):
        first, *_ = path.relative_to(TESTS).with_suffix("").parts
        name = path.stem.removeprefix("test_")
        if first not in (*SUITES, *OF_THE_REPOSITORY) and not any(
            name == module or name.startswith(f"{module}_") for module in _modules_beside(path.parent)
        ):
            astray.append(f"{path.relative_to(ROOT)}: no module of the folder that it mirrors has such a name")
    assert not astray


def test_no_module_imports_a_test() -> None:
    """What several tests share stands in a module beside them, whose name has no `test_` in front."""
    tests = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in TESTS.rglob("test_*.py")}
    assert tests
    offenders = [
        f"{path.relative_to(ROOT)}:{line}: imports {name}"
        for path in sorted(TESTS.rglob("*.py"))
        for line, name in imports_by_line(path)
        if name in tests or name.rpartition(".")[0] in tests
    ]
    assert not offenders


PROGRAM = ROOT / "testdata" / "walkthrough" / "mlp_1d_weight_stationary.mlir"


@pytest.mark.parametrize("command", ["mesh_opt as m; m.main([", "cli as m; m.main(['partition', "])
def test_a_command_on_text_needs_neither_jax_nor_scipy(command: str) -> None:
    """Either takes half a second to import."""
    code = f"import meshbridge.tools.{command}{str(PROGRAM)!r}, '-o', '/dev/null'])"
    large = "import sys; sys.exit(str({'jax', 'scipy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{large}"], capture_output=True, text=True, check=False)
    assert done.stderr == "set()\n"


def test_every_import_is_declared() -> None:
    """By what a user installs, or by an extra that a diagnostic names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = [*project["dependencies"], *extras["symbolic"], *extras["gpu"], *extras["tpu"]]
    known = {re.split(r"[^\w-]", each)[0] for each in declared} | {
        *sys.stdlib_module_names,
        "meshbridge",
        "meshbridge_converters",
    }
    imported = {
        name.partition(".")[0]: path for folder in (BRIDGE, CONVERTERS) for path in folder.rglob("*.py") for name in imports(path)
    }
    assert not {name: path for name, path in imported.items() if name not in known}


def test_targets_are_read_once() -> None:
    """Below the API a machine with its layout is a `CompileTarget`, and nothing takes their texts."""
    assert house_figures.texts_of_targets() == []


def test_installed_converters() -> None:
    assert {"jax-export", "portable", "bytecode", "mlir", "rfc", "llvm19", "llvm21", "llvm22"} <= set(formats.formats())
    assert {"sdy", "gspmd"} <= set(formats.notations())
    assert list(formats.formats())[-1] == "mlir"  # anything that decodes could be text
    assert all(isinstance(entry, Format) for entry in formats.formats().values())


def test_commands_print_through_one_door() -> None:
    """`console.say` makes visible what a terminal would obey."""
    printing = {
        path.relative_to(BRIDGE).as_posix(): sum(isinstance(node, ast.Name) and node.id == "print" for node in ast.walk(tree))
        for path in (*BRIDGE.rglob("*.py"), *CONVERTERS.rglob("*.py"))
        if "print(" in (text := path.read_text()) and (tree := ast.parse(text))
    }
    assert {path: count for path, count in printing.items() if count} == {"tools/console.py": 2}  # the other prints completions


def test_every_pass_shows_ir_in_its_documentation() -> None:
    for name, step in pass_names.registered_passes().items():
        assert "Input:" in (step.__doc__ or ""), name
        assert "Output:" in (step.__doc__ or ""), name


def test_a_program_without_a_mesh_passes_through() -> None:
    with mlir.context():
        module = ir.Module.parse("func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> { return %a : tensor<2xf32> }")
    before = str(module)
    for emit in get_args(pipeline.Emit):
        partitioning.partition_module(module, pipeline.Options(emit=emit))
    assert str(module) == before


LIGHT = (
    "import meshbridge",
    "from meshbridge.tools import cli; cli.main(['--help'])",
    "from meshbridge.tools import cli; cli.main(['no such command'])",
)


@pytest.mark.parametrize("code", LIGHT)
def test_what_everybody_waits_for_imports_nothing_large(code: str) -> None:
    """A script that may not need meshbridge, and help that somebody reads, do not wait for MLIR, numpy or JAX."""
    large = "{'jax', 'jaxlib', 'numpy', 'rich'} & set(sys.modules)"
    ending = f"import sys, atexit; atexit.register(lambda: print({large}, file=sys.stderr))"
    done = subprocess.run([sys.executable, "-c", f"{ending}\n{code}"], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "set()", done.stderr


def test_no_public_name_is_a_folder_or_file() -> None:
    """Python sets a submodule as an attribute of its package, in the place of a function with its name."""
    modules = {module.name for module in pkgutil.iter_modules(meshbridge.__path__)}
    assert {"api", "sharding_search"} < modules
    assert not modules.intersection(meshbridge.__all__)


def test_public_names_are_there_whatever_is_imported_first() -> None:
    """Those of other modules are imported on first use."""
    code = (
        "from meshbridge import pipeline\nimport meshbridge as m\nprint(*(type(getattr(m, name)).__name__ for name in m.__all__))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"function", "type", "ABCMeta", "str"}, done.stdout


def test_quirks_name_the_test_that_shows_them() -> None:
    for module in pkgutil.iter_modules(backends.__path__, f"{backends.__name__}."):
        importlib.import_module(module.name)
    for name, quirk in backends.QUIRKS.items():
        assert (ROOT / quirk.test).is_file(), name
    assert backends.QUIRKS
