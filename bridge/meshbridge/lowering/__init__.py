"""Mesh collectives as StableHLO: what each operation becomes, one file per family.

`registry` maps operation names to lowerings, `site` is what a lowering works with, `groups` writes device groups and
`position` computes where a device stands in the mesh. The pass over them is `passes.lower_collectives`.
"""
