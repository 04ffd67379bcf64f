"""Writes a partitioned program as readable Python: one function on one device's shards, below `jax.shard_map`.

`program` writes the file and `scope` one of its functions; `table` maps operations to their writers, one file per family. `code`
has expressions and lays them out on lines.
"""
