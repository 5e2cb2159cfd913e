"""Interpreters, one per level, that define what a program of that level means."""
