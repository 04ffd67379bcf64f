"""Deciding shardings: a graph of small values (`graph`), options (`choice`), annotations propagated to a fixed point
(`propagate`), refined (`refine`), assigned to every op (`assign`), and written back into the IR (`annotate`)."""
