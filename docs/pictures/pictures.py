"""Draws the pictures of README.md from what meshbridge prints of `train.py` beside this file.

From the repository's root: `python docs/pictures/pictures.py`. `report.svg` is the report before and after a fix of one line,
`search.svg` what a search finds for the step without any sharding, and `page.png` the report as a page, drawn by Chromium if it
is there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from io import StringIO
from itertools import takewhile
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console
from rich.text import Text

import meshbridge

FOLDER = Path(__file__).parent
SOURCE = (FOLDER / "train.py").read_text()
MACHINE = "h100:1x1x8"

BEFORE = '        logits = jax.lax.with_sharding_constraint(logits, P("data", None, None))'
AFTER = '        logits = jax.lax.with_sharding_constraint(logits, P("data", None, "model"))'
COLUMNS = 120

LAYER = {"up": (512, 2048), "down": (2048, 512)}
SHAPES: Any = {"embed": (32768, 512), "layers": [LAYER] * 4}
SPECS: Any = {"embed": P("model", None), "layers": [{"up": P(None, "model"), "down": P("model", None)}] * 4}


def step(source: str) -> Any:
    """The training step of a source text, whose locations name `train.py`."""
    names: dict[str, Any] = {}
    exec(compile(source, "train.py", "exec"), names)
    return names["step"]


def arguments() -> tuple[Any, jax.ShapeDtypeStruct]:
    """Shapes of the parameters, and of 16 sequences of 128 tokens."""
    params = jax.tree.map(lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), SHAPES, is_leaf=lambda x: isinstance(x, tuple))
    return params, jax.ShapeDtypeStruct((16, 128), jnp.int32)


def report(source: str) -> meshbridge.Report:
    """Of the step on a mesh of 2 x 4 devices, for a machine with a topology."""
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    held = jax.tree.map(lambda spec: NamedSharding(mesh, spec), SPECS, is_leaf=lambda x: isinstance(x, P))
    jitted = jax.jit(step(source), in_shardings=(held, NamedSharding(mesh, P("data"))), out_shardings=held)
    with jax.set_mesh(mesh):
        return meshbridge.report(jitted, *arguments(), machine=MACHINE)


def report_svg() -> str:
    """The rows that send most before and after, the line that was changed in between."""
    assert BEFORE in SOURCE
    console = _console()
    command = f"$ meshbridge report step.jax_export --machine {MACHINE}"
    console.print(Text(command, style="bold"))
    for line in _shown(report(SOURCE).table(), "all_gather"):
        console.print(line)
    console.print()
    console.print(Text(f"- {BEFORE.strip()}", style="red"))
    console.print(Text(f"+ {AFTER.strip()}", style="green"))
    console.print()
    console.print(Text(command, style="bold"))
    for line in _shown(report(SOURCE.replace(BEFORE, AFTER)).table(), "all_reduce"):
        console.print(line)
    return console.export_svg(title="the report of a training step, before and after a fix of one line", unique_id="report")


def _shown(table: str, kind: str) -> Iterator[Text]:
    """Of a report: the head, the first collective with its reason, the sums, and the predicted step."""
    head, row, *rest = table.splitlines()
    assert row.startswith(kind)
    yield Text(head, style="cyan")
    yield Text(row)
    for line in takewhile(lambda line: line.startswith("    "), rest):
        yield Text(line, style="yellow")
    yield Text("…", style="dim")
    for line in rest:
        if "on the wire per device and step" in line or "per step on" in line:
            yield Text(line)


def search_svg() -> str:
    """What a search finds for the step with all its shardings taken out."""
    source = SOURCE.replace(f"{BEFORE}\n", "")
    plan = meshbridge.search(jax.jit(step(source)), *arguments(), mesh={"data": 2, "model": 4}, machine="h100", seconds=600)
    console = _console()
    console.print(Text("$ meshbridge search step.jax_export --mesh data=2,model=4 --machine h100", style="bold"))
    for line in plan.table().splitlines():
        console.print(Text(line, style="cyan" if line.split()[:2] == ["shape", "sharding"] else ""))
    return console.export_svg(title="a search, from no sharding at all", unique_id="search")


def _console() -> Console:
    return Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True, highlight=False)


def page_png(path: Path) -> None:
    """The report as a page. Raises CalledProcessError if the browser fails."""
    browser = shutil.which("chromium")
    if browser is None:
        print(f"{path.name} stays as it is: there is no chromium to draw it")
        return
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        os.chdir(FOLDER)  # where the page finds train.py
        page.write_text(report(SOURCE).to_html("train.py"))
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1100,860"]
        subprocess.run([browser, *flags, f"--screenshot={path}", page.as_uri()], check=True, capture_output=True)


if __name__ == "__main__":
    (FOLDER / "report.svg").write_text(report_svg())
    (FOLDER / "search.svg").write_text(search_svg())
    page_png(FOLDER / "page.png")
