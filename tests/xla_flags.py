"""How XLA compiles in tests. Imports no JAX, so that flags can be set before anything does."""

from importlib.metadata import version

_HAS_FUSION_EMITTERS = tuple(int(part) for part in version("jaxlib").split(".")[:2]) < (0, 11)

QUICK_TO_COMPILE = (
    # Programs of tests are small: compiling them takes longer than running them.
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    # One piece of LLVM IR for each program instead of up to 32, and loops as XLA writes them without MLIR: a quarter less time.
    "--xla_cpu_parallel_codegen_split_count=1",
    *(("--xla_cpu_use_fusion_emitters=false",) if _HAS_FUSION_EMITTERS else ()),
)
