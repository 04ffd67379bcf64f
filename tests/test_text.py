"""Sizes for people."""

from __future__ import annotations

import pytest

from meshbridge.text import did_you_mean, size_text, table


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.7, "1.0 KB"),
        (98_304, "98.3 KB"),
        (999_949, "999.9 KB"),
        (999_951, "1.0 MB"),
        (29_418_500, "29.4 MB"),
        (2_500_000_000, "2.5 GB"),
        (1_234_500_000_000, "1,234.5 GB"),
    ],
)
def test_size_text(size: float, text: str) -> None:
    assert size_text(size) == text


def test_a_table_is_text_in_a_notebook_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """There, rich displays what it prints, and leaves the file empty."""
    expected = table([("a", "1"), ("bb", "22")], left={0})
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert table([("a", "1"), ("bb", "22")], left={0}) == expected == "a    1\nbb  22"


@pytest.mark.parametrize(
    ("name", "text"),
    [("h10", "; did you mean 'h100'?"), ("nuetral", "; did you mean 'neutral'?"), ("abacus", ""), ("", "")],
)
def test_did_you_mean(name: str, text: str) -> None:
    assert did_you_mean(name, iter(["v5e", "h100", "neutral"])) == text
