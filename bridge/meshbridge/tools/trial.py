"""Runs a program on random or given inputs, and compares it with the unsharded program on one device."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np

from meshbridge import api, progress
from meshbridge.dialect.module_mesh import is_partitioned
from meshbridge.dialect.names import names_of
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.legalize.strip_shardings import find_per_device
from meshbridge.read import files
from meshbridge.runtime import pjrt, reference
from meshbridge.runtime.pjrt import ShardedPort
from meshbridge.text import Tabular, counted, joined, public

INTEGERS = 8
"""The bound of random integers, which are often indices and must be in range."""

SCALE = 0.1
"""The standard deviation of random floats: small, so that no softmax saturates and hides an error."""

_BAD_ARCHIVE = (OSError, ValueError, zipfile.BadZipFile)
"""numpy's errors for a file that is no archive of arrays."""


@dataclass(frozen=True)
class NumericError:
    """The largest difference of a result from its reference, and that divided by the largest magnitude of the reference."""

    absolute: float
    relative: float


@dataclass(frozen=True)
class ResultOfRun:
    """A result of a run."""

    name: str
    "Its path in the tree that the function returns, else its number."
    element_type: str
    sharding: jax.sharding.PartitionSpec
    value: np.ndarray[Any, Any]
    "On all devices."
    error: NumericError | None = None
    "From the reference, if there is one."


@public
@dataclass(frozen=True, repr=False)
class RunResult(Tabular):
    """The results of a run, in order; `reference` is the run that they are compared with, if they are."""

    results: tuple[ResultOfRun, ...]
    reference: str = ""

    @property
    def error(self) -> NumericError | None:
        """The largest absolute and the largest relative difference of a result from the reference; None without one."""
        errors = [result.error for result in self.results if result.error is not None]
        return _largest(errors) if self.reference else None

    @property
    def headline(self) -> str:
        """How many results there are, and how far they are from the reference."""
        results = counted(len(self.results), "result")
        return results if self.error is None else f"{results}; {self.error_text}"

    def table(self) -> str:
        """A line for each result, with its sharding and its sum, and the largest difference from the reference."""
        lines = [
            f"{result.name}: {result.element_type}{list(result.value.shape)} {result.sharding} {_summary(result.value)}"
            for result in self.results
        ]
        return joined([*lines, *([self.error_text] if self.error is not None else [])])

    @property
    def error_text(self) -> str:
        """The largest difference from the reference in words; empty without one."""
        if self.error is None:
            return ""
        difference = f"absolute {self.error.absolute:.3g}, relative {self.error.relative:.3g}"
        return f"largest difference from {self.reference}: {difference}"

    def to_json(self) -> str:
        """The lines of the table as JSON, without values."""
        results = [
            {
                "name": result.name,
                "element_type": result.element_type,
                "shape": result.value.shape,
                "sharding": str(result.sharding),
                "error": None if result.error is None else asdict(result.error),
            }
            for result in self.results
        ]
        return json.dumps({"reference": self.reference, "results": results}, indent=2)

    def require(self, tolerance: float) -> None:
        """Raises MeshError if a result differs by more, relative to the largest magnitude of the reference."""
        if self.error is not None and self.error.relative > tolerance:
            name, largest = max(
                ((result.name, result.error.relative) for result in self.results if result.error is not None),
                key=lambda entry: entry[1],
            )
            raise MeshError(f"error: {name} differs by {largest:.3g} relative, expected at most {tolerance:.3g}")


_COMPILING, _RUNNING, _CHECKING = "partitioning and compiling", "running", "checking"


def run(
    module: ir.Module,
    inputs: Sequence[Any] | None = None,
    *,
    seed: int = 0,
    check: bool = False,
    on_results: Callable[[RunResult], None] | None = None,
    quiet: bool = True,
) -> RunResult:
    """Runs a program on `inputs`, or on random ones from `seed`, on JAX's devices. With `check`, compares the results with those
    of the unsharded program on one device, or, for a program with per-device code, of XLA's partitioner. `on_results` is called
    before that, which may need more memory than there is. Shows progress on a terminal unless `quiet`.

    Raises MeshError.
    """
    with progress.shown((_COMPILING, _RUNNING), quiet=quiet) as steps:
        executable = api.compile(module)
        steps.done(_COMPILING)
        ports = executable.inputs
        arrays = random_inputs(ports, seed) if inputs is None else typed(ports, inputs)
        # Donated arguments are gone after a run; the reference runs on the numpy arrays.
        values = [pjrt.whole(result) for result in executable(*arrays)]
    ran = RunResult(
        tuple(
            ResultOfRun(name, port.dtype.name, port.spec(executable.mesh), value)
            for name, port, value in zip(_names(module), executable.outputs, values, strict=True)
        )
    )
    if on_results is not None:
        on_results(ran)
    if not check:
        return ran
    with progress.shown((_CHECKING,), quiet=quiet):
        reference, wanted = _references(module, arrays, None if inputs is None else arrays, seed)
    pairs = zip(ran.results, wanted, strict=True)
    return RunResult(tuple(replace(result, error=compare(result.value, value)) for result, value in pairs), reference)


def typed(ports: Sequence[ShardedPort], arrays: Sequence[Any]) -> list[Any]:
    """The arrays with the types of these arguments, where an archive has lost them: numpy writes a bfloat16 as two bytes."""
    return (
        [
            array.view(port.dtype) if isinstance(array, np.ndarray) and array.dtype == f"V{port.dtype.itemsize}" else array
            for port, array in zip(ports, arrays, strict=False)  # the executable says how many it takes
        ]
        + list(arrays[len(ports) :])
    )


