"""Accelerators as data: a file for each device; what a program is compiled for; on which links the axes of a mesh are."""
