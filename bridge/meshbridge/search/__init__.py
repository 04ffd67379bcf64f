"""Search: shardings chosen, and how much faster any others could be."""
