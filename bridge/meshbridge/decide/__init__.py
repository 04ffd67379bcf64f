"""Legal to decided: shardings are seeded, propagated, refined and assigned, and the `Decisions` say all that follows from them.

`build_graph` makes a graph of small values and seeds it with annotations, `choice` prices options, `propagate`, `refine` and
`assign` decide; `decisions` is what they make, which `annotate` writes into the IR and `read_annotations` reads back.
"""
