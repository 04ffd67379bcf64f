"""What a compiler makes of a program planned for a machine, and for the same machine whose file lacks a key."""

from __future__ import annotations

import re
from pathlib import Path

import jax

from meshbridge.ir.mlir import context
from meshbridge.machines import machine
from meshbridge.machines.machine import OptionSet
from meshbridge.read import formats
from meshbridge.runtime.compiler_options import CompilerOptions
from meshbridge.tools.compare import command
from meshbridge.tools.compare.contestants import OURS, PEERS
from meshbridge.tools.compare.figures import Figures
from tests.targets.installed import target


def figures_with_and_without(
    key: str, exported: jax.export.Exported, text: str, folder: Path, under: OptionSet = "default"
) -> tuple[Figures, Figures]:
    """Our figures of `exported` for the target of that text, under that set of options; then without `key` of its machine."""
    chosen = target(text)
    file = (Path(machine.__file__).parent / chosen.machine.platform / f"{chosen.device}.toml").read_text()
    lacking = folder / "lacking.toml"
    rest, found = re.subn(rf"^{key} = .*$", "", file, flags=re.MULTILINE)
    assert found == 1
    lacking.write_text(rest)

    def figures(name: str) -> Figures:
        (compared,) = command.compare_for(
            formats.unpack(exported, context()), [chosen], machine=name, without=PEERS, compiler_options=CompilerOptions(under)
        )
        found = compared.figures[OURS]
        assert not found.error
        return found

    return figures(chosen.device), figures(str(lacking))
