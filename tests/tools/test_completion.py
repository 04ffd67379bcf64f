"""Shells complete commands, options, their values, and the names of passes and files."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from meshbridge.tools import cli, mesh_opt
from meshbridge.tools.console import SHELLS

WORDS = {
    "meshbridge par": "partition",
    "meshbridge partition --mem": "--memory-limit",
    "meshbridge partition --emit ann": "annotated",
    "meshbridge convert --to gs": "gspmd",
    "meshbridge compare --compiler-options be": "best",
    "meshbridge partition mod": "model.mlir",
    "mesh-opt --sharding-prop": "--sharding-propagation",
    "mesh-opt mod": "model.mlir",
}
"""Beginnings of command lines, and what the last word becomes."""


def printed(main: Callable[[list[str]], int], shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit, match="0"):
        main(["--print-completion", shell])
    return capsys.readouterr().out


@pytest.mark.parametrize("line", WORDS)
def test_bash_completes(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, *rest = line.split()
    (tmp_path / "completion").write_text(printed({"meshbridge": cli.main, "mesh-opt": mesh_opt.main}[name], "bash", capsys))
    (tmp_path / "model.mlir").touch()
    code = (
        'source completion; function=$(complete -p "$1" | grep -o "_shtab_[a-z_]*"); '
        'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); $function; echo "${COMPREPLY[@]}"'
    )
    command = ["bash", "-c", code, "bash", name, *rest]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [WORDS[line]], done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_something(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "memory-limit" in printed(cli.main, shell, capsys)
    assert "sharding-propagation" in printed(mesh_opt.main, shell, capsys)
