"""Every .mlir test under tests/lit, one pytest test each."""

from __future__ import annotations

from pathlib import Path

import lit.Test
import pytest

from tests.lit import lit_commands

TESTS = lit_commands.tests()


@pytest.mark.parametrize("name", TESTS)
def test_lit(name: str, tmp_path: Path) -> None:
    result = lit_commands.run(TESTS[name], tmp_path)
    if result.code is lit.Test.UNSUPPORTED:
        pytest.skip(result.output)
    assert result.code is lit.Test.PASS, result.output


@pytest.mark.parametrize(
    "line",
    [
        "mesh-opt missing.mlir",
        "mesh-opt missing.mlir | cat",
        "mesh-opt < {here} --no-such-pass",
        "not mesh-opt < {empty}",
        "mesh-opt < {empty} | filecheck {here}",
        "mesh-opt < {empty} > {out} && diff {out} {here}",
        "meshbridge no-such-command",
    ],
)
def test_failing_commands_are_seen(line: str, tmp_path: Path) -> None:
    here, empty = tmp_path / "here.mlir", tmp_path / "empty.mlir"
    here.write_text("// CHECK: something\n")
    empty.write_text("module {}\n")
    assert lit_commands.shell(line.format(here=here, empty=empty, out=tmp_path / "out.mlir"), tmp_path).status
