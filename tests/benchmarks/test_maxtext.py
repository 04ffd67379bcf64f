"""`make bench-maxtext`: the step that is predicted, and what its tables make of the rows."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import pytest

import meshbridge
from benchmarks import maxtext
from benchmarks.maxtext import DEFAULTS, Row, fitted, of_rate, published
from meshbridge.machines.target import of_machine
from testdata.maxtext import Model, Parallelism, Run, export, training_step

SMALL = Model(width=256, hidden=512, heads=4, key_heads=2, layers=3, vocabulary=1024)
MIXED = Model(width=256, hidden=512, heads=4, key_heads=2, layers=3, vocabulary=1024, experts=4)
ALL = ("query", "key", "value", "context", "out_proj", "mlpwi", "mlpwo")


@pytest.mark.slow
@pytest.mark.parametrize("how", [Parallelism(fsdp=8), Parallelism(data=2, fsdp=2, tensor=2)])
@pytest.mark.parametrize(("saved", "again", "fused"), [(ALL, 0, True), ((), 1, False)])
def test_what_a_step_computes(how: Parallelism, saved: tuple[str, ...], again: int, fused: bool) -> None:
    """Each product forwards and for two gradients, but that of the tokens' rows for one; where nothing is kept those of layers
    once more, but the last, which no gradient needs. Of attention's products half."""
    run = Run(2, 256, saved, fused=fused)
    report = meshbridge.report(export(training_step(SMALL, how, run)), machine="v5p:2x2x2")
    matrix = SMALL.width * SMALL.hidden
    layer = SMALL.width * SMALL.head * (2 * SMALL.heads + 2 * SMALL.key_heads) + 3 * matrix
    each = SMALL.layers * (3 * layer + again * (layer - matrix)) + (2 + 3) * SMALL.width * SMALL.vocabulary
    scores = run.batch * SMALL.heads * run.length**2 * SMALL.head
    attention = SMALL.layers * scores * (2 + (5 if fused else 7) + again * 2)
    assert report.work.contractions == pytest.approx(2 * run.batch * run.length * each + attention)
    assert report.seconds is not None


@pytest.mark.slow
def test_a_mixture_has_slots_for_a_quarter_more() -> None:
    run = Run(2, 512, ALL)
    dense, mixed = (
        meshbridge.report(export(training_step(model, Parallelism(fsdp=4, expert=2), run)), machine="v5p:2x2x2")
        for model in (SMALL, MIXED)
    )
    mlp = 3 * 2 * run.batch * run.length * SMALL.layers * 3 * SMALL.width * SMALL.hidden
    more = mixed.work.contractions - dense.work.contractions
    assert 1.5 * mlp < more < 4 * mlp  # 2.5 in place of one, and the products that bring tokens to their slots and back
    assert "all_to_all" in mixed.bytes_by_kind()


def test_sizes_are_those_of_the_names() -> None:
    for name, model in DEFAULTS.items():
        weights = jax.tree.leaves(training_step(model, Parallelism(), Run(1, 1)).arguments[0])
        assert sum(each.bytes for each in weights) / 4 == pytest.approx(float(name[:-1]) * 1e9, rel=0.1)


def test_rows_are_what_is_published() -> None:
    """Tokens per second and chip of three logs, and the share of the peak that a table has beside its teraflops."""
    rows = {(row.title, row.machine): row for row in published()}
    assert len(rows) == len(list(published()))
    for title, machine, rate in (
        ("Llama 3.1 8B", "v6e:16x16", 7207.336),
        ("Llama 3.1 70B", "v6e:8x8", 876.736),
        ("Mixtral 8x22B", "v6e:16x16", 1326.307),
    ):
        row = rows[title, machine]
        assert row.tokens_per_second(row.published) == pytest.approx(rate, rel=1e-3)
    for row in rows.values():
        assert row.how.devices == of_machine(row.machine).devices
        training_step(row.model, row.how, row.run)
    model, run = DEFAULTS["32B"], Run(7, 2048)
    weights = model.layers * model.width * (4 * model.width + 3 * model.hidden) + model.width * model.vocabulary
    scores = 2 * run.length * model.layers * model.width
    assert of_rate(328, model, run) == pytest.approx(7 * 2048 * 6 * (weights + scores) / 328e12)


@dataclass(frozen=True)
class Fake(Row):
    computing: float = 0.0
    waiting: float = 0.0

    def seconds(self, efficiency: float) -> float:
        return self.computing / efficiency + self.waiting


def test_the_constant_makes_the_mean_right() -> None:
    def row(published: float, computing: float, waiting: float, title: str = "step") -> Row:
        return Fake(title, "v5p:2x2x2", SMALL, Parallelism(fsdp=8), Run(1, 8), published, computing=computing, waiting=waiting)

    rows = [row(10, 4, 2), row(20, 9, 2)]
    efficiency = fitted(rows)
    ratios = [each.seconds(efficiency) / each.published for each in rows]
    assert ratios[0] * ratios[1] == pytest.approx(1, rel=1e-4)
    assert fitted([row(10, 4, 2)]) == pytest.approx(0.5, rel=1e-4)
    rows = [row(10, 5, 0, "a"), row(10, 5, 0, "b"), row(10, 5, 0, "c"), row(10, 7, 0, "d")]
    lines = maxtext.page(rows).splitlines()
    assert lines[2] == "| v5p | 0.500 | 2 rows, from the first on | 1.18 (1.00 to 1.40) | 1 of 2 |"
    assert maxtext.steps(rows).splitlines()[-1] == "| d | v5p:2x2x2 | 8 | 10.00 | 1 | 1.40 |  |"
