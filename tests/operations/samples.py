"""A sample of every op of StableHLO and CHLO that is not refused: `docs/status.md` is made of them, `test_samples.py` runs them.

`made("stablehlo.add", "f32[6,8] f32[6,8] -> f32[6,8]")` is one op in a function of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxlib.mlir.dialects import chlo

from meshbridge.ir.mlir import ir, parse
from tests.operations.raw import raw, tensor
from tests.versions import RUNS_SCAN

Type = tuple[tuple[int, ...], str]
"""Shape and dtype."""


@dataclass(frozen=True)
class Sample:
    """One op in a function: `body` reads %0, %1, … and ends by defining %r (%r#0, … for several results)."""

    op: str
    body: str
    operands: tuple[Type, ...]
    results: tuple[Type, ...]
    values: tuple[str | int, ...] = ()
    "What the operands hold, as tests.operations.cases.Operand says it; `normal` if left out."
    oracle: Callable[..., Any] | None = None
    "The same in JAX, where XLA cannot run the op itself."
    runs: bool = True
    "Whether JAX can export it and XLA, or the oracle, run it on CPU."

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The sample as a JAX function."""
        return raw(self.body, self.operands, self.results)

    def module(self, ctx: ir.Context) -> ir.Module:
        """The sample as a module."""
        arguments = ", ".join(f"%{index}: {tensor(*operand)}" for index, operand in enumerate(self.operands))
        types = ", ".join(tensor(*result) for result in self.results)
        values = ", ".join(f"%r#{index}" for index in range(len(self.results))) if len(self.results) > 1 else "%r"
        text = f"func.func @main({arguments}) -> ({types}) {{\n{self.body}\nreturn {values} : {types} }}"
        return parse(text, f"{self.op}.mlir", ctx)


DTYPES = {
    "f32": "float32",
    "i1": "bool",
    "i32": "int32",
    "ui8": "uint8",
    "ui16": "uint16",
    "ui32": "uint32",
    "ui64": "uint64",
    "c64": "complex64",
    "bf16": "bfloat16",
}


def types(text: str) -> tuple[Type, ...]:
    """`f32[6,8] i32[]` as shapes and dtypes."""
    found = re.findall(r"(\w+)\[([\d,]*)\]", text)
    return tuple((tuple(int(size) for size in sizes.split(",") if size), DTYPES[kind]) for kind, sizes in found)


def written(name: str, signature: str, body: str, **options: Any) -> Sample:
    """A sample whose body is written out."""
    operands, results = (types(side) for side in signature.split("->"))
    return Sample(name, body, operands, results, **options)


def made(name: str, signature: str, attributes: str = "", region: str = "", **options: Any) -> Sample:
    """A sample in the op's generic form."""
    operands, results = (types(side) for side in signature.split("->"))
    names = ", ".join(f"%{index}" for index in range(len(operands)))
    given, back = (", ".join(tensor(*kind) for kind in kinds) for kinds in (operands, results))
    head = "%r" if len(results) == 1 else f"%r:{len(results)}"
    inside = f" ({{ {region} }})" if region else ""
    body = f'{head} = "{name}"({names}){inside} {{{attributes}}} : ({given}) -> ({back})'
    return Sample(name, body, operands, results, **options)


def reducer(name: str, kind: str = "f32") -> str:
    """The region of a reduction by one op."""
    scalar = f"tensor<{kind}>"
    return f"^bb0(%a: {scalar}, %b: {scalar}):\n%s = stablehlo.{name} %a, %b : {scalar}\nstablehlo.return %s : {scalar}"


MATRIX = "f32[6,8]"
_POSITIVE = {"values": ("positive", "positive")}


def _elementwise() -> list[Sample]:
    floats = (
        "abs cbrt ceil cosine exponential exponential_minus_one floor logistic negate round_nearest_afz round_nearest_even sign"
    )
    positive = "log log_plus_one rsqrt sqrt"
    integers = "count_leading_zeros not popcnt"
    samples = [made(f"stablehlo.{name}", f"{MATRIX} -> {MATRIX}") for name in f"{floats} sine tan tanh".split()]
    samples += [made(f"stablehlo.{name}", f"{MATRIX} -> {MATRIX}", **_POSITIVE) for name in positive.split()]
    samples += [made(f"stablehlo.{name}", "i32[6,8] -> i32[6,8]") for name in integers.split()]
    pairs = "add atan2 divide maximum minimum multiply power remainder subtract"
    samples += [made(f"stablehlo.{name}", f"{MATRIX} {MATRIX} -> {MATRIX}", **_POSITIVE) for name in pairs.split()]
    bits = "and or xor shift_left shift_right_arithmetic shift_right_logical"
    samples += [made(f"stablehlo.{name}", "i32[6,8] i32[6,8] -> i32[6,8]", **_POSITIVE) for name in bits.split()]
    compare = "comparison_direction = #stablehlo<comparison_direction LT>"
    return [
        *samples,
        made("stablehlo.clamp", f"f32[] {MATRIX} f32[] -> {MATRIX}"),
        made("stablehlo.compare", f"{MATRIX} {MATRIX} -> i1[6,8]", compare),
        made("stablehlo.complex", f"{MATRIX} {MATRIX} -> c64[6,8]"),
        made("stablehlo.convert", f"{MATRIX} -> bf16[6,8]"),
        made("stablehlo.imag", "c64[6,8] -> f32[6,8]"),
        made("stablehlo.real", "c64[6,8] -> f32[6,8]"),
        made("stablehlo.is_finite", f"{MATRIX} -> i1[6,8]"),
        made("stablehlo.map", f"{MATRIX} {MATRIX} -> {MATRIX}", "dimensions = array<i64: 0, 1>", reducer("subtract")),
        made("stablehlo.optimization_barrier", f"{MATRIX} f32[8] -> {MATRIX} f32[8]"),
        made("stablehlo.reduce_precision", f"{MATRIX} -> {MATRIX}", "exponent_bits = 5 : i32, mantissa_bits = 7 : i32"),
        made("stablehlo.select", f"i1[6,8] {MATRIX} {MATRIX} -> {MATRIX}"),
        made("stablehlo.bitcast_convert", f"{MATRIX} -> ui8[6,8,4]"),
        made("stablehlo.bitcast_convert", "ui16[6,8,2] -> ui32[6,8]"),
    ]


def _chlo() -> list[Sample]:
    ones = "acos acosh asin asinh atan atanh bessel_i1e cosh digamma erf erf_inv erfc lgamma sinh square tan"
    samples = [made(f"chlo.{name}", f"{MATRIX} -> {MATRIX}", **_POSITIVE) for name in ones.split()]
    samples += [made(f"chlo.{name}", f"{MATRIX} -> i1[6,8]") for name in ("is_inf", "is_neg_inf", "is_pos_inf")]
    samples += [
        made(f"chlo.{name}", f"{MATRIX} {MATRIX} -> {MATRIX}", **_POSITIVE) for name in ("next_after", "polygamma", "zeta")
    ]
    pairs = "add atan2 divide maximum minimum multiply next_after polygamma power remainder subtract zeta"
    samples += [made(f"chlo.broadcast_{name}", f"{MATRIX} f32[8] -> {MATRIX}", **_POSITIVE) for name in pairs.split()]
    bits = "and or xor shift_left shift_right_arithmetic shift_right_logical"
    samples += [made(f"chlo.broadcast_{name}", "i32[6,8] i32[8] -> i32[6,8]", **_POSITIVE) for name in bits.split()]
    compare = "comparison_direction = #chlo<comparison_direction LT>"
    return [
        *samples,
        made("chlo._asin_acos_kernel", "c64[6,8] -> c64[6,8]"),
        made("chlo.conj", "c64[6,8] -> c64[6,8]"),
        *_high_product(),
        made("chlo.broadcast_compare", f"{MATRIX} f32[8] -> i1[6,8]", compare),
        made("chlo.broadcast_complex", f"{MATRIX} f32[8] -> c64[6,8]"),
        made("chlo.broadcast_select", f"i1[6,8] f32[8] f32[] -> {MATRIX}", oracle=jnp.where, runs=False),
        written(
            "chlo.constant", f"{MATRIX} -> {MATRIX}", _constant('"chlo.constant"() {value = dense<2.0> : tensor<6x8xf32>} : ()')
        ),
        written(
            "chlo.constant_like",
            f"{MATRIX} -> {MATRIX}",
            _constant('"chlo.constant_like"(%0) {value = 3.0 : f32} : (tensor<6x8xf32>)'),
        ),
        made("chlo.top_k", "f32[6,16] -> f32[6,3] i32[6,3]", "k = 3 : i64"),
        made(
            "chlo.ragged_dot",
            "f32[16,8] f32[4,8,6] i32[4] -> f32[16,6]",
            "ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_batching_dimensions = [], rhs_batching_dimensions = [], "
            "lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], "
            "rhs_group_dimensions = [0]>",
            runs=False,
        ),
        *_scan(),
    ]


def _high_product() -> list[Sample]:
    if not hasattr(chlo, "MulhiOp"):  # before jaxlib 0.10
        return []
    return [made("chlo.mulhi", "i32[6,8] i32[6,8] -> i32[6,8]")]


def _scan() -> list[Sample]:
    if not RUNS_SCAN:
        return []
    step = (
        "^bb0(%a: tensor<8xf32>, %b: tensor<8xf32>):\n%s = stablehlo.add %a, %b : tensor<8xf32>\n"
        "stablehlo.return %s, %s : tensor<8xf32>, tensor<8xf32>"
    )
    segments = "operandSegmentSizes = array<i32: 1, 1>, resultSegmentSizes = array<i32: 1, 1>"
    return [made("chlo.scan", f"{MATRIX} f32[8] -> {MATRIX} f32[8]", f"dimension = 0 : i64, {segments}", step)]


def _constant(made_by: str) -> str:
    return f"%c = {made_by} -> tensor<6x8xf32>\n%r = stablehlo.add %0, %c : tensor<6x8xf32>"


def _movement() -> list[Sample]:
    return [
        made("stablehlo.broadcast", "f32[8,3] -> f32[2,4,8,3]", "broadcast_sizes = array<i64: 2, 4>"),
        made("stablehlo.broadcast_in_dim", "f32[8] -> f32[6,8]", "broadcast_dimensions = array<i64: 1>"),
        made("stablehlo.concatenate", f"{MATRIX} f32[6,4] -> f32[6,12]", "dimension = 1 : i64"),
        written(
            "stablehlo.constant",
            f"{MATRIX} -> {MATRIX}",
            _constant('"stablehlo.constant"() {value = dense<[1., 2., 3., 4., 5., 6., 7., 8.]> : tensor<8xf32>} : ()')
            .replace(
                "-> tensor<6x8xf32>\n",
                "-> tensor<8xf32>\n%d = stablehlo.broadcast_in_dim %c, dims = [1] : (tensor<8xf32>) -> tensor<6x8xf32>\n",
            )
            .replace("%0, %c", "%0, %d"),
        ),
        written("stablehlo.iota", f"{MATRIX} -> {MATRIX}", _constant('"stablehlo.iota"() {iota_dimension = 1 : i64} : ()')),
        made("stablehlo.dynamic_slice", "f32[8,6] i32[] i32[] -> f32[4,6]", "slice_sizes = array<i64: 4, 6>"),
        made("stablehlo.dynamic_update_slice", "f32[8,6] f32[4,6] i32[] i32[] -> f32[8,6]"),
        made("stablehlo.get_dimension_size", f"{MATRIX} -> i32[]", "dimension = 1 : i64"),
        written(
            "stablehlo.get_tuple_element",
            f"{MATRIX} f32[8] -> f32[8]",
            "%t = stablehlo.tuple %0, %1 : tuple<tensor<6x8xf32>, tensor<8xf32>>\n"
            "%r = stablehlo.get_tuple_element %t[1] : (tuple<tensor<6x8xf32>, tensor<8xf32>>) -> tensor<8xf32>",
        ),
        written(
            "stablehlo.tuple",
            f"{MATRIX} f32[8] -> {MATRIX}",
            "%t = stablehlo.tuple %0, %1 : tuple<tensor<6x8xf32>, tensor<8xf32>>\n"
            "%r = stablehlo.get_tuple_element %t[0] : (tuple<tensor<6x8xf32>, tensor<8xf32>>) -> tensor<6x8xf32>",
        ),
        made("stablehlo.pad", f"{MATRIX} f32[] -> f32[9,8]", _PAD),
        made("stablehlo.reshape", "f32[6,8] -> f32[2,3,8]"),
        made("stablehlo.reshape", "f32[4,8] -> f32[32]"),
        made("stablehlo.reverse", f"{MATRIX} -> {MATRIX}", "dimensions = array<i64: 1>"),
        made("stablehlo.slice", f"{MATRIX} -> f32[4,4]", _SLICE),
        made("stablehlo.transpose", f"{MATRIX} -> f32[8,6]", "permutation = array<i64: 1, 0>"),
        *_sized(),
    ]


_PAD = "edge_padding_low = array<i64: 1, 0>, edge_padding_high = array<i64: 2, 0>, interior_padding = array<i64: 0, 0>"
_SLICE = "start_indices = array<i64: 1, 0>, limit_indices = array<i64: 5, 8>, strides = array<i64: 1, 2>"


def _sized() -> list[Sample]:
    """Ops whose sizes are operands, here constants."""

    def sized(name: str, signature: str, sizes: list[list[int]], call: str, kind: str = "i64") -> Sample:
        constants = [
            f"%c{index} = stablehlo.constant dense<{one}> : tensor<{len(one)}x{kind}>" for index, one in enumerate(sizes)
        ]
        return written(name, signature, "\n".join([*constants, call]))

    gather = (
        '%r = "stablehlo.dynamic_gather"(%0, %1, %c0) {dimension_numbers = #stablehlo.gather<offset_dims = [1], '
        "collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>} "
        ": (tensor<6x8xf32>, tensor<3xi32>, tensor<2xi32>) -> tensor<3x8xf32>"
    )
    convolution = (
        '%r = "stablehlo.dynamic_conv"(%0, %1, %c0) {dimension_numbers = #stablehlo.conv<[b, f, 0]x[o, i, 0]->[b, f, 0]>, '
        "feature_group_count = 1 : i64, batch_group_count = 1 : i64} "
        ": (tensor<4x2x8xf32>, tensor<3x2x3xf32>, tensor<1x2xi64>) -> tensor<4x3x8xf32>"
    )
    return [
        sized(
            "stablehlo.dynamic_broadcast_in_dim",
            f"f32[8] -> {MATRIX}",
            [[6, 8]],
            "%r = stablehlo.dynamic_broadcast_in_dim %0, %c0, dims = [1] : (tensor<8xf32>, tensor<2xi64>) -> tensor<6x8xf32>",
        ),
        written(
            "stablehlo.dynamic_conv",
            "f32[4,2,8] f32[3,2,3] -> f32[4,3,8]",
            f"%c0 = stablehlo.constant dense<[[1, 1]]> : tensor<1x2xi64>\n{convolution}",
            oracle=_convolution,
        ),
        sized("stablehlo.dynamic_gather", "f32[6,8] i32[3] -> f32[3,8]", [[1, 8]], gather, "i32"),
        sized(
            "stablehlo.dynamic_iota",
            f"{MATRIX} -> {MATRIX}",
            [[6, 8]],
            "%q = stablehlo.dynamic_iota %c0, dim = 1 : (tensor<2xi64>) -> tensor<6x8xf32>\n"
            "%r = stablehlo.add %q, %0 : tensor<6x8xf32>",
        ),
        sized(
            "stablehlo.dynamic_pad",
            f"{MATRIX} f32[] -> f32[7,10]",
            [[1, 0], [0, 2], [0, 0]],
            "%r = stablehlo.dynamic_pad %0, %1, %c0, %c1, %c2 : "
            "(tensor<6x8xf32>, tensor<f32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi64>) -> tensor<7x10xf32>",
        ),
        sized(
            "stablehlo.dynamic_reshape",
            f"{MATRIX} -> f32[48]",
            [[48]],
            "%r = stablehlo.dynamic_reshape %0, %c0 : (tensor<6x8xf32>, tensor<1xi64>) -> tensor<48xf32>",
        ),
        sized(
            "stablehlo.real_dynamic_slice",
            f"{MATRIX} -> f32[4,4]",
            [[1, 0], [5, 8], [1, 2]],
            "%r = stablehlo.real_dynamic_slice %0, %c0, %c1, %c2 : "
            "(tensor<6x8xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi64>) -> tensor<4x4xf32>",
        ),
    ]


def _convolution(x: Any, kernel: Any) -> Any:
    return lax.conv_general_dilated(x, kernel, (1,), [(1, 1)], dimension_numbers=("NCH", "OIH", "NCH"))


def _contractions() -> list[Sample]:
    numbers = "#stablehlo.dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], lhs_contracting_dimensions = [2], "
    conv = (
        "dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>, feature_group_count = 1 : i64, "
        "batch_group_count = 1 : i64, padding = dense<1> : tensor<2x2xi64>"
    )
    return [
        made("stablehlo.dot", "f32[6,8] f32[8,4] -> f32[6,4]"),
        made(
            "stablehlo.dot_general",
            "f32[4,6,8] f32[4,8,3] -> f32[4,6,3]",
            f"dot_dimension_numbers = {numbers}rhs_contracting_dimensions = [1]>",
        ),
        made("stablehlo.einsum", "f32[4,8,6] f32[6,8] -> f32[4,6]", 'einsum_config = "ijk,kj->ik"'),
        made("stablehlo.unary_einsum", "f32[8,4,8] -> f32[4]", 'einsum_config = "iji->j"', oracle=_diagonal),
        made("stablehlo.convolution", "f32[4,8,6,2] f32[3,3,2,4] -> f32[4,8,6,4]", conv),
    ]


def _diagonal(x: Any) -> Any:
    return jnp.einsum("iji->j", x)


def _reductions() -> list[Sample]:
    sort = (
        "^bb0(%a: tensor<f32>, %b: tensor<f32>):\n"
        "%s = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>\nstablehlo.return %s : tensor<i1>"
    )
    window = "window_dimensions = array<i64: 1, 2>, window_strides = array<i64: 1, 2>"
    select = f"{sort.replace('LT', 'GE')} }}, {{ {reducer('add').replace('%s', '%u')}"
    return [
        made("stablehlo.reduce", f"{MATRIX} f32[] -> f32[6]", "dimensions = array<i64: 1>", reducer("add")),
        made("stablehlo.reduce_window", "f32[6,8] f32[] -> f32[6,4]", window, reducer("maximum")),
        made("stablehlo.select_and_scatter", "f32[6,8] f32[6,4] f32[] -> f32[6,8]", window, select),
        made("stablehlo.sort", f"{MATRIX} -> {MATRIX}", "dimension = 1 : i64, is_stable = true", sort),
        made("stablehlo.fft", "c64[6,8] -> c64[6,8]", "fft_type = #stablehlo<fft_type FFT>, fft_length = array<i64: 8>"),
        written("stablehlo.cholesky", "f32[6,4,4] -> f32[6,4,4]", _POSITIVE_DEFINITE),
        made(
            "stablehlo.triangular_solve",
            "f32[6,4,4] f32[6,4,2] -> f32[6,4,2]",
            "left_side = true, lower = true, unit_diagonal = true, transpose_a = #stablehlo<transpose NO_TRANSPOSE>",
        ),
        made("stablehlo.batch_norm_inference", "f32[4,8,6] f32[8] f32[8] f32[8] f32[8] -> f32[4,8,6]", _NORM, values=_VARIANCE),
        made("stablehlo.batch_norm_training", "f32[4,8,6] f32[8] f32[8] -> f32[4,8,6] f32[8] f32[8]", _NORM),
        made(
            "stablehlo.batch_norm_grad",
            "f32[4,8,6] f32[8] f32[8] f32[8] f32[4,8,6] -> f32[4,8,6] f32[8] f32[8]",
            _NORM,
            values=("normal", "normal", "normal", "positive", "normal"),
        ),
    ]


_NORM = "epsilon = 0.1 : f32, feature_index = 1 : i64"
_VARIANCE = ("normal", "normal", "normal", "normal", "positive")
_POSITIVE_DEFINITE = """
  %m = stablehlo.dot_general %0, %0, batching_dims = [0] x [0], contracting_dims = [2] x [2]
    : (tensor<6x4x4xf32>, tensor<6x4x4xf32>) -> tensor<6x4x4xf32>
  %i = stablehlo.iota dim = 1 : tensor<6x4x4xi32>
  %j = stablehlo.iota dim = 2 : tensor<6x4x4xi32>
  %e = stablehlo.compare EQ, %i, %j : (tensor<6x4x4xi32>, tensor<6x4x4xi32>) -> tensor<6x4x4xi1>
  %d = stablehlo.convert %e : (tensor<6x4x4xi1>) -> tensor<6x4x4xf32>
  %p = stablehlo.add %m, %d : tensor<6x4x4xf32>
  %r = "stablehlo.cholesky"(%p) {lower = true} : (tensor<6x4x4xf32>) -> tensor<6x4x4xf32>"""


def _indexing() -> list[Sample]:
    rows = "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1"
    into = "update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1"
    return [
        made(
            "stablehlo.gather",
            "f32[8,6] i32[4] -> f32[4,6]",
            f"dimension_numbers = #stablehlo.gather<{rows}>, slice_sizes = array<i64: 1, 6>",
            values=("normal", 8),
        ),
        made(
            "stablehlo.scatter",
            "f32[8,6] i32[4] f32[4,6] -> f32[8,6]",
            f"scatter_dimension_numbers = #stablehlo.scatter<{into}>",
            reducer("add"),
            values=("whole", 8, "whole"),
        ),
        made(
            "stablehlo.torch_index_select",
            "f32[4,2,8] i32[4,3] -> f32[4,2,3]",
            "dim = 2 : i64, batch_dims = 1 : i64",
            values=("normal", 8),
        ),
        made(
            "stablehlo.rng_bit_generator",
            "ui64[2] -> ui64[2] ui32[6,8]",
            "rng_algorithm = #stablehlo<rng_algorithm THREE_FRY>",
        ),
    ]


def _control() -> list[Sample]:
    branch = "%y = stablehlo.{} %1 : tensor<6x8xf32>\nstablehlo.return %y : tensor<6x8xf32>"
    branches = f"{branch.format('negate')} }}, {{ {branch.format('cosine').replace('%y', '%z')}"
    loop = """
  %c = stablehlo.constant dense<0> : tensor<i32>
  %n = stablehlo.constant dense<3> : tensor<i32>
  %o = stablehlo.constant dense<1> : tensor<i32>
  %w:2 = stablehlo.while(%i = %c, %x = %0) : tensor<i32>, tensor<6x8xf32>
    cond { %t = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
           stablehlo.return %t : tensor<i1> }
    do { %j = stablehlo.add %i, %o : tensor<i32>
         %y = stablehlo.sine %x : tensor<6x8xf32>
         stablehlo.return %j, %y : tensor<i32>, tensor<6x8xf32> }
  %r = stablehlo.negate %w#1 : tensor<6x8xf32>"""
    return [
        written(
            "stablehlo.case", f"i32[] {MATRIX} -> {MATRIX}", f'%r = "stablehlo.case"(%0) ({{ {branches} }}) : {_INT} -> {_OUT}'
        ),
        written("stablehlo.if", f"i1[] {MATRIX} -> {MATRIX}", f'%r = "stablehlo.if"(%0) ({{ {branches} }}) : {_BIT} -> {_OUT}'),
        written("stablehlo.while", f"{MATRIX} -> {MATRIX}", loop),
        written("stablehlo.return", f"{MATRIX} -> {MATRIX}", loop),
    ]


_INT, _BIT, _OUT = "(tensor<i32>)", "(tensor<i1>)", "tensor<6x8xf32>"


def _variants() -> list[Sample]:
    """Ops once more, under attributes that make other loops."""
    windows = "offset_dims = [1], start_index_map = [0], index_vector_dim = 1"
    update = "update_window_dims = [1], scatter_dims_to_operand_dims = [0], index_vector_dim = 1"
    rows = "update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1"
    replace = "^bb0(%a: tensor<f32>, %b: tensor<f32>):\nstablehlo.return %b : tensor<f32>"
    generic = (
        "^bb0(%a: tensor<f32>, %b: tensor<f32>):\n%s = stablehlo.maximum %a, %b : tensor<f32>\n"
        "%t = stablehlo.maximum %s, %a : tensor<f32>\nstablehlo.return %t : tensor<f32>"
    )
    grouped = (
        "dimension_numbers = #stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>, feature_group_count = 4 : i64, "
        "batch_group_count = 1 : i64, padding = dense<1> : tensor<1x2xi64>"
    )
    scan = "window_dimensions = array<i64: 6, 1>, padding = dense<[[5, 0], [0, 0]]> : tensor<2x2xi64>"
    return [
        made("stablehlo.convolution", "f32[4,6,8] f32[3,2,8] -> f32[4,6,8]", grouped),
        made("stablehlo.fft", "c64[4,6,8] -> c64[4,6,8]", "fft_type = #stablehlo<fft_type FFT>, fft_length = array<i64: 6, 8>"),
        made("stablehlo.fft", "f32[6,8] -> c64[6,5]", "fft_type = #stablehlo<fft_type RFFT>, fft_length = array<i64: 8>"),
        made(
            "stablehlo.gather",
            "f32[8] i32[4] -> f32[4,3]",
            f"dimension_numbers = #stablehlo.gather<{windows}>, slice_sizes = array<i64: 3>",
            values=("normal", 8),
        ),
        made("stablehlo.reduce", f"{MATRIX} f32[] -> f32[8]", "dimensions = array<i64: 0>", generic),
        made("stablehlo.reduce_window", f"{MATRIX} f32[] -> {MATRIX}", scan, reducer("add")),
        made("stablehlo.reshape", "f32[6,4] -> f32[4,6]"),
        made(
            "stablehlo.scatter",
            "f32[8] i32[4] f32[4,3] -> f32[8]",
            f"scatter_dimension_numbers = #stablehlo.scatter<{update}>",
            reducer("maximum"),
            values=("normal", 8, "normal"),
        ),
        made(
            "stablehlo.scatter",
            "f32[8,6] i32[4] f32[4,6] -> f32[8,6]",
            f"scatter_dimension_numbers = #stablehlo.scatter<{rows}>",
            replace,
            values=("normal", 8, "whole"),
        ),
        made(
            "stablehlo.slice",
            "f32[8,6] -> f32[4,6]",
            "start_indices = array<i64: 0, 0>, limit_indices = array<i64: 8, 6>, strides = array<i64: 2, 1>",
        ),
    ]


SAMPLES = (
    *_elementwise(),
    *_chlo(),
    *_movement(),
    *_contractions(),
    *_reductions(),
    *_indexing(),
    *_control(),
    *_variants(),
)
