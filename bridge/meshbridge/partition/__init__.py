"""Decided to partitioned: one device's program, every communication a collective of the mesh dialect."""
