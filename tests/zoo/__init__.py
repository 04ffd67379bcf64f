"""Public reports of faults in XLA's sharding, each as a small program: see `docs/xla-faults.md`."""

from tests.zoo import failing, sending, wrong
from tests.zoo.fault import FAULTS, Fault

__all__ = ["FAULTS", "Fault", "failing", "sending", "wrong"]
