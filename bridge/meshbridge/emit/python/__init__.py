"""A partitioned program as Python that people read: one function on one device's shards, below `jax.shard_map`.

`program` writes the file, `scope` one function of it; `table` maps operations to what writes them, one file per family. What an
expression is, `code` says, and how it is laid out on lines.
"""
