"""The page of a pipeline: whole without a network, every name escaped, and a bar for each task that takes time."""

from __future__ import annotations

from dataclasses import replace

from meshbridge.pipelines.prediction import Crossing, FragmentCost, PipelineReport, StageCost
from meshbridge.pipelines.schedules import named

HOSTILE = "</title><script>alert(1)</script>&{{ 7 * 7 }}"


def page(report: PipelineReport) -> str:
    """The page of a report on a program with a hostile name."""
    return report.to_html(HOSTILE)


def reported() -> PipelineReport:
    """A report on two stages, without a topology."""
    schedule = named("zero-bubble", 2, 2, 4)
    return PipelineReport(
        "zero-bubble",
        "neutral",
        4,
        2,
        4,
        (FragmentCost("forward0", 0, 4, 1e3, 2e6, None),),
        (StageCost(0, 5e6, 2, None), StageCost(1, 4e6, 2, None)),
        (Crossing(0, 1, 4, 1e6, None),),
        None,
        None,
        None,
        schedule.even_timeline().runs,
    )


def test_each_task_is_a_bar() -> None:
    text = page(reported())
    assert text.count("<rect") == len(reported().runs) == 2 * 3 * 4
    assert "gradients of weights, microbatch 3, chunk 1: 1 units" in text
    assert "Every forward pass takes one unit of time" in text
    assert '<td class="number">5.0 MB</td>' in text


def test_predicted_times_are_shown() -> None:
    timed = replace(reported(), seconds=0.5, bubble=0.25, bubble_by_formula=0.2)
    assert "Bubble 25.0%, by formula 20.0%." in page(timed)
    assert "forward, microbatch 0, chunk 0: 1.0 s" in page(timed)


def test_names_are_escaped_and_nothing_is_loaded() -> None:
    text = page(reported())
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "{{ 7 * 7 }}" in text
    assert "http://" not in text
    assert "https://" not in text
