"""docs/shard-map.md shows what is written; tests/test_docs.py runs its example."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from tests.shard_map import table


@pytest.mark.skipif(jax.__version_info__[:2] != (0, 10), reason="the page shows what jax 0.10 traces")
def test_page_is_up_to_date(tmp_path: Path) -> None:
    """`python -m tests.shard_map.table` writes it."""
    text = table.PAGE.read_text()
    assert text == table.page(table.example(text, tmp_path))
