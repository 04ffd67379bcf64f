"""How long tests wait for children."""

PATIENCE = 900
"""Seconds after which a child hangs. On a busy machine the slowest takes a tenth of them."""
