"""Functions of JAX that are partitioned: those that `meshbridge.jit` makes, or all; how, and the plans that are kept."""
