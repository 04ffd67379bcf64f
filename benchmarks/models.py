"""Models of other people's libraries compiled for GPUs that need not be there: partitioned by meshbridge, and by Shardy.

From the repository's root: `python -m benchmarks.models [--models NAME…] [--schemes NAME…] [--page FILE]`. The models are tiny:
the table shows how many collectives a plan needs, what it computes twice, and what it holds. `make bench-models` writes
the means and the notable losses into docs/models.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import marked
from benchmarks.cases import RECORDS, Case, record_of, recorded
from benchmarks.target_tables import Figure, summary, tables
from benchmarks.targets import measure
from meshbridge.machines.target import parse
from meshbridge.tools.compare.contestants import OURS, PEER
from testdata.models.catalogue import models
from testdata.models.model import SCHEMES

COMMAND = "make bench-models"
TARGET = "gpu:h100:1x1x8"

NOTABLE = 1.25
"""The page shows a row if one of its figures is more than so many times Shardy's."""


@dataclass(frozen=True)
class ModelCase(Case):
    """A model under a scheme, which stands where programs have their annotation."""

    @property
    def record(self) -> Path:
        """The file that holds its figures."""
        return RECORDS / f"models.{self.target.text.replace(':', '_')}.json"

    @property
    def exporting(self) -> list[str]:
        """The Python command that writes the model."""
        said = ["--scheme", self.annotation, "--platform", self.platform]
        return ["-m", "testdata.models.export", str(self.program), self.name, *said]


FIGURES = (
    Figure("wire KB", "wire_bytes", 1e3, 1),
    Figure("collectives", "executed"),
    Figure("MFLOP", "flops", 1e6, 1),
    Figure("temporaries KB", "temporary_bytes", 1e3),
    Figure("modelled us", "modelled", 1e-3),
)


def on_record() -> list[ModelCase]:
    """The cases of which figures are on record, those of a scheme together."""
    names = {key.partition(", ")[0] for key in record_of(ModelCase("", "", parse(TARGET)).record)}
    return [ModelCase(name, scheme, parse(TARGET)) for scheme in SCHEMES for name in sorted(names)]


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 1 if our program did not compile somewhere."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", metavar="NAME", help="default: all of testdata/models")
    parser.add_argument("--schemes", nargs="+", choices=list(SCHEMES), default=list(SCHEMES))
    parser.add_argument("--limit", type=int, default=300, metavar="SECONDS", help="what one compilation may take (default: 300)")
    parser.add_argument("--keep", action="store_true", help="take what is on record, where it is")
    parser.add_argument("--ours", action="store_true", help="the same, but of XLA with Shardy alone")
    parser.add_argument("--measured", action="store_true", help="measure nothing, show what is on record")
    parser.add_argument("--page", type=Path, metavar="FILE", help="the Markdown page that holds the means and the notable losses")
    options = parser.parse_args(argv)
    if options.measured:
        found = recorded(on_record())
    else:
        kept = [PEER] if options.ours else [OURS, PEER] if options.keep else []
        names = options.models or list(models())
        cases = [ModelCase(name, scheme, parse(TARGET)) for scheme in options.schemes for name in names]
        found = {case: measure(case, options.limit, kept=kept) for case in cases}
    print(tables(found, FIGURES))
    if options.page:
        text = summary(recorded(on_record()), FIGURES, losses=NOTABLE)
        options.page.write_text(marked.replaced(options.page, "models", COMMAND, text))
    return 1 if any(both[OURS].get("error") for both in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
