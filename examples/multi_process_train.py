"""Trains a small network in several processes, saves checkpoints with Orbax, and goes on from the last one.

python examples/multi_process_train.py --processes 2

starts two processes of two CPU devices each on this machine. Started again with the same `--checkpoints`, also with another
number of processes, it goes on from the last checkpoint: arrays are read in the shardings of the partitioned step, whoever wrote
them. `--lose 7` kills a process in step 7; JAX then ends the others. On a cluster, where a scheduler starts the processes,
`--cluster` takes the place of `--processes`.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge

WIDTH, HIDDEN, ROWS = 64, 128, 32
DEVICES = 4
"""Of all processes together on this machine."""
EVERY = 5
"""Steps from one checkpoint to the next."""
SILENCE = 10
"""Seconds without a sign of life after which a process counts as lost: JAX waits for 100."""

State = dict[str, Any]


def initial() -> State:
    """Weights and their momenta, whole, the same in every process."""
    generator = np.random.default_rng(0)
    shapes = {"up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
    weights = {name: generator.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
    return {"weights": weights, "momenta": {name: np.zeros_like(value) for name, value in weights.items()}}


def batch(step: int) -> np.ndarray:
    """The rows of a step. A real program reads those of its own devices alone."""
    return np.random.default_rng(1000 + step).normal(size=(ROWS, WIDTH)).astype(np.float32)


def loss(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """How far the network is from giving each row reversed."""
    return jnp.square(jnp.tanh(x @ weights["up"]) @ weights["down"] - x[:, ::-1]).mean()


def train_step(state: State, x: jax.Array) -> tuple[State, jax.Array]:
    value, gradients = jax.value_and_grad(loss)(state["weights"], x)
    momenta = jax.tree.map(lambda old, new: 0.9 * old + new, state["momenta"], gradients)
    weights = jax.tree.map(lambda old, change: old - 0.5 * change, state["weights"], momenta)
    return {"weights": weights, "momenta": momenta}, value


def partitioned_step(mesh: jax.sharding.Mesh) -> jax.export.Exported:
    """The step, rows split over `data`, weights over both axes. Every process decides the same."""
    split = {"up": NamedSharding(mesh, P("data", "model")), "down": NamedSharding(mesh, P("model", "data"))}
    state = {"weights": split, "momenta": split}
    rows = NamedSharding(mesh, P("data"))
    jitted = jax.jit(train_step, in_shardings=(state, rows), out_shardings=(state, NamedSharding(mesh, P())))
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (initial(), batch(0)))
    partitioned = meshbridge.partition(jitted, *shapes)
    meshbridge.assert_same_plan(partitioned)
    return partitioned


def spread(value: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
    """A global array of which this process fills in the shards of its own devices."""
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def restored(manager: ocp.CheckpointManager, shardings: State) -> tuple[int, State]:
    """The step to go on with, and the state before it: that of the last checkpoint, if there is one."""
    last = manager.latest_step()
    if last is None:
        return 0, jax.tree.map(spread, initial(), shardings)
    wanted = jax.tree.map(lambda leaf, to: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=to), initial(), shardings)
    return last + 1, manager.restore(last, args=ocp.args.StandardRestore(wanted))


def train(options: argparse.Namespace) -> None:
    """What each process does."""
    mesh = jax.make_mesh((2, jax.device_count() // 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    partitioned = partitioned_step(mesh)
    shardings, rows = jax.tree.unflatten(partitioned.in_tree, partitioned.in_shardings_jax(mesh))[0]
    step = jax.jit(partitioned.call, donate_argnums=0)
    with ocp.CheckpointManager(options.checkpoints.absolute()) as manager:
        first, state = restored(manager, shardings)
        say(f"{jax.process_count()} processes, {jax.device_count()} devices, from step {first}")
        for number in range(first, options.steps):
            state, value = step(state, spread(batch(number), rows))
            if number == options.lose and jax.process_index() == jax.process_count() - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if number % EVERY == EVERY - 1 or number == options.steps - 1:
                say(f"step {number}: loss {float(value):.6f}")
                manager.save(number, args=ocp.args.StandardSave(state))


def say(text: str) -> None:
    """Prints in the first process alone."""
    if jax.process_index() == 0:
        print(text, flush=True)


def work(options: argparse.Namespace) -> None:
    """One of the processes on this machine, each with its share of the CPU devices."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES // options.processes)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    timeouts = {"heartbeat_timeout_seconds": SILENCE, "shutdown_timeout_seconds": 60}
    jax.distributed.initialize(f"127.0.0.1:{options.port}", options.processes, options.process, **timeouts)
    train(options)


def launch(arguments: list[str], processes: int) -> int:
    """Starts the processes on this machine and waits for all: where one is lost, JAX ends the others. Gives the exit status."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, *arguments, "--port", str(port), "--process"]
    workers = [subprocess.Popen([*command, str(index)]) for index in range(processes)]
    try:
        statuses = [worker.wait() for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    for index, status in enumerate(statuses):
        if status:
            print(f"process {index} ended with status {status}", file=sys.stderr)
    return int(any(statuses))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2, choices=(1, 2, 4), help="how many to start on this machine")
    parser.add_argument("--cluster", action="store_true", help="be one of the processes that a scheduler has started")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--checkpoints", type=Path, help="a folder that all processes see; a new one by default")
    parser.add_argument("--lose", type=int, help="the step in which the last process is killed")
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cluster:
        if options.checkpoints is None:
            parser.error("--cluster needs --checkpoints, a folder that all hosts see")
        jax.distributed.initialize()
        train(options)
        return 0
    if options.process is not None:
        work(options)
        return 0
    if options.checkpoints is None:
        with tempfile.TemporaryDirectory() as folder:
            return launch([*sys.argv[1:], "--checkpoints", folder], options.processes)
    return launch(sys.argv[1:], options.processes)


if __name__ == "__main__":
    sys.exit(main())
