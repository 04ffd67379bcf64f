"""Models of other people's libraries run on 8 virtual CPU devices: are the numbers right, and who sends less?

From the repository's root: `python -m benchmarks.model_numbers [--models NAME…] [--schemes NAME…] [--page FILE]`. Each model is
partitioned twice, for the fewest bytes and as a user gets it, and by XLA with Shardy and with GSPMD. `make bench-models` writes
docs/models.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = " ".join(
        [
            "--xla_force_host_platform_device_count=8",
            # Compiling takes longer than running, and neither bytes nor numbers hang on how good LLVM's code is.
            "--xla_backend_optimization_level=0",
            "--xla_llvm_disable_expensive_passes=true",
        ]
    )
os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import numpy as np

import meshbridge
from benchmarks import marked
from benchmarks.cases import RECORDS
from benchmarks.table import geometric_mean
from meshbridge.analysis import hlo
from meshbridge.analysis.hlo_communication import communication
from testdata.models.catalogue import model, models
from testdata.models.model import SCHEMES, Model, mesh_of

COMMAND = "make bench-models"
RECORD = RECORDS / "models.cpu.json"

TOLERANCE = 1e-4
"""What an element of a result may differ by, relative to the largest one of that result."""

AMPLIFIED = 20.0
"""What it may differ by besides, relative to what rounding of the arguments changes of that result: gradients that are zero but
for rounding have no digit that is right, on one device or on eight."""

DRAWS = 3
"""How often the arguments are rounded by chance. The most that this changes of a result counts."""

Arrays = list[Any]


@dataclass(frozen=True)
class Numbers:
    """A model under a scheme: bytes that one device sends in a step, and errors of our results, as parts of what they may be."""

    fewest_bytes: float
    usual_bytes: float
    shardy_bytes: float
    gspmd_bytes: float
    fewest_error: float
    usual_error: float

    @property
    def is_right(self) -> bool:
        """Whether all results of both plans are those of one device."""
        return max(self.fewest_error, self.usual_error) <= 1

    @property
    def least_of_xla(self) -> float:
        """What the better one of XLA's partitioners sends."""
        return min(self.shardy_bytes, self.gspmd_bytes)


def measure(made: Model, scheme: str) -> Numbers:
    """Partitions and runs a model. The reference is the plain function, jitted for one device."""
    mesh = mesh_of(scheme)
    allowed = _allowed(made)
    expected = _on_one_device(made, made.leaves)
    exported = made.export(scheme, "cpu")
    found = {}
    for machine in ("bytes", "neutral"):
        partitioned = meshbridge.partition(exported, machine=machine)
        shardings = jax.tree.unflatten(exported.in_tree, partitioned.in_shardings_jax(mesh))[0]
        compiled = jax.jit(partitioned.call, in_shardings=shardings).lower(*made.leaves).compile()
        placed = jax.device_put(made.leaves, shardings)
        found[machine] = _sent(compiled), _error(compiled(*placed), expected, allowed)
    theirs = [_sent(_by_xla(made, scheme, shardy=shardy)) for shardy in (True, False)]
    (fewest, fewest_error), (usual, usual_error) = found["bytes"], found["neutral"]
    return Numbers(fewest, usual, *theirs, fewest_error, usual_error)


def _by_xla(made: Model, scheme: str, *, shardy: bool) -> jax.stages.Compiled:
    mesh = mesh_of(scheme)
    with _partitioner(shardy), jax.set_mesh(mesh):
        compiled: jax.stages.Compiled = made.jit(scheme, mesh).lower(*made.leaves).compile()
        return compiled


@contextmanager
def _partitioner(shardy: bool) -> Iterator[None]:
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", shardy)
    try:
        yield
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)


def _sent(compiled: jax.stages.Compiled) -> float:
    return communication(hlo.read(compiled.as_text() or "")).wire_bytes


def _on_one_device(made: Model, leaves: tuple[Arrays, Arrays]) -> Arrays:
    return [np.asarray(each) for each in jax.jit(made.flat)(*leaves)]


def _allowed(made: Model) -> Arrays:
    """Per result, the largest difference that rounding explains."""
    exact, *others = (
        _on_one_device(made, each) for each in (made.leaves, *(_rounded(made.leaves, draw) for draw in range(DRAWS)))
    )
    moved = [max(_largest(_apart(one, other)) for other in each) for one, *each in zip(exact, *others, strict=True)]
    return [TOLERANCE * _largest(one) + AMPLIFIED * by for one, by in zip(exact, moved, strict=True)]


def _rounded(leaves: tuple[Arrays, Arrays], draw: int) -> tuple[Arrays, Arrays]:
    """The arrays, every element of a floating-point type moved by one of its last digits, up or down."""
    generator = np.random.default_rng(draw)

    def rounded(leaf: Any) -> Any:
        array = jnp.asarray(leaf)
        if not jnp.issubdtype(array.dtype, jnp.floating):
            return leaf
        return (array * (1 + generator.choice([-1, 1], array.shape) * jnp.finfo(array.dtype).eps)).astype(array.dtype)

    found: tuple[Arrays, Arrays] = jax.tree.map(rounded, leaves)
    return found


def _largest(array: Any) -> float:
    return float(np.max(np.abs(array[np.isfinite(array)]), initial=0.0))


