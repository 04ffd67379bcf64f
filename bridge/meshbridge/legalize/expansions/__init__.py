"""Ops in terms of simpler ones: a function per op, from the op to the values that replace its results.

They are called with the insertion point before the op and at its location.
"""
