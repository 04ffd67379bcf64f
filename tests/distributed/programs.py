"""What the processes of these tests do: `python -m tests.distributed.programs NAME PORT PROCESSES OWN [ARGUMENT…]`.

Each compares its own shards with the unsharded program, compiled by JAX for one of its own devices.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax._src import distributed
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.runtime import pjrt
from tests.patience import PATIENCE
from tests.pipelines.steps import accumulating, clipped, gpt, gpt_loss, in_stacks, mlp, mlp_loss, one_scan_loss

SILENCE = 30
"""Seconds without a sign of life after which a process counts as lost, in the program that loses one."""


def device_mesh(*, devices: Any = None, kind: AxisType = AxisType.Auto) -> jax.sharding.Mesh:
    """All devices as two rows: `data`, `model`."""
    every = np.array(jax.devices() if devices is None else devices)
    return jax.sharding.Mesh(every.reshape(2, -1), ("data", "model"), axis_types=(kind, kind))


def numbers(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return (3 * np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


def spread(value: np.ndarray, sharding: Any) -> jax.Array:
    """An array that no process holds whole."""
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def check(found: Any, expected: Any, *, relative: float = 1e-5) -> None:
    """That every shard which this process has is the same part of what is expected."""
    for array, value in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        whole = np.asarray(value)
        assert (array.shape, array.dtype) == (whole.shape, whole.dtype)
        if isinstance(array, meshbridge.LayerStack):
            check(array.parts, [whole[start:end] for start, end in array.bounds], relative=relative)
            continue
        for shard in array.addressable_shards:
            own, part = np.asarray(shard.data).astype(np.complex128), whole[shard.index].astype(np.complex128)
            np.testing.assert_allclose(own, part, rtol=relative, atol=relative)


def train_step(weights: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    def loss(weights: dict[str, jax.Array]) -> jax.Array:
        return jnp.square(jnp.tanh(x @ weights["up"]) @ weights["down"] - y).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda old, change: old - 0.1 * change, weights, gradients), value


def train_arguments() -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    weights = {"up": 0.1 * numbers(16, 32), "down": 0.1 * numbers(32, 8, seed=1)}
    return weights, numbers(8, 16, seed=2), numbers(8, 8, seed=3)


def sharded_step(mesh: jax.sharding.Mesh) -> tuple[Any, tuple[Any, Any, Any]]:
    """The step as a jitted function, and the shardings of its arguments."""
    weights = {"up": NamedSharding(mesh, P(None, "model")), "down": NamedSharding(mesh, P("model"))}
    rows = NamedSharding(mesh, P("data"))
    scalar = NamedSharding(mesh, P())
    return jax.jit(train_step, in_shardings=(weights, rows, rows), out_shardings=(weights, scalar)), (weights, rows, rows)


def training() -> None:
    """Three steps, as an executable and as an Exported, on arrays that no process holds whole, and on values that all do."""
    step, shardings = sharded_step(device_mesh())
    values = train_arguments()
    own = [values]
    for _ in range(3):
        weights, loss = jax.jit(train_step)(*own[-1])
        own.append((weights, *values[1:]))
    arrays = jax.tree.map(spread, values, shardings)
    assert not arrays[0]["up"].is_fully_addressable
    executable = meshbridge.compile(step, *arrays)
    partitioned = meshbridge.partition(step, *values)
    meshbridge.assert_same_plan(partitioned)
    jitted = meshbridge.jit(step)
    for call in (executable, jax.jit(partitioned.call), jax.jit(lambda *given: executable(*given)), jitted):
        state = arrays[0]
        for _ in range(3):
            state, found = call(state, *arrays[1:])
        check((state, found), (own[-1][0], loss))
    check(executable(*values), jax.jit(train_step)(*values))
    rows = jax.make_array_from_process_local_data(shardings[1], _own_rows(values[1]), values[1].shape)
    check(executable(arrays[0], rows, arrays[2]), jax.jit(train_step)(*values))


def jitted() -> None:
    """A step of `meshbridge.jit`, which one process alone has called before, in a folder of plans that all share."""
    step, shardings = sharded_step(device_mesh())
    values = train_arguments()
    found = meshbridge.jit(step)(*jax.tree.map(spread, values, shardings))
    check(found, jax.jit(train_step)(*values))


def _own_rows(whole: np.ndarray) -> np.ndarray:
    """The rows of this process, where the processes' devices come one after the other along `data`."""
    groups = min(2, jax.process_count())
    return np.split(whole, groups)[jax.process_index() * groups // jax.process_count()]


UNEVEN = """
sdy.mesh @mesh = <["data"=2, "model"=4]{order}>
func.func @main(%a: tensor<7x6xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"data"}}, {{"model"}}]>}})
    -> (tensor<7x6xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"model"}}, {{}}]>}}, tensor<6xf32>) {{
  %sum = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.add %a, %a : tensor<7x6xf32>
  %1 = stablehlo.reduce(%a init: %sum) applies stablehlo.add across dimensions = [0]
    : (tensor<7x6xf32>, tensor<f32>) -> tensor<6xf32>
  return %0, %1 : tensor<7x6xf32>, tensor<6xf32>
}}
"""


def arrays(folder: str) -> None:
    """Arrays in other shardings than the program takes."""
    mesh = device_mesh()
    devices = jax.devices()
    value = numbers(7, 6)
    for number, order in enumerate(("", ", device_ids=[7, 6, 5, 4, 3, 2, 1, 0]", ", device_ids=[0, 4, 1, 5, 2, 6, 3, 7]")):
        file = Path(folder) / f"uneven{jax.process_index()}.{number}.mlir"
        file.write_text(UNEVEN.format(order=order))
        executable = meshbridge.compile(meshbridge.load(file))
        for given in (value, spread(value, NamedSharding(mesh, P())), spread(value, NamedSharding(mesh, P(None, "data")))):
            check(executable(given), [value + value, value.sum(0)])

    product = jax.jit(lambda x: x @ x.T, in_shardings=NamedSharding(mesh, P("data", "model")))
    value = numbers(8, 16)
    across = [device for pair in zip(devices[:4], devices[4:], strict=True) for device in pair]
    for order in (devices, devices[::-1], across):
        executable = meshbridge.compile(product, value, devices=order)
        for held in (devices, devices[::-1]):
            other = device_mesh(devices=held)
            check(executable(spread(value, NamedSharding(other, P("model", "data")))), value @ value.T, relative=1e-4)
        check(executable(jnp.asarray(value)), value @ value.T, relative=1e-4)
        check(executable(jax.device_put(value, jax.local_devices()[1])), value @ value.T, relative=1e-4)

    turned = device_mesh(devices=devices[::-1])
    given = spread(value, NamedSharding(turned, P("data", "model")))
    executable = meshbridge.compile(jax.jit(lambda x: x @ x.T), given)
    assert executable.loaded.devices == tuple(devices[::-1])
    check(executable(given), value @ value.T, relative=1e-4)

    half = jax.sharding.Mesh(np.array([*devices[:2], *devices[4:6]]), ("half",))
    with pytest.raises(meshbridge.MeshError, match=r"args\[0\]: the array is on the 4 devices .*, expected the 8 devices"):
        meshbridge.compile(product, value)(spread(value, NamedSharding(half, P("half"))))

    value[0, 0] = np.nan
    double = jax.jit(lambda x: x * 2, in_shardings=NamedSharding(mesh, P("data")), out_shardings=NamedSharding(mesh, P("model")))
    check(meshbridge.compile(double, value)(value), value * 2)
    with jax.enable_x64(True):
        wide = numbers(8, 16, dtype=np.float64)
        check(meshbridge.compile(double, wide)(wide), wide * 2, relative=1e-15)


def leaves() -> None:
    """Keys, scalars, empty arrays, sums whose terms lie on several processes, and programs for some of the devices."""
    mesh = device_mesh()
    rows, copies = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())

    def draw(key: jax.Array, scale: float, empty: jax.Array) -> dict[str, Any]:
        return {
            "split": jax.random.key_data(jax.random.split(key, 4)),
            "drawn": scale * jax.random.normal(key, (8, 3)),
            "e": empty,
        }

    jitted = jax.jit(draw, in_shardings=(copies, None, None), out_shardings={"split": copies, "drawn": rows, "e": None})
    empty = np.zeros((0, 3), np.float32)
    executable = meshbridge.compile(jitted, jax.random.key(3), 2.0, empty)
    expected = jax.jit(draw)(jax.random.key(3), 2.0, empty)
    check(executable(jax.random.key(3), 2.0, empty), expected)
    check(executable(jax.jit(lambda: jax.random.key(3), out_shardings=copies)(), 2.0, empty), expected)

    explicit = device_mesh(kind=AxisType.Explicit)
    terms = NamedSharding(explicit, P(None, None, unreduced={"model"}))
    value = numbers(8, 8)
    value[0, 0] = np.inf
    given = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=terms)
    reduced = meshbridge.compile(jax.jit(lambda x: jax.sharding.reshard(x, NamedSharding(explicit, P("data")))), given)
    check(reduced(value), value)
    check(reduced(spread(value, NamedSharding(explicit, P("model")))), value)

    value = numbers(8, 16)
    one = meshbridge.compile(jax.jit(lambda x: x * 2), value)(value)
    assert one.devices() == {jax.local_devices()[0]}
    check(one, value * 2)

    first = jax.sharding.Mesh(np.array(jax.devices()[: jax.local_device_count()]), ("first",))
    small = jax.jit(lambda x: x * 2, in_shardings=NamedSharding(first, P("first")))
    if jax.process_index() == 0:
        check(meshbridge.compile(small, value)(value), value * 2)
    else:
        with pytest.raises(meshbridge.MeshError, match=r"runs on the \d devices .*, all of process 0, this is process \d"):
            meshbridge.compile(small, value)
    check(meshbridge.compile(jitted, jax.random.key(3), 2.0, empty)(jax.random.key(3), 2.0, empty), expected)


