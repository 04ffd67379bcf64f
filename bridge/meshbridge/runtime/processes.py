"""The processes that run one program together: that all decided the same, and arrays that no process holds whole.

Devices wait for each other in every collective. Processes with different plans would wait forever, or exchange data that does not
belong together. So each process writes what it is about to run into the key-value store of `jax.distributed`. One process, the
first that has some of the devices, reads all entries and answers: every other process writes once and reads twice.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from types import MappingProxyType, TracebackType
from typing import Any

import jax
import jaxlib.version
import numpy as np

from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError, ir

WAIT_VARIABLE = "MESHBRIDGE_PROCESS_TIMEOUT"
"""Environment variable: seconds for which a process waits for the others to reach the same program."""

WAIT = 600.0
"""Hosts partition a program of 100,000 ops in a minute, and may start minutes apart where each loads data first."""

Facts = Mapping[str, str]
"""What a process is about to run, by the name of each part."""


def of(devices: Sequence[Any]) -> tuple[int, ...]:
    """The numbers of the processes that have some of JAX's `devices`, in order; none for ahead-of-time devices."""
    if not devices or isinstance(devices[0].client, mlir.CompileOnlyClient):
        return ()
    return tuple(sorted({device.process_index for device in devices}))


def own_device(devices: Sequence[Any]) -> Any:
    """The first of the `devices` that this process has, or any ahead-of-time device."""
    if len(of(devices)) < 2:
        return devices[0]
    return next(device for device in devices if device.process_index == jax.process_index())


def signature(module: ir.Module) -> str:
    """The types of a program's arguments and results, as they are before it is partitioned."""
    return str(mlir.function_type(mlir.main_function(module)))


