"""Every pass before partitioning leaves a program that is right for every reader: XLA runs it whole, without partitioning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax
import numpy as np
import pytest

from meshbridge import pipeline
from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import Pass
from meshbridge.legalize.legalize import Legalize
from meshbridge.legalize.strip_shardings import StripShardings
from meshbridge.legalize.table import PATTERNS
from meshbridge.read import formats
from meshbridge.read.import_shardings import ImportShardings
from meshbridge.runtime import pjrt
from meshbridge.tools import trial
from testdata import catalogue
from tests.operations.cases import Case, compare, examples, export
from tests.operations.differential import device_mesh
from tests.operations.pinned import CASES
from tests.operations.sample_cases import EVEN, case
from tests.operations.samples import SAMPLES, Sample

Results = list[np.ndarray]


@pytest.fixture(autouse=True)
def _wide_types() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def steps() -> tuple[Pass, ...]:
    """All passes that run on the program of global shapes, after it was read."""
    return pipeline.build(pipeline.Options(emit="annotated")).starting_at("annotated").passes


def prepared(module: ir.Module) -> Iterator[tuple[str, ir.Module]]:
    """What each pass, each pattern of `legalize`, and all of them make of a program that was read, if it is something new."""
    module = formats.copy_module(module)
    ImportShardings().run(module)
    seen = {_text(module)}
    alone = [step for step in steps() if not isinstance(step, Legalize)]
    each = [*((step.name, (step,)) for step in alone), *((name, (Legalize(only=name),)) for name in PATTERNS)]
    for name, passes in (*each, ("all passes", steps())):
        changed = formats.copy_module(module)
        pipeline.run(passes, changed)
        if (text := _text(changed)) not in seen:
            seen.add(text)
            yield name, changed


def _text(module: ir.Module) -> str:
    stripped = formats.copy_module(module)
    StripShardings().run(stripped)
    return str(stripped)


def whole(module: ir.Module, arguments: Sequence[np.ndarray]) -> Results:
    """What XLA computes on one device."""
    stripped = formats.copy_module(module)
    StripShardings().run(stripped)
    return [np.asarray(result) for result in pjrt.compile_whole(stripped, jax.devices()[0])(*arguments)]


def check_cases(cases: Sequence[Case], mesh_shape: tuple[int, ...]) -> None:
    """Every pass before partitioning on all cases in one program."""
    module = formats.unpack(export(cases, device_mesh(mesh_shape)), mlir.context()).module
    arguments = examples(cases)
    wanted = whole(module, arguments)
    counts = [len(jax.tree.leaves(jax.eval_shape(one.function, *examples([one])))) for one in cases]
    for name, changed in prepared(module):
        found, used = whole(changed, arguments), 0
        for one, count in zip(cases, counts, strict=True):
            try:
                compare(one, found[used : used + count], wanted[used : used + count])
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from None
            used += count


XLA_RUNS = [sample for sample in SAMPLES if sample.runs and sample.oracle is None]
TOGETHER = 16
GROUPS = [XLA_RUNS[start : start + TOGETHER] for start in range(0, len(XLA_RUNS), TOGETHER)]


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group[0].op)
def test_samples(group: list[Sample]) -> None:
    check_cases([case(sample, EVEN) for sample in group], EVEN)


MESHES = sorted({mesh_shape for mesh_shape, _ in CASES.values()})


@pytest.mark.parametrize("mesh_shape", MESHES, ids=str)
def test_pinned_cases(mesh_shape: tuple[int, ...]) -> None:
    """The gradient of pooling over windows of nothing but -inf is among them, in which padding wins."""
    check_cases([one for shape, one in CASES.values() if shape == mesh_shape], mesh_shape)


SMALL = ("mlp_ws1d", "cp_attn_grad", "misc_fft2", "misc_sort", "misc_cumsum", "sample_top_k", "recommender")


LARGE = ("llama_scan_fsdp", "moe_grad", "resnet_batch", "vit", "decode_seq", "accumulation", "lstm", "beam_search", "diffusion")
"""One of each family of larger programs; `make test-all` prepares the others too."""


WHOLE = [name for name in catalogue.MEASURED if name != "pipeline"]
"""Programs that mean something on one device: a pipeline says what each of several does."""


def marked(name: str) -> object:
    marks = () if name in SMALL else (pytest.mark.slow,) if name in LARGE else (pytest.mark.slow, pytest.mark.long)
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [marked(name) for name in WHOLE])
def test_programs(name: str) -> None:
    with jax.enable_x64(False):
        program = catalogue.build(name)
        arguments = [np.asarray(leaf) for leaf in jax.tree.leaves(program.example_arguments())]
        module = formats.unpack(program.export(), mlir.context()).module
    wanted = whole(module, arguments)
    for step, changed in prepared(module):
        assert trial.worst(whole(changed, arguments), wanted).relative < program.tolerance, step
