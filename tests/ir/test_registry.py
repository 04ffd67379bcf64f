"""The table that passes, rules, lowerings and converters are entered in."""

import pytest

from meshbridge.ir.mlir import MeshError
from meshbridge.ir.registry import Registry


def described() -> None:
    """Says
    something."""


def silent() -> None:
    pass


def test_registry() -> None:
    table: Registry[str, object] = Registry("pass")
    assert table.register("z", "b")(described) is described
    table.add("z", described)  # a module that is imported twice
    assert list(table) == ["z", "b"]
    assert list(table.summaries().items()) == [("b", "Says something."), ("z", "Says something.")]
    with pytest.raises(MeshError, match=r"^error: pass 'z' is registered already$"):
        table.add("z", Registry)
    with pytest.raises(MeshError, match=r"^error: pass 'a' has no docstring or summary$"):
        table.add("a", silent)
    assert list(table) == ["z", "b"]


def test_what_a_test_adds_or_removes_is_undone() -> None:
    table: Registry[str, str] = Registry("name", summary=str)
    table.add("kept", "a name")
    with table.restored():
        table.add("added", "another")
        del table["kept"]
    assert dict(table) == {"kept": "a name"}
