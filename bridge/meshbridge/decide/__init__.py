"""Sharding propagation: the graph of a function as small values (`graph`), choosing options (`choice`), spreading annotations
to a fixed point (`spread`), settling every op (`settle`), and writing the decisions back into the IR (`annotate`)."""
