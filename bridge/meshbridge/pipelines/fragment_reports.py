"""Reports on fragments of pipelines, each made once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from meshbridge.ir.elements import type_bytes
from meshbridge.ir.mlir import function_type, main_function
from meshbridge.pipeline import Options
from meshbridge.pipelines.fragments import Fragment
from meshbridge.read.formats import copy_module
from meshbridge.reports import Report, partition_and_report


class ReportedFragment(NamedTuple):
    """The report on a fragment, and the bytes of its inputs and outputs on a device."""

    report: Report
    inputs: tuple[float, ...]
    outputs: tuple[float, ...]


@dataclass(frozen=True)
class FragmentReports:
    """Reports on fragments. Fragments with the same program and options, such as those of equal stages, share one."""

    _reports: dict[tuple[str, str], ReportedFragment] = field(default_factory=dict)

    def of(self, fragment: Fragment, options: Options) -> ReportedFragment:
        """The report on a fragment, which is partitioned in a copy. Raises MeshError."""
        key = options.target.name, str(fragment.module)
        if key not in self._reports:
            module = copy_module(fragment.module)
            report, _ = partition_and_report(module, replace(options, emit="mesh"))
            kind = function_type(main_function(module))
            sizes = (tuple(map(type_bytes, types)) for types in (kind.inputs, kind.results))
            self._reports[key] = ReportedFragment(report, *sizes)
        return self._reports[key]
