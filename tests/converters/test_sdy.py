"""sdy -> mesh -> sdy gives the module that came in; what sdy cannot say, and what contradicts itself, gives one diagnostic."""

from __future__ import annotations

import re

import pytest

from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.ir.sharding import AxisRef
from meshbridge.ir.subaxes import factor
from meshbridge.read import formats
from meshbridge_converters import sdy

MESHES = """
  sdy.mesh @m = <["x"=2, "y"=4, "z"=2]> {stablehlo.mesh = {axes = []}}
  sdy.mesh @reversed = <["a"=2, "b"=2], device_ids=[3, 2, 1, 0]>
  sdy.mesh @like_a_sub_axis = <["x"=4, "x:(1)2"=2]>
  sdy.mesh @one_device = <[], device_ids=[5]>
  sdy.mesh @none = <[]>
"""

ARGUMENTS_AND_RESULTS = """
  func.func @main(%arg0: tensor<8x16xf32> {SHARDING, jax.buffer_donor = true}, %arg1: tensor<8x16xf32>)
      -> (tensor<8x16xf32> {SHARDING, jax.result_info = "a"}, tensor<8x16xf32>, tensor<8x16xf32> {SHARDING}) {
    %0 = stablehlo.add %arg0, %arg1 : tensor<8x16xf32>
    return %0, %0, %arg0 : tensor<8x16xf32>, tensor<8x16xf32>, tensor<8x16xf32>
  }
"""

SHARDINGS = [
    '@m, [{"x"}, {}]',
    '@m, [{"y", "x"}, {"z"}]',
    '@m, [{"x", ?}, {?}]',
    '@m, [{?}p0, {"x"}p3]',
    '@m, [{"y":(2)2}, {"y":(1)2, "x"}]',
    '@m, [{"x"}, {?}], replicated={"y", "z"}',
    '@m, [{"x"}, {?}], replicated={"y":(1)2}, unreduced={"z"}',
    '@m, [{}, {}], unreduced={"x", "y"}',
    '@reversed, [{"b"}, {"a"}]',
    '@like_a_sub_axis, [{"x:(1)2"}, {"x":(1)2}]',
    "@one_device, []",
    "@none, [{}, {?}]",
    'mesh<["q"=4]>, [{"q":(1)2, ?}, {}]',
    "mesh<[], device_ids=[3]>, []",
]

