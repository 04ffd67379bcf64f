"""What a compiler makes of a program planned for a machine, and for the same machine whose file lacks a key."""

from __future__ import annotations

from pathlib import Path

import jax

from meshbridge.ir.mlir import context
from meshbridge.machines import machine
from meshbridge.read import formats
from meshbridge.tools.compare import command
from meshbridge.tools.compare.contestants import OURS, PEERS
from meshbridge.tools.compare.figures import Figures
from tests.targets.installed import target


def figures_with_and_without(key: str, exported: jax.export.Exported, text: str, folder: Path) -> tuple[Figures, Figures]:
    """Our figures of `exported` for the target of that text; then without `key`, which its machine's file sets to true."""
    chosen = target(text)
    file = (Path(machine.__file__).parent / chosen.machine.platform / f"{chosen.device}.toml").read_text()
    assert f"{key} = true" in file
    lacking = folder / "lacking.toml"
    lacking.write_text(file.replace(f"{key} = true", ""))

    def figures(name: str) -> Figures:
        (compared,) = command.compare_for(formats.unpack(exported, context()), [chosen], machine=name, without=PEERS)
        found = compared.figures[OURS]
        assert not found.error
        return found

    return figures(chosen.device), figures(str(lacking))
