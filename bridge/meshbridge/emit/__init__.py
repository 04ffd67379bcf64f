"""Partitioned programs written as source code: `python/` writes them as Python, below `jax.shard_map`."""
