"""What only LLVM's mlir-opt has: its single sweeps and test passes. Nothing of a pipeline imports it."""
