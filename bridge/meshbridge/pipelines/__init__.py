"""Pipelines: one program over several meshes, cut at the stages that the user marks, and run by a schedule of microbatches."""