BODIES = {
    "constraints with and without uses": """
      %0 = sdy.sharding_constraint %arg0 <@m, [{"x"}, {?}]> : tensor<8x16xf32>
      %1 = sdy.sharding_constraint %0 <@m, [{"x"}, {"y"}p1]> : tensor<8x16xf32>
      %2 = stablehlo.tanh %1 : tensor<8x16xf32>
      %3 = sdy.sharding_constraint %2 <@reversed, [{"a"}, {}]> : tensor<8x16xf32>
      return %2 : tensor<8x16xf32>""",
    "several shardings of one operation": """
      %0:2 = "stablehlo.optimization_barrier"(%arg0, %arg0)
        {sdy.sharding = #sdy.sharding_per_value<[<@m, [{"x"}, {}]>, <@m, [{?}, {?}]>]>}
        : (tensor<8x16xf32>, tensor<8x16xf32>) -> (tensor<8x16xf32>, tensor<8x16xf32>)
      return %0#1 : tensor<8x16xf32>""",
    "an operation without results, and one with a token": """
      %0 = stablehlo.create_token {sdy.sharding = #sdy.sharding_per_value<[<@one_device, []>]>} : !stablehlo.token
      stablehlo.custom_call @callback(%arg0)
        {has_side_effect = true, sdy.sharding = #sdy.sharding_per_value<[<@one_device, []>]>} : (tensor<8x16xf32>) -> ()
      %1:2 = stablehlo.custom_call @both(%0)
        {sdy.sharding = #sdy.sharding_per_value<[<@m, [{"x"}, {}]>, <@m, []>]>}
        : (!stablehlo.token) -> (tensor<8x16xf32>, !stablehlo.token)
      return %1#0 : tensor<8x16xf32>""",
    "reshard and the collectives of sdy": """
      %0 = sdy.reshard %arg0 <@m, [{"x"}, {"y"}]> : tensor<8x16xf32>
      %1 = sdy.all_gather [{}, {"y"}] %0 out_sharding=<@m, [{"x"}, {}]> : tensor<8x16xf32>
      %2 = sdy.all_slice [{}, {"y":(1)2}] %1 out_sharding=<@m, [{"x"}, {"y":(1)2}]> : tensor<8x16xf32>
      %3 = sdy.all_to_all [{"x"}: 0->1] %2 out_sharding=<@m, [{}, {"y":(1)2, "x"}]> : tensor<8x16xf32>
      %4 = sdy.collective_permute %3 out_sharding=<@m, [{}, {"x", "y":(1)2}]> : tensor<8x16xf32>
      %5 = sdy.replicated_to_unreduced {"z"} %4 out_sharding=<@m, [{}, {"x", "y":(1)2}], unreduced={"z"}> : tensor<8x16xf32>
      %6 = sdy.reduce_scatter [{"z"}, {}] %5 out_sharding=<@m, [{"z"}, {"x", "y":(1)2}]> : tensor<8x16xf32>
      %7 = sdy.sharded_to_unreduced [{"z"}, {}] %6 out_sharding=<@m, [{}, {"x", "y":(1)2}], unreduced={"z"}> : tensor<8x16xf32>
      %8 = sdy.all_reduce {"z"} %7 out_sharding=<@m, [{}, {"x", "y":(1)2}]> : tensor<8x16xf32>
      return %8 : tensor<8x16xf32>""",
    "groups and barriers": """
      sdy.sharding_group %arg0 group_id=0 : tensor<8x16xf32>
      %0 = sdy.propagation_barrier %arg0 allowed_direction=FORWARD : tensor<8x16xf32>
      %1 = sdy.propagation_barrier %0 allowed_direction=NONE : tensor<8x16xf32>
      sdy.sharding_group %1 group_id=0 : tensor<8x16xf32>
      return %1 : tensor<8x16xf32>""",
    "regions": """
      %c = stablehlo.constant dense<0> : tensor<i32>
      %0:2 = stablehlo.while(%i = %c, %x = %arg0) : tensor<i32>, tensor<8x16xf32>
        attributes {sdy.sharding = #sdy.sharding_per_value<[<@m, []>, <@m, [{"x"}, {}]>]>}
        cond {
          %1 = stablehlo.compare LT, %i, %c : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %1 : tensor<i1>
        } do {
          %1 = stablehlo.tanh %x {sdy.sharding = #sdy.sharding_per_value<[<@m, [{"x"}, {"y":(1)2}]>]>} : tensor<8x16xf32>
          %2 = sdy.sharding_constraint %1 <@m, [{"x"}, {}]> : tensor<8x16xf32>
          stablehlo.return %i, %2 : tensor<i32>, tensor<8x16xf32>
        }
      return %0#1 : tensor<8x16xf32>""",
    "manual computations, nested, with free axes": """
      %0 = sdy.manual_computation(%arg0) in_shardings=[<@m, [{"x", ?}, {?}]>] out_shardings=[<@m, [{"x", "y":(1)2}, {?}]>]
          manual_axes={"x"} (%a: tensor<4x16xf32>) {
        %1 = sdy.manual_computation(%a) in_shardings=[<@m, [{}, {"y"}], replicated={"z"}>]
            out_shardings=[<@m, [{}, {"y"}], replicated={"z"}>] manual_axes={"y", "z"} (%b: tensor<4x4xf32>) {
          %2 = stablehlo.tanh %b : tensor<4x4xf32>
          sdy.return %2 : tensor<4x4xf32>
        } : (tensor<4x16xf32>) -> tensor<4x16xf32>
        %3 = sdy.sharding_constraint %1 <@m, [{"y"}, {?}]> : tensor<4x16xf32>
        sdy.return %3 : tensor<4x16xf32>
      } : (tensor<8x16xf32>) -> tensor<8x16xf32>
      return %0 : tensor<8x16xf32>""",
    "a manual computation without operands": """
      %0 = sdy.manual_computation() in_shardings=[] out_shardings=[<@m, [{"x"}, {}]>] manual_axes={"x"} () {
        %1 = stablehlo.constant dense<0.0> : tensor<4x16xf32>
        sdy.return %1 : tensor<4x16xf32>
      } : () -> tensor<8x16xf32>
      return %0 : tensor<8x16xf32>""",
    "named computations and data-flow edges": """
      %0 = sdy.named_computation<"layer">(%arg0) in_shardings=[<@m, [{"x"}, {?}]>] out_shardings=[<@m, [{}, {"y"}]>]
          (%a: tensor<8x16xf32>) {
        %1 = sdy.data_flow_edge %a sharding=<@m, [{?}, {"z"}]> : tensor<8x16xf32>
        sdy.return %1 : tensor<8x16xf32>
      } : (tensor<8x16xf32>) -> tensor<8x16xf32>
      %2 = sdy.named_computation<"layer">(%0) (%a: tensor<8x16xf32>) {
        sdy.return %a : tensor<8x16xf32>
      } : (tensor<8x16xf32>) -> tensor<8x16xf32>
      return %2 : tensor<8x16xf32>""",
}


