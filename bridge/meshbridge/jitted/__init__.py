"""Functions that `meshbridge.jit` makes: what a call is compiled for, the plans that are kept, calls within traced functions."""
