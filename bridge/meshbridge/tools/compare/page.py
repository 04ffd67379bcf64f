"""The comparison as a page: our report, with the table of all contestants."""

from __future__ import annotations

import json

from meshbridge import pipeline
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.pages.report_page import Versus, report_page
from meshbridge.read import formats
from meshbridge.read.formats import Program
from meshbridge.reports import partition_and_report


def page(program: Program, target: CompileTarget, versus: Versus, name: str) -> str:
    """The page of a program, which is not changed, partitioned for the `target` as in the comparison.

    Raises MeshError if the program cannot be partitioned.
    """
    module = formats.copy_module(program.module)
    report, _ = partition_and_report(module, pipeline.Options(emit="mesh", target=target))
    read, remarks = json.loads(report.to_json()), report.remarks()
    return report_page(read, name=name, remarks=remarks, step=report.step, comparisons=[versus])
