"""Every function that JAX compiles, partitioned: a codebase that knows nothing of meshbridge, as it stands.

Functions that were jitted before count as well, and so do derivatives, loops and single operations that JAX compiles by itself.
What runs on one device is left to JAX.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from meshbridge.jitted.plans import Planned, Planning
from meshbridge.runtime import lowerings


def install(planning: Planning) -> None:
    """From now on, and in all threads."""
    lowerings.replace_computations(Planned)
    lowerings.set_everywhere(planning)


@contextmanager
def patched(planning: Planning) -> Iterator[Sequence[Planned]]:
    """Meanwhile, and in all threads; gives what is partitioned, in order."""
    lowerings.replace_computations(Planned)
    before = lowerings.set_everywhere(planning)
    try:
        with Planned.noted() as found:
            yield found
    finally:
        lowerings.set_everywhere(before)
