"""The shared base of all stages: access to `jaxlib.mlir`, IR building, meshes and shardings, source locations, passes."""
