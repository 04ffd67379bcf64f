"""A program that is mapped to meshes, in Shardy's MPMD dialect, as a pipeline.

Fragments are called in the order of the program; fragments with equal programs are one. The schedule is found from the labels of
fragments. A program whose labels are of no schedule is executed as well: its fragments are no tasks then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from meshbridge import pipeline
from meshbridge.dialect.donation import DONOR
from meshbridge.ir.mlir import digest, entries, function_type, ir, main_function, set_entries
from meshbridge.pipelines.build import StagedPipeline
from meshbridge.pipelines.fragment_reports import FragmentReports
from meshbridge.pipelines.fragments import Fragment, Source
from meshbridge.pipelines.mpmd_modules import imported
from meshbridge.pipelines.mpmd_reader import Execution, MappedProgram, Move
from meshbridge.pipelines.mpmd_schedule import schedule_of, tasks_of, without_tasks
from meshbridge.pipelines.plan import SITE_KINDS, Call, CallPlan, Send, Slot, Step
from meshbridge.pipelines.proof import composed
from meshbridge.pipelines.schedules import Task
from meshbridge.pipelines.sites import Site
from meshbridge.pipelines.topology import target_of_stage
from meshbridge.read.formats import Program


def read_mapped(program: Program, options: pipeline.Options) -> StagedPipeline:
    """The pipeline that a mapped program is, on equal parts of the options' target if that has a topology. Does not change the
    program.

    Raises OpError, with the line of the op, for an op that is not understood, and for meshes of different numbers of
    devices.
    """
    with program.module.context, program.module.operation.location:
        mapped = MappedProgram(program.module)
        plan = _plan(mapped)
        own = replace(options, target=target_of_stage(options.target, len(mapped.groups)))
        source = replace(program, module=composed(plan, mapped.stacks, mapped.step_type()))
        return StagedPipeline(source, plan, mapped.stacks, own, options.target, mapped.donated, FragmentReports())


def _plan(mapped: MappedProgram) -> CallPlan:
    executions = [step for step in mapped.steps if isinstance(step, Execution)]
    tasks = tasks_of([execution.label for execution in executions])
    pairs = list(zip(executions, tasks, strict=True))
    groups = range(len(mapped.groups))
    schedule = schedule_of([[task for each, task in pairs if task is not None and each.group == group] for group in groups])
    if schedule is None:
        schedule, pairs = without_tasks(len(groups)), [(each, None) for each in executions]
    calls = iter(_calls(pairs))
    steps = [step if isinstance(step, Move) else next(calls) for step in mapped.steps]
    ordered = tuple(_with_sends(steps))
    fragments = dict.fromkeys(step.fragment for step in ordered if isinstance(step, Call))
    plan = CallPlan(tuple(fragments), schedule, ordered, tuple(mapped.results))
    _donate(plan, mapped.donated)
    return plan


def _calls(executions: Sequence[tuple[Execution, Task | None]]) -> list[Call]:
    """The calls of fragments, one fragment for all executions of one program at one site."""
    begin = next((number for number, (_, task) in enumerate(executions) if task is not None), 0)
    keys = []
    modules: dict[tuple[Site, str], ir.Module] = {}
    for number, (execution, task) in enumerate(executions):
        site = Site("pre" if number < begin else "post", execution.group) if task is None else _site(task)
        keys.append((site, digest(execution.module)))
        modules.setdefault(keys[-1], execution.module)
    own = dict(zip(modules, imported(list(modules.values())), strict=True))
    fragments: dict[tuple[Site, str], Fragment] = {}
    calls = []
    for (execution, task), key in zip(executions, keys, strict=True):
        if key not in fragments:
            level = sum(site == key[0] for site, _ in fragments)
            reads, returns = (tuple(slot.source for slot in slots) for slots in (execution.inputs, execution.outputs))
            name = str(execution.label or "") if task is None else ""
            fragments[key] = Fragment(key[0]._replace(level=level), execution.group, reads, returns, own[key], name)
        calls.append(Call(fragments[key], task, execution.inputs, execution.outputs))
    return calls


def _site(task: Task) -> Site:
    return Site(SITE_KINDS[task.kind], task.chunk)


def _with_sends(steps: Sequence[Call | Move]) -> Iterator[Step]:
    """The calls, and the transfers of values that a fragment reads. Each group that reads an argument is given it. A value that
    has passed a group which does not read it comes from the one that computes it."""
    readers: dict[Slot, tuple[Fragment, int]] = {}
    for step in steps:
        if isinstance(step, Call):
            for number, slot in enumerate(step.inputs):
                readers.setdefault(slot, (step.fragment, number))
    written: set[Slot] = set()
    homes: dict[Source, Slot] = {}
    for step in steps:
        if isinstance(step, Call):
            written.update(step.outputs)
            homes.update((slot.source, slot) for slot in step.outputs)
            yield step
        elif step.target.source in homes and step.target in readers and step.target not in written:
            written.add(step.target)
            yield Send(step.slot if step.slot in written else homes[step.slot.source], step.target, *readers[step.target])


def _donate(plan: CallPlan, donated: Iterable[int]) -> None:
    """Lets a fragment overwrite what no later step reads after any of its calls: computed values, and arguments that are
    donated."""
    arguments = {Source("argument", number) for number in donated}
    kept: dict[Fragment, set[int]] = defaultdict(set)
    for step, freed in zip(plan.steps, plan.last_uses, strict=True):
        if isinstance(step, Call):
            for number, slot in enumerate(step.inputs):
                is_last = slot in freed and step.inputs.count(slot) == 1
                if not is_last or (slot.source.kind == "argument" and slot.source not in arguments):
                    kept[step.fragment].add(number)
    for fragment in plan.fragments:
        main = main_function(fragment.module)
        said, free = entries(main, "arg_attrs"), list(function_type(main).results)
        for number, kind in enumerate(function_type(main).inputs):
            if number not in kept[fragment] and kind in free:
                free.remove(kind)
                said[number][DONOR] = ir.BoolAttr.get(True)
        set_entries(main, "arg_attrs", said)
