"""What all stages share: the one door to `jaxlib.mlir`, building IR, meshes and shardings, source locations, what a pass is."""