def _apart(one: Any, other: Any) -> Any:
    """The distance of each element; infinite where only one of both is finite, zero where both are not in the same way."""
    wide = np.complex128 if np.iscomplexobj(one) else np.float64
    one, other = one.astype(wide), other.astype(wide)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        return np.where(same, 0.0, np.nan_to_num(np.abs(one - other), nan=np.inf, posinf=np.inf))


def _error(results: Arrays, expected: Arrays, allowed: Sequence[float]) -> float:
    """The largest distance of a result, as a part of what it may be; infinite where types or shapes differ."""
    found = [np.asarray(each) for each in results]
    if [(each.shape, each.dtype) for each in found] != [(each.shape, each.dtype) for each in expected]:
        return float("inf")
    errors = [float(np.max(_apart(one, other), initial=0.0)) for one, other in zip(found, expected, strict=True)]
    return max((_part(error, most) for error, most in zip(errors, allowed, strict=True)), default=0.0)


def _part(error: float, most: float) -> float:
    if not error:
        return 0.0
    return error / most if most else float("inf")


def table(found: dict[str, Numbers]) -> str:
    """One row for each model and scheme."""
    rows = [f"| {key.replace(' ', ' | ')} | {_cells(numbers)} |" for key, numbers in found.items()]
    heading = "| program | annotated | fewest KB | default KB | Shardy KB | GSPMD KB | fewest: error | default: error |"
    return "\n".join([heading, "|---|---|---:|---:|---:|---:|---:|---:|", *rows, "", *_totals(found)])


def _cells(numbers: Numbers) -> str:
    least = numbers.least_of_xla
    ours = [_bold(f"{each / 1e3:,.1f}", each > least) for each in (numbers.fewest_bytes, numbers.usual_bytes)]
    theirs = [f"{each / 1e3:,.1f}" for each in (numbers.shardy_bytes, numbers.gspmd_bytes)]
    errors = [_bold(f"{each:.3f}", each > 1) for each in (numbers.fewest_error, numbers.usual_error)]
    return " | ".join([*ours, *theirs, *errors])


def _bold(text: str, is_loss: bool) -> str:
    return f"**{text}**" if is_loss else text


def _totals(found: dict[str, Numbers]) -> Iterator[str]:
    right = sum(numbers.is_right for numbers in found.values())
    more = sum(numbers.fewest_bytes > numbers.least_of_xla for numbers in found.values())
    ours, theirs = (sum(each) for each in zip(*((n.fewest_bytes, n.least_of_xla) for n in found.values()), strict=True))
    yield f"{right} of {len(found)} right. Plans of the fewest bytes send {ours / theirs:.2f} times as much in all as the better"
    yield f"one of XLA's partitioners, and more in {more}."


def summary(found: dict[str, Numbers]) -> str:
    """One row for each scheme: how many are right, and the geometric means of bytes over the better one of XLA's partitioners."""
    rows = []
    for scheme in SCHEMES:
        own = [numbers for key, numbers in found.items() if key.endswith(f" {scheme}")]
        means = [_mean_over_xla(own, get) for get in (lambda n: n.fewest_bytes, lambda n: n.usual_bytes)]
        worst = max(max(numbers.fewest_error, numbers.usual_error) for numbers in own)
        rows.append(f"| {scheme} | {sum(n.is_right for n in own)} of {len(own)} | {worst:.3f} | {' | '.join(means)} |")
    heading = "| scheme | right | largest error | fewest / XLA | default / XLA |"
    return "\n".join([heading, "|---|---|---:|---:|---:|", *rows, "", *_totals(found)])


def _mean_over_xla(found: Sequence[Numbers], get: Callable[[Numbers], float]) -> str:
    """Of the models in which XLA sends anything: how many of them send more here, too."""
    ratios = [get(each) / each.least_of_xla for each in found if min(get(each), each.least_of_xla) > 0]
    return f"{geometric_mean(ratios):.2f} of {len(ratios)}, {sum(ratio > 1.001 for ratio in ratios)} send more"


def recorded() -> dict[str, Numbers]:
    """What is on record, by model and scheme."""
    rows = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return {key: Numbers(**row) for key, row in rows.items()}


def keep(found: dict[str, Numbers]) -> None:
    """Puts figures on record, in place of what stood there; the file appears whole or not at all."""
    rows = {key: json.dumps(asdict(numbers)) for key, numbers in sorted((recorded() | found).items())}
    beside = RECORD.with_name(f"{RECORD.name}.partly")
    beside.write_text("{\n" + ",\n".join(f"{json.dumps(key)}: {row}" for key, row in rows.items()) + "\n}\n")
    beside.replace(RECORD)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 1 if a number is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", metavar="NAME", help="default: all of testdata/models")
    parser.add_argument("--schemes", nargs="+", choices=list(SCHEMES), default=list(SCHEMES))
    parser.add_argument("--measured", action="store_true", help="run nothing: show what is on record")
    parser.add_argument("--page", type=Path, metavar="FILE", help="the Markdown page that holds a row for each scheme")
    options = parser.parse_args(argv)
    found: dict[str, Numbers] = {}
    for name in () if options.measured else options.models or models():
        made = model(name)
        for scheme in options.schemes:
            key = f"{name} {scheme}"
            found[key] = measure(made, scheme)
            keep({key: found[key]})
            print(f"{key}: {_cells(found[key])}", flush=True)
            jax.clear_caches()
    if found or options.measured:
        print(table(found or recorded()))
    if options.page:
        options.page.write_text(marked.replaced(options.page, "model numbers", COMMAND, summary(recorded())))
    return 0 if all(numbers.is_right for numbers in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
