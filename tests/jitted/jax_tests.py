"""JAX's own tests with every function partitioned: a plugin of pytest, for a checkout of the tag of JAX that is installed.

`make test-jax JAX_TESTS=PATH` runs them. None of their code is here.
"""

from __future__ import annotations


def pytest_collection_finish() -> None:
    """Once JAX's settings are flags of absl, which JAX's tests make of them when they are imported."""
    import meshbridge

    meshbridge.install()
