"""Elementwise ops: every dimension is a parallel loop that all operands and results share."""

from __future__ import annotations

from meshbridge.ir.mlir import ir
from meshbridge.ops.rule import RuleBuilder, ShardingRule, rank_of, shape_of, sharding_rule_of
from meshbridge.ops.traits import Trait, declare

UNARY = [
    "abs",
    "cbrt",
    "ceil",
    "convert",
    "cosine",
    "count_leading_zeros",
    "exponential",
    "exponential_minus_one",
    "floor",
    "imag",
    "is_finite",
    "log",
    "log_plus_one",
    "logistic",
    "negate",
    "not",
    "popcnt",
    "real",
    "reduce_precision",
    "round_nearest_afz",
    "round_nearest_even",
    "rsqrt",
    "sign",
    "sine",
    "sqrt",
    "tan",
    "tanh",
]
BINARY = [
    "add",
    "and",
    "atan2",
    "compare",
    "complex",
    "divide",
    "maximum",
    "minimum",
    "multiply",
    "or",
    "power",
    "remainder",
    "shift_left",
    "shift_right_arithmetic",
    "shift_right_logical",
    "subtract",
    "xor",
]
MIXED = ["clamp", "select", "map"]  # some operands may be scalars
CHLO = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "bessel_i1e",
    "conj",
    "cosh",
    "digamma",
    "erf",
    "erf_inv",
    "erfc",
    "is_inf",
    "is_neg_inf",
    "is_pos_inf",
    "lgamma",
    "mulhi",
    "next_after",
    "polygamma",
    "sinh",
    "square",
    "tan",
    "zeta",
    "_asin_acos_kernel",
]
ARITH = [
    "addf",
    "addi",
    "addui_extended",
    "andi",
    "bitcast",
    "ceildivsi",
    "ceildivui",
    "cmpf",
    "cmpi",
    "convertf",
    "divf",
    "divsi",
    "divui",
    "extf",
    "extsi",
    "extui",
    "floordivsi",
    "flush_denormals",
    "fptosi",
    "fptoui",
    "index_cast",
    "index_castui",
    "maximumf",
    "maximumnumf",
    "maxnumf",
    "maxsi",
    "maxui",
    "minimumf",
    "minimumnumf",
    "minnumf",
    "minsi",
    "minui",
    "mulf",
    "muli",
    "mulsi_extended",
    "mului_extended",
    "negf",
    "ori",
    "remf",
    "remsi",
    "remui",
    "scaling_extf",
    "scaling_truncf",
    "select",
    "shli",
    "shrsi",
    "shrui",
    "sitofp",
    "subf",
    "subi",
    "subui_extended",
    "truncf",
    "trunci",
    "uitofp",
    "xori",
]
MATH = [
    "absf",
    "absi",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "ceil",
    "clampf",
    "copysign",
    "cos",
    "cosh",
    "ctlz",
    "ctpop",
    "cttz",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "fma",
    "fpowi",
    "ipowi",
    "isfinite",
    "isinf",
    "isnan",
    "isnormal",
    "log",
    "log10",
    "log1p",
    "log2",
    "powf",
    "round",
    "roundeven",
    "rsqrt",
    "sin",
    "sincos",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
]

ELEMENTWISE = frozenset(
    f"{dialect}.{name}"
    for dialect, names in (("stablehlo", [*UNARY, *BINARY, *MIXED]), ("chlo", CHLO), ("arith", ARITH), ("math", MATH))
    for name in names
)
"""Names of all elementwise ops."""


@sharding_rule_of(*ELEMENTWISE, traits=(Trait.PURE, Trait.ELEMENTWISE, Trait.FUSIBLE))
def elementwise(op: ir.Operation) -> ShardingRule:
    """One parallel loop per dimension; operands of rank 0 are scalars that every element reads."""
    build = RuleBuilder()
    dims = tuple(build.loop(size) for size in shape_of(op.results[0]))
    return build.rule([dims if rank_of(value) else () for value in op.operands], [dims] * len(op.results))


def _named(dialect: str, names: str) -> list[str]:
    return [f"{dialect}.{name}" for name in names.split()]


declare("stablehlo.map", traits=(Trait.SCALAR_REGION,))
declare(*_named("stablehlo", "negate real imag"), "chlo.conj", "arith.negf", traits=(), linear=(0,))
declare(*_named("stablehlo", "add subtract complex"), *_named("arith", "addf addi subf subi"), traits=(), linear=(0, 1))
declare("stablehlo.select", "arith.select", traits=(), linear=(1, 2))
declare("stablehlo.multiply", "arith.mulf", "arith.muli", traits=(), multilinear=(0, 1))
declare("stablehlo.divide", "arith.divf", traits=(), multilinear=(0,))  # integer division rounds: callers check the type
declare(
    *_named("stablehlo", "atan2 cbrt cosine divide exponential exponential_minus_one log log_plus_one logistic power remainder"),
    *_named("stablehlo", "rsqrt sine sqrt tan tanh"),
    traits=(Trait.EXPENSIVE,),
)
declare(
    *_named("stablehlo", "abs cbrt ceil convert divide exponential_minus_one floor imag log_plus_one multiply negate real"),
    *_named("stablehlo", "reduce_precision remainder round_nearest_afz round_nearest_even sign sine sqrt tan tanh"),
    *_named("chlo", "asin asinh atan atanh conj erf erf_inv sinh square tan"),
    traits=(Trait.ZERO_PRESERVING,),
)
declare(
    *_named("stablehlo", "abs add atan2 cbrt ceil convert cosine divide exponential exponential_minus_one floor log"),
    *_named("stablehlo", "log_plus_one logistic maximum minimum multiply negate reduce_precision remainder round_nearest_afz"),
    *_named("stablehlo", "round_nearest_even rsqrt sign sine sqrt subtract tan tanh"),
    traits=(Trait.NAN_PROPAGATING,),
)


@sharding_rule_of("stablehlo.optimization_barrier", traits=(Trait.ALIASING, Trait.FORWARDING))
def barrier(op: ir.Operation) -> ShardingRule:
    """Each operand passes through to its result. Operands share no loops."""
    build = RuleBuilder()
    dims = [tuple(build.loop(size) for size in shape_of(value)) for value in op.operands]
    return build.rule(dims, dims)


@sharding_rule_of("stablehlo.bitcast_convert", traits=(Trait.PURE, Trait.ALIASING))
def bitcast_convert(op: ir.Operation) -> ShardingRule:
    """Both sides share loops; the extra dimension of the narrower type, the parts of one element, has none."""
    source, result = shape_of(op.operands[0]), shape_of(op.results[0])
    build = RuleBuilder()
    dims = tuple(build.loop(size) for size in source[: min(len(source), len(result))])
    return build.rule([dims + ((),) * (len(source) - len(dims))], [dims + ((),) * (len(result) - len(dims))])
