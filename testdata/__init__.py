"""Real programs: models as users write them, with their shardings, and the artifacts that jax.export makes of them."""
