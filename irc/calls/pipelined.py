"""A training step in stages: :func:`irc.compile_step` with a mesh that has an axis ``pipe``."""

from __future__ import annotations
