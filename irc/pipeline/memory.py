"""The passes that decide where values lie, which end every pipeline.

They keep the program what it computes, and write attributes (:mod:`irc.plan.memories`); a plan is
the result, written down.
"""

from __future__ import annotations

MEMORY = (
    "inline-blocks",
    "update-caches",
    "insert-copies",
    "update-in-place",
    "prepare-weights",
    "reuse-memory",
    "plan-memory",
)
"""In order."""

PLACING = ("reuse-memory", "plan-memory")
"""Those that look at numbers of bytes: a template of plans places its buffers for all sizes."""
