"""Folds keep programs valid, do nothing the second time, and never take away what a function returns."""

from __future__ import annotations

from hypothesis import given

from meshbridge.collectives.canonicalize import Canonicalize, Cse
from meshbridge.dialect import folds, verifier
from meshbridge.dialect.assembly import read, write
from meshbridge.ir.mlir import context, ir, walk_all
from tests.dialect.programs import FORMS, program, random_programs

CONTEXT = context()


def returning_all(text: str) -> ir.Module:
    """The program with every tensor that a mesh operation makes used by an operation that nobody may erase."""
    module = read(text, "a.mlir", CONTEXT)
    with CONTEXT, ir.Location.unknown():
        for op in walk_all(module):
            if op.name.startswith("mesh.") and op.results and op.name != "mesh.sharding":
                ip = ir.InsertionPoint.at_block_terminator(op.block)
                ir.Operation.create("test.use", operands=list(op.results), ip=ip)
    return module


@given(random_programs())
def test_passes_settle_at_once_and_keep_programs_valid(text: str) -> None:
    module = returning_all(text)
    uses = sum(op.name == "test.use" for op in walk_all(module))
    for step in (Canonicalize(), Cse()):
        step.run(module)
        assert verifier.diagnostics(module) == []
        once = write(module)
        step.run(module)
        assert write(module) == once
    assert sum(op.name == "test.use" for op in walk_all(module)) == uses
    assert not folds.simplify(module)


@given(random_programs())
def test_unused_operations_go(text: str) -> None:
    module = read(text, "a.mlir", CONTEXT)
    Canonicalize().run(module)
    left = {op.name for op in walk_all(module) if op.name.startswith("mesh.")}
    # Annotations of definitions say something even where nothing uses them.
    assert left <= {"mesh.mesh", "mesh.sharding", "mesh.shard"}


def test_memrefs_are_left_alone() -> None:
    """An update of a buffer has an effect, used or not."""
    text = program(FORMS["update_halo"][0]).replace("tensor<4x8xf32>", "memref<4x8xf32>")
    module = read(text, "a.mlir", CONTEXT)
    Canonicalize().run(module)
    Cse().run(module)
    assert "mesh.update_halo" in write(module)
