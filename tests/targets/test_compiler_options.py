"""XLA's options reach the compilers of accelerators: under a machine's own, collectives overlap that do not by default."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshbridge.ir.mlir import MeshError, context
from meshbridge.read import formats
from meshbridge.runtime.compiler_options import CompilerOptions
from meshbridge.runtime.targets import EXPORT_PLATFORM
from meshbridge.tools.compare import command
from meshbridge.tools.compare.contestants import OURS, PEER
from tests.targets.installed import target

pytestmark = pytest.mark.targets

WIDTH, TOKENS = 2048, 8192

DEVICES = np.array(jax.devices()[:8])


@pytest.fixture(autouse=True)
def _for_tests_on_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def layers(text: str) -> formats.Program:
    """Products with parameters that are sharded over 8 devices, one after the other, for the target's platform."""
    mesh = Mesh(DEVICES, ("data",))
    sharded, batch = (NamedSharding(mesh, spec) for spec in (P("data"), P("data")))

    def run(weights: Any, x: Any) -> Any:
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return x

    weights, x = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.bfloat16)] * 4, jax.ShapeDtypeStruct((TOKENS, WIDTH), jnp.bfloat16)
    jitted = jax.jit(run, in_shardings=(sharded, batch), out_shardings=batch)
    platform = EXPORT_PLATFORM[target(text).machine.platform]
    return formats.unpack(jax.export.export(jitted, platforms=(platform,))(weights, x), context())


def compared(text: str, options: CompilerOptions) -> command.TargetComparison:
    (found,) = command.compare_for(layers(text), [target(text)], compiler_options=options, without=[PEER, "xla-gspmd"])
    assert not found.figures[OURS].error
    return found


def test_gathers_overlap_under_a_machine_s_options() -> None:
    """A v5p waits for all of them by default. The bytes are the same."""
    default, best = (compared("tpu:v5p:2x2x2", CompilerOptions(each)).figures[OURS] for each in ("default", "best"))
    assert default.wire_bytes == best.wire_bytes
    assert default.overlapped_bytes == 0
    assert best.overlapped_bytes > best.wire_bytes / 2


def test_options_of_one_s_own() -> None:
    own = compared("tpu:v5e:2x4", CompilerOptions(given={"xla_enable_async_all_gather": False})).figures[OURS]
    assert own.asynchronous < compared("tpu:v5e:2x4", CompilerOptions()).figures[OURS].asynchronous


@pytest.mark.parametrize("text", ["tpu:v5e:2x4", "gpu:h100:1x1x8"])
@pytest.mark.parametrize("given", [{"xla_no_such_option": True}, {"xla_latency_hiding_scheduler_rerun": "often"}])
def test_options_that_there_are_not(text: str, given: dict[str, Any]) -> None:
    """One diagnostic, by which the command ends; what it says beside the target and the name is XLA's."""
    program, chosen, options = layers(text), target(text), CompilerOptions(given=given)
    with pytest.raises(MeshError, match=f"error: target '{text}': XLA does not take the compiler options: .*{next(iter(given))}"):
        command.compare_for(program, [chosen], compiler_options=options)
    with pytest.raises(MeshError, match=f"error: target '{text}': XLA does not take the compiler options: .*{next(iter(given))}"):
        command.executable_for(program, chosen, compiler_options=options)


@pytest.mark.parametrize("text", ["tpu:v4:2x2x2", "tpu:v5e:2x4", "tpu:v5p:2x2x2", "tpu:v6e:2x4", "tpu:7x:2x2x1"])
def test_compilers_know_the_options_of_their_machines(text: str) -> None:
    (found,) = command.compare_for(layers(text), [target(text)], compiler_options=CompilerOptions("best"), without=["xla-gspmd"])
    assert {name: each.error for name, each in found.figures.items()} == {OURS: "", PEER: ""}
