"""Compiled calls: what a user holds after compiling, and the way of a call into a plan."""