def kinds_of_numbers() -> None:
    """Collectives of each kind, between processes, on each kind of number."""
    mesh = device_mesh()
    both, turned = NamedSharding(mesh, P("data", "model")), NamedSharding(mesh, P("model", "data"))

    def program(x: jax.Array) -> tuple[jax.Array, ...]:
        largest = x.max(0) if not jnp.iscomplexobj(x) else x.prod(0)
        return x.sum(0), jnp.flip(x, 0), x, largest, jnp.roll(x, 3, 1), jnp.cumsum(x, 0)

    outputs = (NamedSharding(mesh, P("model")), both, turned, None, both, turned)
    jitted = jax.jit(program, in_shardings=both, out_shardings=outputs)
    for dtype in (jnp.bfloat16, jnp.float16, jnp.int8, jnp.uint8, jnp.int16, jnp.int32, jnp.complex64, jnp.bool):
        # Whole numbers, whose sums all these types hold; of 2, products are powers.
        value = np.random.default_rng(0).choice(np.array([1, 2]), (16, 16)).astype(dtype)
        expected = jax.jit(program)(value)
        check(meshbridge.compile(jitted, value)(value), expected)
        check(meshbridge.partition(jitted, value).call(spread(value, both)), expected)


def disagreement() -> None:
    """Processes that are about to run different programs, or of which one fails or does not come, all say so."""
    step, _ = sharded_step(device_mesh())
    values = train_arguments()
    own = jax.process_index()
    last = jax.process_count() - 1
    others = "process 0" if last == 1 else "processes 0, 1, 2"
    odd = f"process {last} would run another program than {others}"

    def refused(text: str, action: Callable[[], Any]) -> None:
        with pytest.raises(meshbridge.MeshError, match=text):
            action()

    machine = "bytes" if own == last else "neutral"
    refused(
        f"(?s){odd}.*machine of process {last}: bytes, expected neutral",
        lambda: meshbridge.compile(step, *values, machine=machine),
    )
    longer = (values[0], *(np.concatenate([value, value]) for value in values[1:])) if own == last else values
    refused(f"(?s){odd}.*signature of process {last}: .*tensor<16x16xf32>.*plan of", lambda: meshbridge.compile(step, *longer))
    devices = jax.devices()[::-1] if own == last else jax.devices()
    refused(f"(?s){odd}.*devices of process {last}", lambda: meshbridge.compile(step, *values, devices=devices))
    refused(f"(?s){odd}.*plan of", lambda: meshbridge.assert_same_plan(meshbridge.partition(step, *longer)))
    limit = 10.0 if own == last else None
    reason = "memory" if own == last else f"process {last} could not compile this program.*memory"
    refused(f"(?s){reason}", lambda: meshbridge.compile(step, *values, memory_limit=limit))
    options = {"xla_no_such_option": own}
    refused("(?s)another program.*compiler options", lambda: meshbridge.compile(step, *values, compiler_options=options))

    with pytest.MonkeyPatch.context() as patch:
        if own == last:
            patch.setattr(pjrt, "_load", out_of_memory)
        reason = "no memory left" if own == last else f"process {last} could not compile this program.*no memory left"
        refused(f"(?s){reason}", lambda: meshbridge.compile(step, *values))
        patch.setenv("MESHBRIDGE_PROCESS_TIMEOUT", "soon")
        refused("MESHBRIDGE_PROCESS_TIMEOUT is 'soon', expected a number", lambda: meshbridge.compile(step, *values))

    executable = meshbridge.compile(step, *values)
    check(executable(*values), jax.jit(train_step)(*values))
    multihost_utils.sync_global_devices("all have read the answers")
    if own == 0:  # those of the last meeting alone: a long run leaves nothing behind
        left = distributed.global_state.client.key_value_dir_get("meshbridge")
        assert len(left) == jax.process_count() + 1, left
    other = (values[0], values[1] + own, values[2])
    refused(r"args\[1\]: process(es)? .* ha(s|ve) another value than process 0", lambda: executable(*other))

    multihost_utils.sync_global_devices("all but the last compile once more")
    if own != last:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MESHBRIDGE_PROCESS_TIMEOUT", "10")
            refused(f"process {last} did not come to this program within 10 seconds", lambda: meshbridge.compile(step, *values))


