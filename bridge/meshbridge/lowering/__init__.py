"""Lowers mesh collectives to StableHLO, one file per family.

`site` holds the table of lowerings and what each of them gets; `blocks` drives them, and `lower_collectives` is the pass.
"""
