"""Partitioned to optimised: passes that make the collectives of a one-device program fewer or smaller."""
