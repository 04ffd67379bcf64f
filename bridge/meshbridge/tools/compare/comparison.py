"""What a comparison finds: the figures of all contestants on one program, run or compiled for a target."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshbridge.machines.machine import OptionValue
from meshbridge.machines.target import Target
from meshbridge.text import Tabular, public
from meshbridge.tools.compare import text
from meshbridge.tools.compare.figures import Figures


@public
@dataclass(frozen=True, repr=False)
class Comparison(Tabular):
    """All contestants on one program. `reference` names the reference of the outputs; `remark` says why it is not the unsharded
    run, if so.
    """

    devices: int
    reference: str
    remark: str
    figures: dict[str, Figures]

    @property
    def headline(self) -> str:
        """What each contestant sends."""
        return f"on {self.devices} virtual CPU devices {text.sent(self.figures)}"

    def table(self) -> str:
        """A column per contestant, and remarks below."""
        return text.comparison_table(self)

    def to_json(self) -> str:
        """The comparison as docs/targets.md describes it."""
        return text.as_json(self)


@public
@dataclass(frozen=True, repr=False)
class TargetComparison(Tabular):
    """All contestants compiled for one target, of which the program uses the first `used` devices."""

    target: Target
    used: int
    figures: dict[str, Figures]
    compiler_options: dict[str, dict[str, OptionValue]] = field(default_factory=dict)
    "By contestant, XLA's options beside its defaults."
    program: str = ""
    "A hash of the program for the target's platform, without locations."

    @property
    def headline(self) -> str:
        """What each contestant sends."""
        return f"for {self.target.text} {text.sent(self.figures)}"

    def table(self) -> str:
        """A column per contestant, and remarks below."""
        return text.target_table(self)

    def to_json(self) -> str:
        """The comparison as docs/targets.md describes it: that of one target among several."""
        return text.targets_as_json([self])
