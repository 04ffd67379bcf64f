"""Cells of notebooks in source locations."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from meshbridge.ir import cells, locations, mlir
from meshbridge.ir.mlir import ir

KERNEL = "/tmp/ipykernel_4711/1234567.py"


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A process in which IPython has run a cell."""
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map={KERNEL: 3}))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[arg-type]
    return shell


def test_a_cell_has_the_number_in_front_of_it(shell: SimpleNamespace) -> None:
    assert cells.name_of(KERNEL) == "cell 3"
    assert cells.file_of("cell 3") == KERNEL
    assert cells.name_of("<ipython-input-7-0123456789ab>") == "cell 7"
    shell.compile._filename_map[KERNEL] = 5  # it has run again
    assert cells.name_of(KERNEL) == "cell 5"


def test_a_cell_of_another_process_has_a_hash() -> None:
    assert cells.name_of(KERNEL) == "unnumbered cell 1234567"
    assert cells.file_of("cell 3") == "cell 3"


@pytest.mark.parametrize("file", ["model.py", "/tmp/ipykernel_4711/model.py", "/home/ipykernel_1/x/1.py", "<string>", "cell 3"])
def test_other_files_keep_their_names(file: str, shell: SimpleNamespace) -> None:
    assert cells.name_of(file) == file


def test_locations_name_the_cell(shell: SimpleNamespace) -> None:
    with mlir.context():
        location = ir.Location.name("jit(step)/dot_general", ir.Location.file(KERNEL, 2, 9))
    for line in (locations.location_at(location), locations.user_line(location)):
        assert (line.file, line.line, line.column) == ("cell 3", 2, 9)
        assert str(line) == line.short == "cell 3, line 2"
        assert not line.is_library
    assert str(locations.SourceLocation("cell 3", 2, 9, "loss")) == "cell 3, line 2 (loss)"
