"""Exact verification of partitioned programs: both programs are evaluated over a finite field and compared without tolerance.

It shares no code with the partitioner, the lowering or XLA: only the door `meshbridge.ir.mlir`, `meshbridge.text` and numpy are
imported.
"""
