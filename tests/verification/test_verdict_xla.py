"""XLA's own partitioned programs, read back from HLO text and evaluated exactly."""

from __future__ import annotations

import jax
import pytest

from meshbridge.dialect import assembly
from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError, ParseError
from meshbridge.verification.verdict import verify
from tests.verification.hlo_product import HLO, ROWS, SOURCE, partitioned, source
from tests.zoo import FAULTS
from tests.zoo.exact import DIFFERENT, EQUAL, all_verdicts
from tests.zoo.table import recorded


@pytest.mark.parametrize(
    "groups",
    [
        ROWS,
        "mesh['x'=2,'y'=4] {'y'}",
        "mesh['y'=4,'x'=2], device_ids=([2,4]T(1,0)) {'y'}",
        "mesh['x'=2,'y'=4], device_ids=(4,5,6,7,0,1,2,3) {'y'}",
        "mesh['all'=8] {'all':(2)4}",
    ],
)
def test_groups_along_axes_are_those_that_they_list(groups: str) -> None:
    assert verify(source(), partitioned(HLO.replace("GROUPS", groups))).equal


@pytest.mark.parametrize(
    "groups", ["{{0,1,2,3,4,5,6,7}}", "mesh['x'=2,'y'=4], device_ids=([4,2]T(1,0)) {'y'}", "mesh['x'=4,'y'=2] {'x'}"]
)
def test_a_sum_over_other_devices_differs(groups: str) -> None:
    assert not verify(source(), partitioned(HLO.replace("GROUPS", groups))).equal


def test_padding_that_nobody_masks_is_found() -> None:
    assert not verify(source(), partitioned(HLO.replace("GROUPS", ROWS).replace("select(%inside, %a, %zeros)", "copy(%a)"))).equal


OF_CHLO = {
    **{name: name for name in ("erf", "tan", "acos", "acosh", "asin", "asinh", "atanh", "sinh", "cosh")},
    "topk": "top_k",
}
"""Operations of HLO that StableHLO leaves to CHLO, by their names in both."""


@pytest.mark.parametrize("name", OF_CHLO)
def test_operations_that_stablehlo_does_not_have(name: str) -> None:
    """Each is that of CHLO, and no other one."""
    type_, result, options, given = "f32[8,16]", "tensor<8x16xf32>", "", ""
    if name == "topk":
        type_, result = "(f32[8,4], s32[8,4])", "tensor<8x4xf32>, tensor<8x4xi32>"
        options, given = ", k=4, largest=true", " {k = 4 : i64}"
    of_one_device = partitioned(
        f"HloModule f, num_partitions=8\n\nENTRY %main (a: f32[8,16]) -> {type_} {{\n  %a = f32[8,16] parameter(0)\n"
        f"  ROOT %r = {type_} {name}(%a){options}\n}}\n"
    )
    count = result.count(",") + 1
    values = ", ".join(f"%r#{index}" for index in range(count))
    whole = f"""func.func @main(%a: tensor<8x16xf32>) -> ({result}) {{
      %b = stablehlo.negate %a : tensor<8x16xf32>
      %r:{count} = "chlo.{OF_CHLO[name]}"(%a){given} : (tensor<8x16xf32>) -> ({result})
      return {values} : {result}
    }}"""
    ctx = mlir.context()
    other = whole.replace('"(%a)', '"(%b)')
    assert verify(assembly.read(whole, "a.mlir", ctx), of_one_device).equal
    assert not verify(assembly.read(other, "a.mlir", ctx), of_one_device).equal


def test_a_result_that_nobody_says_the_sharding_of_is_refused() -> None:
    silent = assembly.read(SOURCE.replace(' {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}', ""), "s.mlir", mlir.context())
    with pytest.raises(
        MeshError, match=r"neither program says how a tensor of shape \[8, 12\] becomes shards of shape \[4, 12\]"
    ):
        verify(silent, partitioned(HLO.replace("GROUPS", ROWS)))


@pytest.mark.parametrize(
    "text",
    ["HloModule", "HloModule f\n\nENTRY %main {", HLO.replace("GROUPS", "mesh['x'=2,'y'=4] {'z'}"), "HloModule f\n\xff"],
)
def test_what_is_no_hlo_is_refused(text: str) -> None:
    with pytest.raises(ParseError, match="not readable HLO text"):
        partitioned(text)


OTHERWISE = {
    "update_at_a_wide_index": "an update whose start has to be clamped is dropped, as in openxla/xla#49118",
    "random_normals": "the inverse of the error function is a polynomial in HLO: an identity that is not checked",
}
"""Programs whose numbers are right on the example of the table, and that differ all the same."""


@pytest.mark.slow
def test_faults_of_xlas_partitioner_are_found_without_running_it() -> None:
    record = recorded()
    if jax.__version__ != record["jax"]:
        pytest.skip(f"the record of faults is of jax {record['jax']}")
    outcomes = {name: row["xla"] for name, row in record["rows"].items()}
    for name, said in all_verdicts(FAULTS).items():
        stages = said.splitlines()
        if outcomes[name].startswith("wrong"):
            assert DIFFERENT in stages, name
        elif name in OTHERWISE:
            assert stages[0] == DIFFERENT, name
        elif outcomes[name].startswith("right"):
            assert stages[0] == EQUAL or "no exact evaluation" in stages[0], f"{name}: {stages[0]}"
