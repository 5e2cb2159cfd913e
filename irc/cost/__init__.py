"""Seconds and bytes: what an op, a collective and a placement cost on a cluster."""
