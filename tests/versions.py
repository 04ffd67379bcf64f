"""What the JAX at hand cannot do by itself, so that nothing can be compared with it."""

from __future__ import annotations

import jax

RUNS_SCAN = jax.__version_info__ >= (0, 10, 2)
"""Whether its jaxlib runs `chlo.scan` on CPUs: before 0.10 there is none, and 0.10.0 and 0.10.1 have no implementation."""

CALLS_WITH_KEYS = jax.__version_info__ >= (0, 10, 2)
"""Whether an exported function that takes sharded keys can be called: before, JAX constrains them by the rank that users see."""

PLACES_ON_HOSTS = jax.__version_info__ >= (0, 10, 2)
"""Whether XLA's CPU backend has memory of hosts: before, it drops placements or refuses them."""

OF_THE_PAGES = (0, 10, 2) <= jax.__version_info__ < (0, 11)
"""Whether this is the series whose operations and traces the generated pages list."""
