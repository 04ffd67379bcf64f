"""The comparison as a page: our report, with the table of all contestants."""

from __future__ import annotations

import json

from meshbridge import pipeline
from meshbridge.machines.machine import OptionSet
from meshbridge.pages.report_page import Versus, report_page
from meshbridge.read import formats
from meshbridge.read.formats import Program
from meshbridge.reports import partition_and_report


def page(program: Program, machine: str, versus: Versus, name: str, compiler_options: OptionSet = "default") -> str:
    """The page of a program, which is not changed, partitioned as in the comparison: for `machine` under a set of options.

    Raises MeshError if the program cannot be partitioned.
    """
    module = formats.copy_module(program.module)
    report, _ = partition_and_report(module, pipeline.Options(emit="mesh", machine=machine, compiler_options=compiler_options))
    read, remarks = json.loads(report.to_json()), report.remarks()
    return report_page(read, name=name, remarks=remarks, step=report.step, comparisons=[versus])
