"""Search: chooses a sharding for each op, as a problem of choices with costs (`solver`), and bounds the cost of any other plan"""
