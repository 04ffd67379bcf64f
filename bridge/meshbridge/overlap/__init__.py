"""Optimised to overlapped: passes that let collectives run while a one-device program computes."""
