"""Programs of Shardy's MPMD dialect that are mapped to meshes: what is read of them, and what is refused, with its line."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError, context
from meshbridge.pipeline import Options
from meshbridge.pipelines import prediction, proof
from meshbridge.pipelines.build import StagedPipeline
from meshbridge.pipelines.mapped import read_mapped
from meshbridge.pipelines.mpmd_reader import UNDERSTOOD, is_mapped
from meshbridge.pipelines.plan import Send
from meshbridge.read.formats import TEXT, Program
from meshbridge.verification.verdict import verify

T = "tensor<4x8xf32>"
ONE, TWO = (f'!mpmd.mesh_tensor<"{name}", {T}>' for name in ("m1", "m2"))
SPLIT = f'!mpmd.mesh_tensor<"m1", {T}, sharding=<@mesh, [{{"x"}}, {{}}]>>'
TOPOLOGY = '{topology = #mpmd.topology<<"m1" : <["x"=2]>>, <"m2" : <["x"=2]>>>}'


def fragment(mesh: str, operand: str, body: str, *, kind: str = "", origin: str = '"f"', result: str = "") -> str:
    """A fragment of one operand; `body` computes `%y` of `%x`."""
    own = kind or {"m1": ONE, "m2": TWO}[mesh]
    returned = result or own
    inside = f"{body} mpmd.return %y : {T}"
    return f'mpmd.fragment<mesh="{mesh}", origin=[{origin}]> ({operand}) (%x: {T}) {{ {inside} }} : ({own}) -> {returned}'


NEGATE = f"%y = stablehlo.negate %x : {T}"
DOUBLE = f"%y = stablehlo.add %x, %x : {T}"


def program(lines: Sequence[str], *, takes: str = ONE, gives: str = TWO, topology: str = TOPOLOGY, others: str = "") -> str:
    """A mapped program of one argument `%a`."""
    body = "\n".join(lines)
    return f"func.func @main(%a: {takes}) -> {gives} attributes {topology} {{\n{body}\n}}\n{others}"


def read(text: str) -> StagedPipeline:
    """A program as a pipeline."""
    module = mlir.parse(text, "mapped.mlir", context())
    assert is_mapped(module)
    return read_mapped(Program(module, TEXT), Options.of(emit="local"))


def equals(pipeline: StagedPipeline, body: str) -> bool:
    """Whether a program computes `%y` of `%x` by these ops."""
    wanted = mlir.parse(f"func.func @main(%x: {T}) -> {T} {{\n{body}\nreturn %y : {T}\n}}", "wanted.mlir", context())
    prediction.report(pipeline).table()
    return proof.verify(pipeline).equal and verify(wanted, pipeline.source.module).equal


def transfer(name: str, operand: str, source: str = ONE, target: str = TWO) -> str:
    return f"{name} = mpmd.transfer {operand} : ({source}) -> {target}"


SHAPE = 'attributes {mesh_shape = #sdy.mesh<["x"=2]>}'
NEGATED_TWICE = f"%n = stablehlo.negate %x : {T}\n%y = stablehlo.add %n, %n : {T}"

PROGRAMS = {
    "fragments and a transfer": program(
        [
            f"%0 = {fragment('m1', '%a', NEGATE)}",
            transfer("%1", "%0"),
            f"%2 = {fragment('m2', '%1', DOUBLE)}",
            f"return %2 : {TWO}",
        ]
    ),
    "shardings of types": program(
        [
            f"%0 = {fragment('m1', '%a', NEGATE, kind=SPLIT)}",
            transfer("%1", "%0", SPLIT),
            f"%2 = {fragment('m2', '%1', DOUBLE)}",
            f"return %2 : {TWO}",
        ],
        takes=SPLIT,
    ),
    "shardings of arguments": program(
        [
            f"%0 = {fragment('m1', '%a', NEGATE)}",
            transfer("%1", "%0"),
            f"%2 = {fragment('m2', '%1', DOUBLE)}",
            f"return %2 : {TWO}",
        ]
    ).replace(f"%a: {ONE}", f'%a: {ONE} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x"}}]>}}')
    + 'sdy.mesh @mesh = <["x"=2]>',
    "a value that passes a mesh": program(
        [
            f"%0 = {fragment('m1', '%a', NEGATE)}",
            transfer("%1", "%0"),
            transfer("%2", "%1", TWO, ONE),
            f"%3 = {fragment('m1', '%2', DOUBLE)}",
            f"return %3 : {ONE}",
        ],
        gives=ONE,
    ),
    "a transfer that is returned": program(
        [f"%0 = {fragment('m1', '%a', NEGATED_TWICE)}", transfer("%1", "%0"), f"return %1 : {TWO}"]
    ),
    "an argument that is transferred": program(
        [
            transfer("%0", "%a"),
            f"%1 = {fragment('m2', '%0', NEGATED_TWICE)}",
            f"return %1 : {TWO}",
        ]
    ),
    "calls of functions": program(
        [
            f'%0 = mpmd.fragment_call<mesh="m1", origin=["f"]> @negate(%a) : ({ONE}) -> {ONE}',
            transfer("%1", "%0"),
            f'%2 = mpmd.fragment_call<mesh="m2", origin=["g"]> @double(%1) : ({TWO}) -> {TWO}',
            f"return %2 : {TWO}",
        ],
        others="".join(
            f"func.func private @{name}(%x: {T}) -> {T} {SHAPE} {{\n{body}\nreturn %y : {T}\n}}\n"
            for name, body in (("negate", NEGATE), ("double", DOUBLE))
        ),
    ),
    "a call of a mapped function": program(
        [f"%0 = mpmd.call @inner(%a) : ({ONE}) -> {TWO}", f"return %0 : {TWO}"],
        others=program(
            [
                f"%0 = {fragment('m1', '%a', NEGATE)}",
                transfer("%1", "%0"),
                f"%2 = {fragment('m2', '%1', DOUBLE)}",
                f"return %2 : {TWO}",
            ]
        ).replace("@main", "private @inner"),
    ),
    "a loop": program(
        [
            f"%0 = mpmd.for (%a) {{iterations = 3 : ui32}} (%b: {ONE}, %index: tensor<ui32>) {{",
            f"  %1 = {fragment('m1', '%b', NEGATE)}",
            f"  mpmd.return %1 : {ONE}",
            f"}} : {ONE}",
            transfer("%2", "%0"),
            f"%3 = {fragment('m2', '%2', DOUBLE)}",
            f"return %3 : {TWO}",
        ]
    ),
    "tensors that are put on meshes": program(
        [
            f"%0 = mpmd.assign %a : ({T}) -> {ONE}",
            f"%1 = {fragment('m1', '%0', NEGATE)}",
            f"%2 = mpmd.unassign %1 : ({ONE}) -> {T}",
            f"%3 = mpmd.assign %2 : ({T}) -> {TWO}",
            f"%4 = {fragment('m2', '%3', DOUBLE)}",
            f"%5 = mpmd.unassign %4 : ({TWO}) -> {T}",
            f"return %5 : {T}",
        ],
        takes=T,
        gives=T,
    ),
    "functions in fragments": program(
        [
            f"%0 = {fragment('m1', '%a', f'%y = func.call @both(%x) : ({T}) -> {T}')}",
            transfer("%1", "%0"),
            f"return %1 : {TWO}",
        ],
        others=f"func.func private @both(%x: {T}) -> {T} {{\n{NEGATED_TWICE}\nreturn %y : {T}\n}}",
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_they_compute_what_they_say(name: str) -> None:
    assert equals(read(PROGRAMS[name]), NEGATED_TWICE)


def test_a_sharding_is_kept() -> None:
    pipeline = read(PROGRAMS["shardings of types"])
    assert "split_axes = #mesh.axisarray<[[0], []]>" in str(pipeline.plan.fragments[0].module)
    assert "split_axes = #mesh.axisarray<[[], []]>" in str(pipeline.plan.fragments[1].module)


def test_equal_fragments_are_one() -> None:
    pipeline = read(PROGRAMS["a loop"])
    assert len(pipeline.plan.calls) == 4
    assert len(pipeline.plan.fragments) == 2
    assert [fragment.label for fragment in pipeline.plan.fragments] == ["f", "f"]


def test_a_value_is_sent_where_it_is_read() -> None:
    assert not any(isinstance(step, Send) for step in read(PROGRAMS["a value that passes a mesh"]).plan.steps)
    assert len(read(PROGRAMS["fragments and a transfer"]).plan.sends) == 1


def test_an_argument_that_is_returned() -> None:
    pipeline = read(program([transfer("%0", "%a"), f"return %0 : {TWO}"]))
    assert equals(pipeline, f"%y = stablehlo.optimization_barrier %x : {T}")


HOST = f'!mpmd.mesh_tensor<"m1", {T}, memory_kind="pinned_host">'
LARGER = '{topology = #mpmd.topology<<"m1" : <["x"=2]>>, <"m2" : <["x"=4]>>>}'

REFUSED = {
    "an op outside of fragments": (
        program([f"%0 = mpmd.unassign %a : ({ONE}) -> {T}", f"%1 = stablehlo.negate %0 : {T}", f"return %1 : {T}"], gives=T),
        r":3:6: error: 'stablehlo.negate' op is not read in a program that is mapped to meshes\n  hint: ops that",
    ),
    "memory of a host": (
        program([transfer("%0", "%a", HOST), f"return %0 : {TWO}"], takes=HOST),
        r":1:1: error: 'func.func' op has a value in memory of kind 'pinned_host', expected memory of devices",
    ),
    "meshes of different sizes": (
        program([transfer("%0", "%a"), f"return %0 : {TWO}"], topology=LARGER),
        r":1:1: error: 'func.func' op is mapped to meshes of different numbers of devices: 'm1' is .*x\"=2.* and 'm2' is",
    ),
    "the number of an iteration": (
        program(
            [
                f"%0 = mpmd.for (%a) {{iterations = 3 : ui32}} (%b: {ONE}, %index: tensor<ui32>) {{",
                "  %1 = stablehlo.add %index, %index : tensor<ui32>",
                f"  mpmd.return %b : {ONE}",
                f"}} : {ONE}",
                transfer("%2", "%0"),
                f"return %2 : {TWO}",
            ]
        ),
        r":2:6: error: 'mpmd.for' op computes with the number of its iteration, which is not read",
    ),
    "a token": (
        program(
            [
                f'%0 = mpmd.fragment<mesh="m1", origin=[]> (%a) (%x: {T}) {{',
                "  %t = stablehlo.create_token : !stablehlo.token",
                "  mpmd.return %t : !stablehlo.token",
                f"}} : ({ONE}) -> !stablehlo.token",
                transfer("%1", "%a"),
                f"return %1 : {TWO}",
            ]
        ),
        r":2:6: error: 'mpmd.fragment' op has a value of type !stablehlo.token, expected tensors",
    ),
    "no fragment": (
        program(["%0 = mpmd.transfer %a : (" + ONE + ") -> " + TWO, "return"]).replace(f"-> {TWO} attributes", "attributes"),
        r"error: 'func.func' op executes no fragment, and returns nothing",
    ),
    "two programs": (
        PROGRAMS["a loop"].replace("@main", "@one") + PROGRAMS["a loop"].replace("@main", "@other"),
        r"expected a function 'main', or only one, with a topology of meshes, found one, other",
    ),
    "a part of another form": (
        PROGRAMS["a loop"].replace(f"%a: {ONE}", f"%a: {ONE} {{meshbridge.part = array<i64: 1>}}"),
        r"has attributes 'meshbridge.part' of another form, expected the number, the position",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str) -> None:
    text, message = REFUSED[name]
    with pytest.raises(MeshError, match=message):
        read(text)


def test_the_page_lists_what_is_understood() -> None:
    from tests.house import ROOT

    page = (ROOT / "docs" / "pipelines.md").read_text()
    assert all(f"`{name}`" in page for name in (*UNDERSTOOD, "mpmd.named_computation"))
    assert re.search(r"`mpmd.broadcast`, `mpmd.reduce`", page), "those which are refused"
