"""docs/shard-map.md shows what is written; tests/test_docs.py runs its example."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emit.python import table
from tests.versions import OF_THE_PAGES


@pytest.mark.skipif(not OF_THE_PAGES, reason="the page shows what jax 0.10.2 traces")
def test_page_is_up_to_date(tmp_path: Path) -> None:
    """`python -m tests.emit.python.table` writes it."""
    text = table.PAGE.read_text()
    assert text == table.page(table.example(text, tmp_path))
