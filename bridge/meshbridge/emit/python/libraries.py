"""Writes ops that are single functions of JAX: transforms, factorizations, random bits, top-k."""

from __future__ import annotations

from meshbridge.emit.python.code import Code, call, literal
from meshbridge.emit.python.scope import Scope
from meshbridge.emit.python.shapes import integer, sizes
from meshbridge.emit.python.table import writes
from meshbridge.ir.builder import element_of, shape_of
from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import ir


def _word(op: ir.Operation, name: str) -> str:
    """The last word of an enumeration's attribute."""
    return str(op.attributes[name]).rsplit(" ", 1)[-1].rstrip(">")


def _flag(op: ir.Operation, name: str) -> bool:
    return name in op.attributes and bool(ir.BoolAttr(op.attributes[name]).value)


@writes("fft")
def fft(op: ir.Operation, scope: Scope) -> Code:
    """`lax.fft`."""
    return call("lax.fft", scope.at(op.operands[0]), literal(_word(op, "fft_type")), literal(sizes(op, "fft_length")))


@writes("cholesky")
def cholesky(op: ir.Operation, scope: Scope) -> Code:
    """`lax.linalg.cholesky` of the triangle that the op reads."""
    code, rank = scope.at(op.operands[0]), len(shape_of(op.operands[0]))
    if _flag(op, "lower"):
        return call("lax.linalg.cholesky", code, symmetrize_input="False")
    lower = call("lax.linalg.cholesky", _transposed(code, rank, op), symmetrize_input="False")
    return _transposed(lower, rank, op)


def _transposed(code: Code, rank: int, op: ir.Operation) -> Code:
    """The conjugate transpose of matrices."""
    turned = call("jnp.swapaxes", code, literal(rank - 2), literal(rank - 1))
    return call("jnp.conj", turned) if isinstance(element_of(op.operands[0]), ir.ComplexType) else turned


@writes("triangular_solve")
def triangular_solve(op: ir.Operation, scope: Scope) -> Code:
    """`lax.linalg.triangular_solve`."""
    transposed = _word(op, "transpose_a")
    flags = {
        "left_side": _flag(op, "left_side"),
        "lower": _flag(op, "lower"),
        "transpose_a": transposed in ("TRANSPOSE", "ADJOINT"),
        "conjugate_a": transposed == "ADJOINT",
        "unit_diagonal": _flag(op, "unit_diagonal"),
    }
    return call("lax.linalg.triangular_solve", *scope.operands(op), **{name: literal(flag) for name, flag in flags.items()})


_STATE_BYTES = 16

_ALGORITHMS = {"DEFAULT": "RNG_DEFAULT", "THREE_FRY": "RNG_THREE_FRY", "PHILOX": "RNG_PHILOX"}


@writes("rng_bit_generator")
def rng_bit_generator(op: ir.Operation, scope: Scope) -> Code:
    """`lax.rng_bit_generator`, whose state has 128 bits."""
    state, bits = op.operands[0], op.results[1]
    if tensor_bytes(state) != _STATE_BYTES:
        raise scope.error(op, f"has a state of {state.type}, expected 128 bits, as tensor<2xui64> or tensor<4xui32>")
    return call(
        "lax.rng_bit_generator",
        scope.at(op.operands[0]),
        literal(tuple(shape_of(bits))),
        dtype=scope.dtype(bits, op),
        algorithm=Code(f"lax.RandomAlgorithm.{_ALGORITHMS[_word(op, 'rng_algorithm')]}"),
    )


@writes("chlo.top_k")
def top_k(op: ir.Operation, scope: Scope) -> Code:
    """`lax.top_k`."""
    return call("lax.top_k", scope.at(op.operands[0]), literal(integer(op, "k")))


_NAMED = {"conj": "lax.conj", "is_inf": "jnp.isinf", "is_neg_inf": "jnp.isneginf", "is_pos_inf": "jnp.isposinf"}
_NAMED |= {"next_after": "lax.nextafter"}
_SAME = "acos acosh asin asinh atan atanh bessel_i1e cosh digamma erf erf_inv erfc lgamma polygamma sinh square tan zeta"
_NAMED |= {name: f"lax.{name}" for name in _SAME.split()}
"""Functions of CHLO. A jaxlib that can expand them does so before."""


@writes(*(f"chlo.{name}" for name in _NAMED))
def named_function(op: ir.Operation, scope: Scope) -> Code:
    """The function of `lax` or `jnp` of that name."""
    return call(_NAMED[op.name.partition(".")[2]], *scope.operands(op))
