"""Collectives pinned to the order that the predicted schedule gives them."""
