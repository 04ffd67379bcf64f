"""Accelerators as data: a file for each device; targets, which say how many of one there are; where a mesh lies on them."""
