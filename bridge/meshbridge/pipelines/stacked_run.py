"""Runs a pipeline that is one SPMD program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from meshbridge.runtime.pjrt import Executable, ShardedPort


@dataclass(frozen=True, eq=False)
class StackedRunner:
    """The executable of all stages."""

    executable: Executable

    def __call__(self, arguments: Sequence[Any], labels: Sequence[str]) -> list[jax.Array]:
        """Runs a step on the arrays that the step takes, which may be on any devices, called by `labels` in diagnostics.

        Results are on the devices of all stages. Raises MeshError for arguments of another shape or type."""
        near = [self._near(argument, port) for argument, port in zip(arguments, self.executable.inputs, strict=True)]
        return self.executable.run(near, labels)

    def _near(self, argument: Any, port: ShardedPort) -> Any:
        """An argument, moved if it is on other devices."""
        target = self.executable.sharding(port)
        is_elsewhere = isinstance(argument, jax.Array) and argument.sharding.device_set != target.device_set
        return jax.device_put(argument, target) if is_elsewhere and argument.shape == port.shape else argument
