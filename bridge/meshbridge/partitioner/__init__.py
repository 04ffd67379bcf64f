"""Partitions a decided program: one device's program, with every communication as a collective of the mesh dialect."""
