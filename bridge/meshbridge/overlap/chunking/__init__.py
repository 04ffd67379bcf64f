"""Regions between collectives that work on pieces of rows."""
