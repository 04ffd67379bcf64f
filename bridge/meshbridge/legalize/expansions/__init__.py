"""Ops in terms of simpler ones."""
