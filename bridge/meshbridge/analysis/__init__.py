"""What can be read off a program: how often an op is executed, trip counts, known values, the collectives of optimised HLO."""
