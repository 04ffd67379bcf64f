"""The report: what a program communicates once it is partitioned, and why; what it computes twice; how much memory and time it
needs."""

from meshbridge.reports.report import Choice, Held, NotPartitioned, Report, Suggestion, partition_and_report, report_of
from meshbridge.reports.suggestions import partition_and_suggest
from meshbridge.reports.tables import By

__all__ = [
    "By",
    "Choice",
    "Held",
    "NotPartitioned",
    "Report",
    "Suggestion",
    "partition_and_report",
    "partition_and_suggest",
    "report_of",
]
