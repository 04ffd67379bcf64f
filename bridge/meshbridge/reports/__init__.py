"""Reports on a partitioned program: its communication and the reasons for it, redundant work, memory and time."""

from meshbridge.reports.difference import Difference, PlannedProgram, difference_of
from meshbridge.reports.explanation import Explanation, partition_and_explain
from meshbridge.reports.report import (
    CountedBranch,
    NotPartitioned,
    Report,
    ShardedArray,
    Suggestion,
    partition_and_report,
    report_of,
)
from meshbridge.reports.suggestions import partition_and_suggest
from meshbridge.reports.tables import By

__all__ = [
    "By",
    "CountedBranch",
    "Difference",
    "Explanation",
    "NotPartitioned",
    "PlannedProgram",
    "Report",
    "ShardedArray",
    "Suggestion",
    "difference_of",
    "partition_and_explain",
    "partition_and_report",
    "partition_and_suggest",
    "report_of",
]
