"""Accelerators as data: a file for each device, and targets, which say how many of one there are and how they are connected."""
