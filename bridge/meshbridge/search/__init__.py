"""Search: which sharding each op takes, as a problem of choices with costs, and its solver with a bound on what is left to gain"""