def _names(module: ir.Module) -> list[str]:
    """The names of results: their paths in the tree that the function returns, else their numbers."""
    return [name or f"result {index}" for index, name in enumerate(names_of(module).results)]


def _summary(result: np.ndarray[Any, Any]) -> str:
    numbers = result.astype(np.complex128 if result.dtype.kind == "c" else np.float64)
    return f"sum {numbers.sum():.6g}" if result.ndim else f"{numbers:.6g}"


def check_room(ports: Sequence[ShardedPort]) -> None:
    """Raises MemoryError if the arguments need more memory than this machine has."""
    sizes = [prod(port.shape) * port.dtype.itemsize for port in ports]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if sum(sizes) > memory:
        index = max(range(len(sizes)), key=sizes.__getitem__)
        largest = f"argument {index} ({ports[index].dtype.name}{list(ports[index].shape)}) {sizes[index]:.3g}"
        raise MemoryError(f"its arguments have {sum(sizes):.3g} bytes, {largest}, and this machine {memory:.3g}")


def random_inputs(ports: Sequence[ShardedPort], seed: int) -> list[np.ndarray[Any, Any]]:
    """Inputs drawn from `seed`: normal numbers, small non-negative integers, coin tosses. Raises MemoryError."""
    check_room(ports)
    generator = np.random.default_rng(seed)
    return [_draw(generator, port) for port in ports]


def _draw(generator: np.random.Generator, port: ShardedPort) -> np.ndarray[Any, Any]:
    if port.dtype == np.bool_:
        return generator.integers(0, 2, port.shape).astype(np.bool_)
    if jax.numpy.issubdtype(port.dtype, np.integer):
        return generator.integers(0, INTEGERS, port.shape).astype(port.dtype)
    numbers = SCALE * generator.standard_normal(port.shape)
    if port.dtype.kind == "c":
        return np.asarray(numbers + 1j * SCALE * generator.standard_normal(port.shape)).astype(port.dtype)
    return np.asarray(numbers).astype(port.dtype)


def load_arrays(path: str) -> list[np.ndarray[Any, Any]]:
    """The arrays `arr_0`, `arr_1`, … of an archive that `numpy.savez` wrote.

    Raises MeshError.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            expected = [f"arr_{index}" for index in range(len(archive.files))]
            if sorted(archive.files) != sorted(expected):
                raise MeshError(f"{path}: error: expected arrays named arr_0, arr_1, …, found {', '.join(archive.files)}")
            return [archive[name] for name in expected]
    except MeshError:
        raise
    except _BAD_ARCHIVE as error:
        raise MeshError(f"{path}: error: not an archive of arrays: {error}") from None


def save_arrays(path: str, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
    """Writes an archive that `load_arrays` reads."""
    from io import BytesIO

    buffer = BytesIO()
    np.savez(buffer, *arrays)
    files.write_bytes(path, buffer.getvalue())


def compare(result: np.ndarray[Any, Any], reference: np.ndarray[Any, Any]) -> NumericError:
    """The difference of `result` from `reference`; infinite if types, shapes, or the places of NaN and infinities differ."""
    if (result.dtype, result.shape) != (reference.dtype, reference.shape):
        return NumericError(np.inf, np.inf)
    accumulator = np.complex128 if reference.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore"):
        actual, expected = result.astype(accumulator), reference.astype(accumulator)
        equal = (result == reference) | (np.isnan(actual) & np.isnan(expected))
        distance = np.abs(actual - expected) if reference.dtype.kind not in "iu" else _integer_distance(result, reference)
    if equal.all():
        return NumericError(0.0, 0.0)
    absolute = float(np.max(np.where(equal, 0, distance), initial=0.0))
    scale = float(np.max(np.abs(expected[np.isfinite(expected)]), initial=0.0))
    if np.isnan(absolute):
        absolute = np.inf
    return NumericError(absolute, absolute / scale if scale else np.inf)


def _integer_distance(actual: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The distance of integers, exact where floats would round them."""
    apart: np.ndarray[Any, Any] = np.maximum(actual, expected).astype(np.uint64) - np.minimum(actual, expected).astype(np.uint64)
    return apart


def worst(results: Sequence[np.ndarray[Any, Any]], references: Sequence[np.ndarray[Any, Any]]) -> NumericError:
    """The largest absolute and the largest relative difference of several results; infinite if their numbers differ."""
    if len(results) != len(references):
        return NumericError(np.inf, np.inf)
    return _largest([compare(*pair) for pair in zip(results, references, strict=True)])


def _largest(errors: Sequence[NumericError]) -> NumericError:
    absolute = max((difference.absolute for difference in errors), default=0.0)
    return NumericError(absolute, max((difference.relative for difference in errors), default=0.0))


def _references(
    module: ir.Module, inputs: Sequence[Any], given: Sequence[Any] | None, seed: int
) -> tuple[str, list[np.ndarray[Any, Any]]]:
    """The reference in words, and its results. A program with per-device code has no unsharded form; XLA's partitioner runs it on
    the same devices, on the `given` inputs, or on those that `seed` draws."""
    from meshbridge.tools.compare import command  # which imports this module

    if is_partitioned(module) or find_per_device(module) is None:
        return "the unsharded run", reference.unsharded(module, inputs)
    with archived(given) as archive:
        partitioner, results = command.peer_results(module, seed=seed, inputs=archive)
    return f"the run that {partitioner} partitions", results


@contextmanager
def archived(arrays: Sequence[Any] | None) -> Iterator[str]:
    """The path of an archive of the arrays, while it is needed; empty without arrays."""
    if arrays is None:
        yield ""
        return
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "inputs.npz")
        save_arrays(path, [np.asarray(array) for array in arrays])
        yield path
