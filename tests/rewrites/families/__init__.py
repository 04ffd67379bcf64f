"""Generators of programs, one for each pass that rewrites."""
