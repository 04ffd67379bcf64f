"""Writes partitioned programs as source code: `emit/python/` as Python, below `jax.shard_map`."""
