"""Collectives of one iteration of a loop beside the computation of another."""