@dataclass(frozen=True)
class Agreement:
    """Checks that the processes with some of the `available` devices come to the same programs in the same order.

    As a context manager it tells the others if this process fails, so that they stop as well. In a single process it does
    nothing.
    """

    available: Sequence[Any]

    def __enter__(self) -> Agreement:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None and not isinstance(error, Disagreement | Elsewhere) and _shared(self.available):
            _Meeting(of(self.available)).fail(str(error) or type(error).__name__)

    def require(
        self, used: Sequence[Any], plan: ir.Module | None = None, facts: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """Waits for the processes of the `used` devices. Raises Disagreement unless all have the same plan, from the same facts,
        for the same devices."""
        if not _shared(used):
            return
        own_facts = {name: str(value) for name, value in facts.items()} | {"devices": str([device.id for device in used])}
        _Meeting(of(used)).meet(own_facts | _versions() | ({} if plan is None else {"plan": mlir.digest(plan)}))


def _shared(devices: Sequence[Any]) -> bool:
    group = of(devices)
    return len(group) > 1 and jax.process_index() in group


def _versions() -> dict[str, str]:
    """The releases that determine a plan and its compilation by XLA."""
    return {"meshbridge": version("meshbridge"), "jax": jax.__version__, "jaxlib": jaxlib.version.__version__}


class Disagreement(MeshError):
    """The processes are about to run different programs, or some do not come to it."""


class Elsewhere(MeshError):
    """All devices of a program belong to other processes, which continue without this one."""


_rounds: Counter[str] = Counter()
"""The number of meetings of each group of processes: all members count the same."""


class _Meeting:
    """One meeting of a group of processes. Raises MeshError without `jax.distributed`."""

    def __init__(self, group: tuple[int, ...]) -> None:
        from jax._src import distributed  # the key-value store of jax.distributed has no public name, in jax 0.9 nor in 0.10

        self.client: Any = distributed.global_state.client
        if self.client is None:
            hint = "call jax.distributed.initialize() before anything else of JAX"
            raise MeshError(
                f"error: the devices are of {len(group)} processes, which jax.distributed has not connected\n  hint: {hint}"
            )
        self.group, self.own = group, jax.process_index()
        self.wait = _seconds()
        self.folder = f"meshbridge/{hashlib.blake2b(repr(group).encode(), digest_size=8).hexdigest()}"
        self.number = _rounds[self.folder]
        _rounds[self.folder] += 1

    def fail(self, why: str) -> None:
        """Tells the others, who read it as this process's facts or as the answer."""
        self._say({"failed": why})
        if self.own == self.group[0]:
            self._answer(_failed({self.own: why}))

    def meet(self, facts: Facts) -> None:
        """Raises Disagreement unless all members have the same facts."""
        self._say(facts)
        leader = self.group[0]
        if self.own == leader:
            answer = self._judge()
            self._answer(answer)
        elif self._read(leader, time.monotonic() + self.wait) is None:
            answer = self._absent([leader])
        else:  # the leader may have come that late, and then waits as long for others
            answer = self._get("answer", self.wait + 10) or self._absent([leader])
        if answer != _SAME:
            raise Disagreement(answer)

    def _judge(self) -> str:
        """The answer for all, once all have come or time is up."""
        deadline = time.monotonic() + self.wait
        facts_of = {process: self._read(process, deadline) for process in self.group}
        absent = [process for process, facts in facts_of.items() if facts is None]
        if self.number and not absent:  # all have read the answer before, or they would not be here
            self.client.key_value_delete(f"{self.folder}/{self.number - 1}")
        if failures := {process: facts["failed"] for process, facts in facts_of.items() if facts and "failed" in facts}:
            return _failed(failures)
        if absent:
            return self._absent(absent)
        return _compared({process: facts for process, facts in facts_of.items() if facts is not None})

    def _absent(self, processes: Sequence[int]) -> str:
        came = f"{named(processes)} did not come to this program within {self.wait:g} seconds"
        hint = f"every process has to compile the same programs in the same order; {WAIT_VARIABLE} sets the seconds to wait"
        return f"error: {came}\n  hint: {hint}"

    def _say(self, facts: Facts) -> None:
        self.client.key_value_set(f"{self.folder}/{self.number}/{self.own}", json.dumps(dict(facts)))

    def _answer(self, text: str) -> None:
        self.client.key_value_set(f"{self.folder}/{self.number}/answer", text)

    def _read(self, process: int, deadline: float) -> dict[str, str] | None:
        text = self._get(str(process), deadline - time.monotonic())
        return None if text is None else dict(json.loads(text))

    def _get(self, name: str, seconds: float) -> str | None:
        """The value of a key, once it is set; None after so many seconds."""
        try:
            text: str = self.client.blocking_key_value_get(f"{self.folder}/{self.number}/{name}", max(1, round(seconds * 1000)))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise Disagreement(f"error: the service of jax.distributed does not answer: {str(error).splitlines()[0]}") from None
        return text


def _seconds() -> float:
    text = os.environ.get(WAIT_VARIABLE, str(WAIT))
    try:
        return float(text)
    except ValueError:
        raise MeshError(f"error: {WAIT_VARIABLE} is '{text}', expected a number of seconds") from None


_SAME = "same"


def _failed(failures: Mapping[int, str]) -> str:
    failed, why = next(iter(failures.items()))
    return f"error: {named(list(failures))} could not compile this program; process {failed}: {why}"


def _compared(facts_of: Mapping[int, Facts]) -> str:
    """The diagnostic: who differs from the majority, and in what."""
    by_facts: defaultdict[str, list[int]] = defaultdict(list)
    for process, facts in facts_of.items():
        by_facts[json.dumps(facts, sort_keys=True)].append(process)
    if len(by_facts) == 1:
        return _SAME
    most, *minorities = sorted(by_facts.values(), key=len, reverse=True)
    lines = [f"error: {named([p for some in minorities for p in some])} would run another program than {named(most)}"]
    expected = facts_of[most[0]]
    for some in minorities:
        actual = facts_of[some[0]]
        for name in dict.fromkeys((*expected, *actual)):
            if actual.get(name) != expected.get(name):
                lines.append(f"  note: {name} of {named(some)}: {_cut(actual.get(name))}, expected {_cut(expected.get(name))}")
    hint = "check that all have the same versions, options, order of devices, and shapes, types and shardings of arguments"
    return "\n".join([*lines, f"  hint: {hint}"])


def _cut(value: str | None) -> str:
    """A value, shortened for a diagnostic."""
    text = "nothing" if value is None else value or "none"
    return text if len(text) < 200 else f"{text[:200]}…"


_SHOWN = 8
"""The most processes that a diagnostic lists."""


def named(processes: Sequence[int]) -> str:
    """`process 3`, `processes 0, 2, 3`, for diagnostics."""
    shown = ", ".join(map(str, processes[:_SHOWN]))
    suffix = f" and {len(processes) - _SHOWN} more" if len(processes) > _SHOWN else ""
    return f"process{'es' if len(processes) > 1 else ''} {shown}{suffix}"


def spread(value: np.ndarray[Any, Any], target: jax.sharding.Sharding) -> jax.Array:
    """A global array of a value that every process holds. Each process takes its own shards from its value."""
    return jax.make_array_from_callback(value.shape, target, lambda index: value[index], dtype=value.dtype)


def require_same_values(values: Mapping[str, np.ndarray[Any, Any]], devices: Sequence[Any]) -> None:
    """Raises MeshError unless every process has the same values for these labels, bit for bit. Only hashes are exchanged.

    Does nothing if some processes have none of the `devices`: JAX's exchange needs all processes.
    """
    if not values or len(of(devices)) != jax.process_count():
        return
    from jax.experimental import multihost_utils

    own = np.stack([np.frombuffer(_hash(value), np.uint8) for value in values.values()])
    all_hashes = np.asarray(multihost_utils.process_allgather(own)).reshape(-1, *own.shape)
    for position, label in enumerate(values):
        differ = [process for process, hashes in enumerate(all_hashes) if (hashes[position] != all_hashes[0, position]).any()]
        if differ:
            hint = "jax.make_array_from_process_local_data makes one array of what each process has"
            text = f"{named(differ)} {'has' if len(differ) == 1 else 'have'} another value than process 0"
            raise MeshError(f"error: {label}: {text}, expected the same whole array in every process\n  hint: {hint}")


def _hash(value: np.ndarray[Any, Any]) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data, digest_size=16).digest()