def parsed(text: str) -> ir.Module:
    return mlir.parse(text, "input.mlir", mlir.context())


def assert_round_trip(text: str) -> None:
    module = parsed(text)
    before = str(module)
    sdy.import_module(module)
    module.operation.verify()
    annotated = str(module)
    assert not re.search(r"<@\w+, |sdy\.mesh", annotated), annotated
    sdy.export_module(module)
    assert str(module) == before
    sdy.import_module(module)
    assert str(module) == annotated


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_arguments_and_results(sharding: str) -> None:
    assert_round_trip(MESHES + ARGUMENTS_AND_RESULTS.replace("SHARDING", f"sdy.sharding = #sdy.sharding<{sharding}>"))


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_bodies(body: str) -> None:
    assert_round_trip(f"{MESHES} func.func @main(%arg0: tensor<8x16xf32>) -> tensor<8x16xf32> {{ {body} }}")


def test_declarations_and_private_functions() -> None:
    sharding = 'sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>'
    assert_round_trip(f"""{MESHES}
      func.func private @declared(tensor<8x16xf32> {{{sharding}}}) -> (tensor<8x16xf32> {{{sharding}}})
      func.func private @called(%a: tensor<8x16xf32> {{{sharding}}}) -> (tensor<8x16xf32> {{{sharding}}}) {{
        return %a : tensor<8x16xf32>
      }}
      func.func @main(%arg0: tensor<8x16xf32>) -> tensor<8x16xf32> {{
        %0 = func.call @called(%arg0) {{sdy.sharding = #sdy.sharding_per_value<[<@m, [{{?}}, {{?}}]>]>}}
          : (tensor<8x16xf32>) -> tensor<8x16xf32>
        return %0 : tensor<8x16xf32>
      }}""")


def test_tokens_and_blocks() -> None:
    assert_round_trip(f"""{MESHES}
      func.func @main(%arg0: !stablehlo.token {{sdy.sharding = #sdy.sharding<@one_device, []>}}, %arg1: i1,
                      %arg2: tensor<8x16xf32> {{sdy.sharding = #sdy.sharding<@m, [{{"x"}}, {{}}]>}})
          -> (!stablehlo.token {{sdy.sharding = #sdy.sharding<@one_device, []>}},
              tensor<8x16xf32> {{sdy.sharding = #sdy.sharding<@m, [{{?}}, {{}}]>}}) {{
        cf.cond_br %arg1, ^first, ^second
      ^first:
        return %arg0, %arg2 : !stablehlo.token, tensor<8x16xf32>
      ^second:
        %0 = stablehlo.tanh %arg2 : tensor<8x16xf32>
        return %arg0, %0 : !stablehlo.token, tensor<8x16xf32>
      }}""")


