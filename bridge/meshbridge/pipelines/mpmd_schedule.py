"""The schedule of a program that is mapped to meshes: found from the labels of its fragments, and their order on each mesh."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from meshbridge.ir.mlir import MeshError, ir
from meshbridge.pipelines.mpmd_types import COUNTER, DROPS, origins_of
from meshbridge.pipelines.schedules import NAMES, Kind, Schedule, Task, named

AS_MAPPED = "as mapped"
"""The name of a schedule that is none of `NAMES`."""


@dataclass(frozen=True)
class Label:
    """What a fragment says of itself: its origins, and the numbers of its stage and microbatch if it names them."""

    origins: tuple[tuple[str, int], ...]
    kind: Kind
    stage: int | None
    microbatch: int | None

    @classmethod
    def of(cls, fragment: ir.Operation) -> Label | None:
        """The label of a fragment, or of the call of one; None for one without origins, which Shardy's passes add."""
        origins, attributes = origins_of(fragment), fragment.attributes
        if not origins:
            return None
        backward = all(count % 2 for _, count in origins)
        kind: Kind = "F" if not backward else "W" if DROPS in attributes else "B"
        stage, microbatch = (
            ir.IntegerAttr(attributes[each]).value if each in attributes else None for each in ("stage_id", COUNTER)
        )
        return cls(tuple(origins), kind, stage, microbatch)

    def __str__(self) -> str:
        return ", ".join(name if not count else f"{name}({count})" for name, count in self.origins)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the computations that it is made of."""
        return tuple(dict.fromkeys(name for name, _ in self.origins))


def tasks_of(labels: Sequence[Label | None]) -> list[Task | None]:
    """The tasks of a program's fragments, in order; None for a fragment that is outside of the loop of microbatches.

    Fragments that name no microbatch are counted. Those that are executed less often than others are outside of the loop. Chunks
    are the stages, or else origins, in the order of their first forward passes.
    """
    counts = Counter((label.names, label.kind) for label in labels if label is not None)
    most = max(counts.values(), default=0)
    is_numbered = any(label is not None and label.microbatch is not None for label in labels)
    chunks: dict[object, int] = {}
    met: Counter[object] = Counter()
    tasks: list[Task | None] = []
    for label in labels:
        inside = label is not None and (
            label.microbatch is not None if is_numbered else counts[label.names, label.kind] == most > 1
        )
        if label is None or not inside:
            tasks.append(None)
            continue
        key = label.names if label.stage is None else label.stage
        chunk = chunks.setdefault(key, len(chunks))
        number = met[key, label.kind] if label.microbatch is None else label.microbatch
        met[key, label.kind] += 1
        tasks.append(Task(label.kind, number, chunk))
    return tasks


def schedule_of(orders: Sequence[Sequence[Task]]) -> Schedule | None:
    """The schedule with these tasks of each group of devices, in order.

    The backward pass of a stage may be missing, as that of the last one, which goes backward in its forward pass. None if there
    is no such schedule: stages are not on the groups in turn, or one computes a microbatch twice, or not at all.
    """
    groups, tasks = len(orders), [task for order in orders for task in order]
    present = set(tasks)
    if not tasks or len(present) < len(tasks):
        return None
    chunks, microbatches = 1 + max(task.chunk for task in tasks), 1 + max(task.microbatch for task in tasks)
    passes = {(task.kind, task.chunk) for task in tasks} | {("F", chunk) for chunk in range(chunks)}
    if len(present) < len(passes) * microbatches:
        return None
    for name in NAMES:
        try:
            known = named(name, groups, chunks, microbatches)
        except MeshError:
            continue
        if all([task for task in full if task in present] == list(own) for full, own in zip(known.orders, orders, strict=True)):
            return known
    try:
        return Schedule(AS_MAPPED, chunks, microbatches, tuple(_completed(order, present) for order in orders))
    except MeshError:
        return None


def without_tasks(groups: int) -> Schedule:
    """The schedule of a program whose fragments are no tasks of a loop."""
    return Schedule(AS_MAPPED, groups, 0, ((),) * groups)


def _completed(order: Sequence[Task], present: set[Task]) -> tuple[Task, ...]:
    """Tasks of a group, and after each those whose work it does."""
    splits = any(task.kind == "W" for task in present)
    following: dict[Kind, tuple[Kind, ...]] = {"F": ("B", "W") if splits else ("B",), "B": ("W",) if splits else (), "W": ()}
    completed: list[Task] = []
    for task in order:
        completed.append(task)
        for kind in following[task.kind]:
            if (missing := task._replace(kind=kind)) in present:
                break
            completed.append(missing)
    return tuple(completed)
