"""The growth curves of benchmarks/scale.py as one picture: time, memory and text, by ops and by devices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot
from matplotlib.axes import Axes

from benchmarks.fresh import Probe
from benchmarks.scale import Probes, Suite

Point = tuple[float, float]


def draw(suite: Suite, probes: Probes, path: Path) -> None:
    """Writes the picture as SVG. Programs that were not measured are left out."""
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": path.name}  # text as text; the same file for the same figures
    picture, ((time, memory), (devices, text)) = pyplot.subplots(2, 2, figsize=(10, 7), layout="constrained")
    _by_ops(time, suite, probes, "CPU seconds of the first call", lambda found: found.first and found.first.cpu)
    _by_ops(memory, suite, probes, "peak memory, MB", lambda found: found.peak_bytes and found.peak_bytes / 1e6)
    _by_devices(devices, suite, probes, "CPU seconds of the first call", lambda found: found.first and found.first.cpu)
    _by_devices(text, suite, probes, "lowered text, KB", lambda found: found.text_bytes and found.text_bytes / 1e3)
    picture.savefig(path, metadata={"Date": None})
    pyplot.close(picture)


def _by_ops(axes: Axes, suite: Suite, probes: Probes, label: str, figure: Callable[[Probe], float | None]) -> None:
    """Measured points, and the line that the first of them would give if nothing but the ops counted."""
    measured = [probes[case.name] for case in suite.growth if case.name in probes]
    points = [(found.operations, value) for found in measured if found.operations and (value := figure(found))]
    _plot(axes, points, f"llama, mesh {suite.growth[0].mesh}", "o-")
    if points:
        (ops, value), *_ = points
        _plot(axes, [(other, value * other / ops) for other, _ in points], "linear", "--")
        axes.set(xscale="log", yscale="log")
    axes.set(xlabel="ops of the program", ylabel=label)
    axes.legend()


def _by_devices(axes: Axes, suite: Suite, probes: Probes, label: str, figure: Callable[[Probe], float | None]) -> None:
    for sizes, cases in suite.meshes.items():
        measured = [(case.devices, probes[case.name]) for case in cases if case.name in probes]
        _plot(axes, [(devices, value) for devices, found in measured if (value := figure(found))], f"{sizes} sizes", "o-")
        if measured:
            axes.set(xscale="log")
    axes.set(xlabel="devices", ylabel=label, ylim=(0, None))
    axes.legend()


def _plot(axes: Axes, points: list[Point], label: str, style: str) -> None:
    axes.plot([x for x, _ in points], [y for _, y in points], style, label=label)
