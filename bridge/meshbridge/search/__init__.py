"""Search: chooses a sharding for each op, as a problem of choices with costs; its solver, and a lower bound on the cost"""