def out_of_memory(*_: Any, **__: Any) -> None:
    raise meshbridge.MeshError("error: no memory left")


def from_a_file(partitioned: str, original: str) -> None:
    """What one host has partitioned, on all of them."""
    values = train_arguments()
    expected = jax.jit(train_step)(*values)
    _, shardings = sharded_step(device_mesh())
    arrays = jax.tree.map(spread, values, shardings)
    for file in (partitioned, original):
        check(meshbridge.compile(meshbridge.load(file))(*arrays), expected)
    held = export.deserialize(bytearray(Path(partitioned).read_bytes()))
    meshbridge.assert_same_plan(held)
    check(jax.jit(held.call)(*arrays), expected)


def loss_of_a_process() -> None:
    """The last process is killed between two steps."""
    step, shardings = sharded_step(device_mesh())
    arrays = jax.tree.map(spread, train_arguments(), shardings)
    executable = meshbridge.compile(step, *arrays)
    state = arrays[0]
    for number in range(1000):
        state, _ = jax.block_until_ready(executable(state, *arrays[1:]))
        print("step", number, flush=True)
        if number == 3 and jax.process_index() == jax.process_count() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)


def pipelined(schedule: str, stages: str) -> None:
    """Steps of pipelines, each stage of which one process has, from numpy's arrays and then from results of steps."""
    count = int(stages)
    size = 8 // count
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:size]), ("fsdp",), axis_types=(AxisType.Auto,))
    params, tokens = gpt(4)
    for step, start in (
        (accumulating(gpt_loss, count, update=clipped), params),  # whose embedding is also its head
        (accumulating(one_scan_loss, 1, update=clipped), in_stacks(gpt(5)[0])),  # one stage has more layers
        (accumulating(one_scan_loss, 1, update=clipped), in_stacks(params)),
    ):
        rows = NamedSharding(mesh, P("fsdp"))
        shardings = {"embed": rows, "layers": jax.tree.map(lambda _: NamedSharding(mesh, P()), start["layers"])}
        options = {"in_shardings": (shardings, NamedSharding(mesh, P())), "out_shardings": (shardings, None)}
        function = meshbridge.pipelined(step, stages=count, schedule=schedule, donate_argnums=0, **options)
        alone = jax.jit(step, device=jax.local_devices()[0])
        found, expected = start, start
        for _ in range(3):
            found, loss = function(found, tokens)
            expected, expected_loss = alone(expected, tokens)
            check((found, loss), (expected, expected_loss))
    kernel = found["layers"]["up"]
    assert kernel.sharding.device_set == set(jax.devices())
    assert len(kernel.addressable_shards) == jax.local_device_count()
    with pytest.raises(meshbridge.MeshError, match="the array is on devices of other processes"):
        function(found, jax.device_put(tokens, NamedSharding(device_mesh(), P("data"))))