def test_mesh_of_another_module() -> None:
    text = """module { module {
      sdy.mesh @m = <["x"=2]>
      func.func @main(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}]>}) { return }
    } }"""
    assert "names the mesh @m, which stands in another module" in importing(text)


MALFORMED = {
    "rank": ('@m, [{"x"}]', "sharding doesn't match tensor rank: 1 != 2"),
    "axis twice": ('@m, [{"x"}, {"x"}]', 'duplicate axis ref: "x"'),
    "unknown axis": ('@m, [{"w"}, {}]', 'unknown axis name: "w"'),
    "unknown mesh": ('@q, [{"x"}, {}]', "unknown mesh: @q"),
    "sub-axes overlap": ('@m, [{"y":(1)2}, {"y":(1)2}]', 'duplicate axis ref: "y":(1)2'),
    "sub-axis and axis": ('@m, [{"y":(1)2}, {"y"}]', 'both sub-axis and full-axis are used for axis name: "y"'),
    "sub-axis that does not divide": ('@m, [{"y":(3)2}, {}]', "doesn't divide the size of the full axis 4"),
    "split and replicated": ('@m, [{"x"}, {}], replicated={"x"}', 'duplicate axis ref: "x"'),
    "split and unreduced": ('@m, [{"x"}, {}], unreduced={"x"}', 'duplicate axis ref: "x"'),
    "priority of nothing": ('@m, [{"x"}, {}p1]', "dim 1 is empty and closed but has a priority"),
}

PLACES = {
    "argument": "func.func @main(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<SHARDING>}) { return }",
    "operation": """func.func @main(%arg0: tensor<8x16xf32>) {
      %0 = stablehlo.tanh %arg0 {sdy.sharding = #sdy.sharding_per_value<[<SHARDING>]>} : tensor<8x16xf32>
      return }""",
    "constraint": """func.func @main(%arg0: tensor<8x16xf32>) {
      %0 = sdy.sharding_constraint %arg0 <SHARDING> : tensor<8x16xf32>
      return }""",
}


