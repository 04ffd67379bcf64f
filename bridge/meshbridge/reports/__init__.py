"""The report: what a program communicates once it is partitioned, and why; what it computes twice; how much memory and time it
needs."""

from meshbridge.reports.difference import Difference, Planned, difference_of
from meshbridge.reports.explanation import Explanation, partition_and_explain
from meshbridge.reports.report import Choice, Held, NotPartitioned, Report, Suggestion, partition_and_report, report_of
from meshbridge.reports.suggestions import partition_and_suggest
from meshbridge.reports.tables import By

__all__ = [
    "By",
    "Choice",
    "Difference",
    "Explanation",
    "Held",
    "NotPartitioned",
    "Planned",
    "Report",
    "Suggestion",
    "difference_of",
    "partition_and_explain",
    "partition_and_report",
    "partition_and_suggest",
    "report_of",
]
