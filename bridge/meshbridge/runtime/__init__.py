"""Running programs: PJRT, and the unsharded program that results are compared with."""
