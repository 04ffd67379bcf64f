"""docs/shard-map.md shows what is written, and its example runs."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from tests.shard_map import table


@pytest.mark.skipif(jax.__version_info__ < (0, 10), reason="the page shows what the newest jax traces")
def test_page_is_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m tests.shard_map.table` writes it."""
    monkeypatch.chdir(tmp_path)
    text = table.PAGE.read_text()
    assert text == table.page(table.example(text))


def test_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    program, _, called = table.blocks(table.PAGE.read_text())
    exec(compile(program + called, "model.py", "exec"), {})
    assert capsys.readouterr().out == "the same numbers\n"
