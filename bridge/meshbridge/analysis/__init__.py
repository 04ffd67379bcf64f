"""Analyses of programs: executions of ops, trip counts, known values, and the collectives of optimised HLO."""