def importing(text: str) -> str:
    """The diagnostic of reading and importing `text`."""
    with pytest.raises(MeshError) as caught:
        sdy.import_module(parsed(text))
    return str(caught.value)


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
@pytest.mark.parametrize(("sharding", "message"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_sharding(place: str, sharding: str, message: str) -> None:
    diagnostic = importing(MESHES + place.replace("SHARDING", sharding))
    assert message in diagnostic
    assert re.match(r"input\.mlir:[78]:\d+: error: ", diagnostic)


def test_malformed_sharding_in_a_module_that_was_never_verified() -> None:
    module = parsed(MESHES + PLACES["operation"].replace("SHARDING", '@m, [{"x"}, {}]'))
    with module.context:
        operation = module.body.operations[-1].regions[0].blocks[0].operations[0]
        operation.attributes["sdy.sharding"] = ir.Attribute.parse('#sdy.sharding_per_value<[<@m, [{"x"}, {"x"}]>]>')
    with pytest.raises(MeshError, match=r'8:.* duplicate axis ref: "x"'):
        formats.unpack(module, module.context)


def test_sub_axes_without_a_common_factorisation() -> None:
    text = """sdy.mesh @m = <["x"=6]>
      func.func @main(%arg0: tensor<6xf32> {sdy.sharding = #sdy.sharding<@m, [{"x":(1)2}]>}) {
        %0 = stablehlo.tanh %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@m, [{"x":(2)3}]>]>} : tensor<6xf32>
        %1 = stablehlo.tanh %0 {sdy.sharding = #sdy.sharding_per_value<[<@m, [{"x":(1)3}]>]>} : tensor<6xf32>
        return
      }"""
    diagnostic = importing(text)
    assert 'no factorisation of axis "x"=6 has sub-axes that end at 2 and at 3' in diagnostic
    assert re.match(r"[^:]*:4:14: error: 'stablehlo.tanh' op ", diagnostic)


MANUAL = """
  sdy.mesh @m = <["x"=2, "y"=2]>
  sdy.mesh @n = <["x"=2, "y"=2]>
  func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %0 = sdy.manual_computation(%arg0) in_shardings=[<IN>] out_shardings=[<OUT>] manual_axes={AXES} (%a: tensor<4xCOLUMNSxf32>) {
      BODY
      sdy.return %a : tensor<4xCOLUMNSxf32>
    } : (tensor<8x8xf32>) -> tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }"""

BROKEN_MANUAL = {
    "two meshes": ({"OUT": '@n, [{"x"}, {}]'}, 5, "expected in_shardings and out_shardings on one mesh, found @m and @n"),
    "order of axes": (
        {"IN": '@m, [{"x"}, {"y"}]', "OUT": '@m, [{"x"}, {"y"}]', "AXES": '"y", "x"', "COLUMNS": "4"},
        5,
        'expected manual_axes in the order of the mesh, {"x", "y"}, found {"y", "x"}',
    ),
    "free axis outside of a manual one": ({"IN": '@m, [{"y", "x"}, {}]'}, 5, 'Saw manual axis "x" after free axis "y"'),
    "unknown axis": ({"AXES": '"x", "w"'}, 5, 'unknown manual axis: "w"'),
    "local shape": ({"COLUMNS": "4"}, 5, "Expected local shape 'tensor<4x8xf32>', actual local shape 'tensor<4x4xf32>'"),
    "manual axis inside": (
        {"BODY": '%1 = sdy.sharding_constraint %a <@m, [{"x"}, {}]> : tensor<4x8xf32>'},
        6,
        'operates on axis "x" which is already bound by a parent sdy.manual_computation op',
    ),
    "rank in a group": (
        {
            "BODY": """sdy.sharding_group %a group_id=0 : tensor<4x8xf32>
                       %1 = stablehlo.constant dense<0.0> : tensor<4xf32>
                       sdy.sharding_group %1 group_id=0 : tensor<4xf32>"""
        },
        8,
        "in group 0 has rank 1, expected 2 like the group's first member at",
    ),
}


@pytest.mark.parametrize(("change", "line", "message"), BROKEN_MANUAL.values(), ids=BROKEN_MANUAL.keys())
def test_broken_manual_computation(change: dict[str, str], line: int, message: str) -> None:
    text = MANUAL
    defaults = {"IN": '@m, [{"x"}, {}]', "OUT": '@m, [{"x"}, {}]', "AXES": '"x"', "COLUMNS": "8", "BODY": ""}
    for name, value in (defaults | change).items():
        text = text.replace(name, value)
    diagnostic = importing(text)
    assert message in diagnostic
    assert re.match(rf"[^:]*:{line}:\d+: error: ", diagnostic)


def test_group_across_manual_computations() -> None:
    text = MANUAL.replace("BODY", "sdy.sharding_group %a group_id=0 : tensor<4x8xf32>").replace(
        "return %0", "sdy.sharding_group %0 group_id=0 : tensor<8x8xf32>\n return %0"
    )
    for name, value in {"IN": '@m, [{"x"}, {}]', "OUT": '@m, [{"x"}, {}]', "AXES": '"x"', "COLUMNS": "8"}.items():
        text = text.replace(name, value)
    assert 'in group 0 stands under the manual axes {}, expected {"x"}' in importing(text)


@pytest.mark.parametrize("used", [[], [AxisRef("x", 0, 2)], [AxisRef("x", 2, 4)], [AxisRef("x", -1, 2)]])
def test_axes_that_only_bytecode_can_say_are_refused(used: list[AxisRef]) -> None:
    size = 4 if used else 0
    with pytest.raises(ValueError, match=rf'axis "x"={size} cannot have a sub-axis from -?\d+ to \d+, expected sizes from 1 on'):
        factor([("x", size)], used)
