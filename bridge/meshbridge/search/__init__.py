"""Search: which sharding each op takes, as a problem of choices with costs; its solver, and a bound on what is left to gain"""