def pipelined_across() -> None:
    """Stages of which two processes have devices are refused in both, and so are schedules that differ."""
    params, batch = mlp()
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("fsdp",), axis_types=(AxisType.Auto,))
    shardings = jax.tree.map(lambda leaf: NamedSharding(mesh, P("fsdp") if leaf.ndim > 1 else P()), params)
    across = meshbridge.pipelined(accumulating(mlp_loss, 1), stages=1, in_shardings=(shardings, None))
    text = "the devices of stage 0 belong to processes 0, 1, expected those of one process"
    with pytest.raises(meshbridge.MeshError, match=text):
        across(params, batch)
    schedule = ("gpipe", "1f1b")[jax.process_index()]
    with pytest.raises(meshbridge.MeshError, match="schedule"):
        meshbridge.pipelined(accumulating(mlp_loss, 2), stages=2, schedule=schedule, devices=jax.devices()[3:5])(params, batch)


PROGRAMS: tuple[Callable[..., None], ...] = (
    training,
    jitted,
    arrays,
    leaves,
    kinds_of_numbers,
    disagreement,
    from_a_file,
    loss_of_a_process,
    pipelined,
    pipelined_across,
)


def main() -> None:
    name, port, count, own, *arguments = sys.argv[1:]
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{port}",
        int(count),
        int(own),
        heartbeat_timeout_seconds=SILENCE if name == loss_of_a_process.__name__ else PATIENCE,
        shutdown_timeout_seconds=PATIENCE,
    )
    {program.__name__: program for program in PROGRAMS}[name](*arguments)
    print("done", flush=True)


if __name__ == "__main__":
    main()
