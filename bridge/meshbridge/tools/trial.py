"""Runs a program on random or given inputs, and compares it with the unsharded program on one device."""

from __future__ import annotations

import argparse
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import numpy as np

from meshbridge import api
from meshbridge.dialect.module_mesh import is_partitioned
from meshbridge.dialect.names import names_of
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.legalize.strip_shardings import find_per_device
from meshbridge.read import files
from meshbridge.runtime import pjrt, reference
from meshbridge.runtime.pjrt import ShardedPort
from meshbridge.tools import console, progress

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


_COMPILING, _RUNNING, _CHECKING = "partitioning and compiling", "running", "checking"


def run(module: ir.Module, options: argparse.Namespace) -> int:
    """The body of `meshbridge run`; see `commands` for the options. Returns the exit status.

    Raises MeshError.
    """
    with progress.shown((_COMPILING, _RUNNING), quiet=options.quiet) as steps:
        executable = api.compile(module)
        steps.done(_COMPILING)
        inputs = random_inputs(executable.inputs, options.seed) if options.inputs is None else load_arrays(options.inputs)
        # Donated arguments are gone after a run; the reference runs on the numpy arrays.
        results = [pjrt.whole(result) for result in executable(*inputs)]
    for name, port, result in zip(_names(module), executable.outputs, results, strict=True):
        console.say(f"{name}: {port.dtype.name}{list(port.shape)} {port.spec(executable.mesh)} {_summary(result)}")
    if options.outputs is not None:
        save_arrays(options.outputs, results)
    return _check(module, inputs, results, options) if options.check else 0


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
    errors = [compare(*pair) for pair in zip(results, references, strict=True)]
    absolute = max((difference.absolute for difference in errors), default=0.0)
    return NumericError(absolute, max((difference.relative for difference in errors), default=0.0))


def _check(module: ir.Module, inputs: Sequence[Any], results: Sequence[np.ndarray[Any, Any]], options: argparse.Namespace) -> int:
    with progress.shown((_CHECKING,), quiet=options.quiet):
        who, references = _references(module, inputs, options)
    difference = worst(results, references)
    console.say(f"largest difference from {who}: absolute {difference.absolute:.3g}, relative {difference.relative:.3g}")
    if difference.relative > options.tolerance:
        errors = [compare(*pair).relative for pair in zip(results, references, strict=True)]
        differs = f"{_names(module)[errors.index(max(errors))]} differs by {max(errors):.3g} relative"
        raise MeshError(f"error: {differs}, expected at most {options.tolerance:.3g}")
    return 0


def _references(module: ir.Module, inputs: Sequence[Any], options: argparse.Namespace) -> tuple[str, list[np.ndarray[Any, Any]]]:
    """The reference in words, and its results. A program with per-device code has no unsharded form; XLA's partitioner runs it on
    the same devices."""
    from meshbridge.tools.compare import command  # which imports this module

    if is_partitioned(module) or find_per_device(module) is None:
        return "the unsharded run", reference.unsharded(module, inputs)
    partitioner, results = command.peer_results(module, seed=options.seed, inputs=options.inputs or "")
    return f"the run that {partitioner} partitions", results
