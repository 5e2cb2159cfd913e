"""Timed kernel candidates, and the table of them that the cost model reads."""
