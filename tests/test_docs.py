"""Python that the documents show runs as pasted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["README.md", "docs/python-api.md"])
def test_python_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The blocks of one document follow each other."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / name).read_text(), re.M | re.S)
    assert blocks
    exec(compile("\n".join(blocks), name, "exec"), {})
    assert capsys.readouterr().out
