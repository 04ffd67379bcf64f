"""Programs in the sizes that people train and serve: bfloat16, exported from shapes, compiled for accelerators, never run.

Each stands on a number of devices, and comes twice: with constraints on its activations, as practitioners write them, and with
the shardings of its inputs and parameters only. `python -m testdata.realistic.export` writes them.
"""
