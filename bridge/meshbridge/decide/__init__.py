"""Decides shardings of a legal program: seeds, propagates, refines and assigns them, and returns `Decisions`.

`build_graph` builds a graph of small values and seeds it with annotations, `choice` prices options, `propagate`, `refine` and
`assign` decide; `annotate` writes the `decisions` into the IR and `read_annotations` reads them back.
"""
