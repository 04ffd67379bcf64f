"""How often a program is walked through: a fixed number of times, however long it is."""

from __future__ import annotations

from collections import Counter

import pytest

from meshbridge import partitioning, pipeline
from meshbridge.ir import mlir
from meshbridge.ir.rewrite import Rewriter
from meshbridge.read import bytecode, formats
from meshbridge_converters import portable

LAYER = """
  %h{0} = stablehlo.dot %x{0}, %w1 : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %a{0} = stablehlo.tanh %h{0} : tensor<8x32xf32>
  %x{1} = stablehlo.dot %a{0}, %w2 : (tensor<8x32xf32>, tensor<32x16xf32>) -> tensor<8x16xf32>
"""


def layers(count: int) -> str:
    """A network of that many equal layers."""
    body = "".join(LAYER.format(index, index + 1) for index in range(count))
    return f"""
sdy.mesh @mesh = <["data"=2, "model"=4]>
func.func @main(%x0: tensor<8x16xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"data"}}, {{}}]>}},
                %w1: tensor<16x32xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"model"}}]>}},
                %w2: tensor<32x16xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"model"}}, {{}}]>}}) -> tensor<8x16xf32> {{
{body}
  return %x{count} : tensor<8x16xf32>
}}
"""


def walks(count: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What goes through the whole module while `layers(count)` is partitioned, and how often."""
    found: Counter[str] = Counter()
    begin, check = Rewriter.__init__, pipeline.verify

    def counted_begin(self: Rewriter, module: mlir.ir.Module) -> None:
        found[type(self).__name__] += 1
        begin(self, module)

    def counted_check(module: mlir.ir.Module) -> None:
        found["verify"] += 1
        check(module)

    with monkeypatch.context() as patched:
        patched.setattr(Rewriter, "__init__", counted_begin)
        patched.setattr(pipeline, "verify", counted_check)
        patched.setattr(pipeline, "VERIFIED", {"annotated": "last", "partitioned": "last"})
        module = formats.read(layers(count).encode(), "a.mlir", mlir.context()).module
        partitioning.partition_module(module)
    return found


def test_walks_do_not_grow_with_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = (walks(count, monkeypatch) for count in (2, 12))
    assert short == long
    assert short["verify"] == 3  # annotated, partitioned, lowered


def test_bytecode_names_its_dialects(ctx: mlir.ir.Context) -> None:
    text = """
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.abs %a {some.note = #other.note<1>} : tensor<4xf32>
  %1 = "mesh.all_reduce"(%0) : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}"""
    data = mlir.to_bytecode(mlir.parse(text, "a.mlir", ctx))
    assert bytecode.dialects(data) == {"builtin", "func", "stablehlo", "other", "mesh"}
    with pytest.raises(ValueError, match="ends early"):
        bytecode.dialects(data[: len(data) // 2])
    with pytest.raises(ValueError, match="not MLIR bytecode"):
        bytecode.dialects(text.encode())


@pytest.mark.parametrize("op", ["stablehlo.abs", "chlo.erf"])
def test_artifacts_hold_versioned_ops_alone(op: str, ctx: mlir.ir.Context) -> None:
    text = f"""
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {{
  %0 = "{op}"(%a) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}}"""
    module = mlir.parse(text, "a.mlir", ctx)
    before = str(module)
    data = portable.serialize(module)
    assert bytecode.dialects(data) <= {"builtin", "vhlo", "sdy"}
    assert str(module) == before
    assert "main" in str(portable.deserialize(data, "a", ctx))


@pytest.mark.parametrize("note", ["math.absf %a", "stablehlo.abs %a {some.note = #other.note<1>}"])
def test_artifacts_refuse_what_readers_do_not_know(note: str, ctx: mlir.ir.Context) -> None:
    text = f"func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {{ %0 = {note} : tensor<4xf32>\n return %0 : tensor<4xf32> }}"
    with pytest.raises(mlir.MeshError, match="cannot be written as a StableHLO portable artifact"):
        portable.serialize(mlir.parse(text, "a.mlir", ctx))


def test_ops_are_found_in_the_order_of_a_walk(ctx: mlir.ir.Context) -> None:
    text = """
func.func @main(%a: tensor<4xf32>, %p: tensor<i1>) -> tensor<4xf32> {
  %0 = "mesh.all_reduce"(%a) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "stablehlo.if"(%p) ({
    %2 = "stablehlo.if"(%p) ({
      %3 = "mesh.all_gather"(%0) : (tensor<4xf32>) -> tensor<4xf32>
      "stablehlo.return"(%3) : (tensor<4xf32>) -> ()
    }, {
      "stablehlo.return"(%0) : (tensor<4xf32>) -> ()
    }) : (tensor<i1>) -> tensor<4xf32>
    "stablehlo.return"(%2) : (tensor<4xf32>) -> ()
  }, {
    %2 = "mesh.all_reduce"(%0) : (tensor<4xf32>) -> tensor<4xf32>
    "stablehlo.return"(%2) : (tensor<4xf32>) -> ()
  }) : (tensor<i1>) -> tensor<4xf32>
  %4 = "mesh.all_reduce"(%1) : (tensor<4xf32>) -> tensor<4xf32>
  return %4 : tensor<4xf32>
}"""
    module = mlir.parse(text, "a.mlir", ctx)
    for names in ({"mesh.all_reduce"}, {"mesh.all_reduce", "mesh.all_gather", "stablehlo.if"}, {"func.func", "stablehlo.if"}):
        assert mlir.find(module.operation, names) == [op for op in mlir.walk_all(module) if op.name in names]


def test_unknown_operations_of_the_dialect_are_refused(ctx: mlir.ir.Context) -> None:
    module = mlir.parse('"mesh.all_told"() : () -> ()', "a.mlir", ctx)
    for read in (
        lambda: formats.unpack(module, ctx),
        lambda: formats.read(mlir.to_bytecode(module), "a.mlirbc", mlir.context()),
    ):
        with pytest.raises(mlir.VerifyError, match=r"'mesh.all_told' op is not an operation of the mesh dialect"):
            read()
