"""Imports that planning makes when it first needs them, made before child processes begin.

Each child would make them again, and compile what is generated at import: a second or more.
"""

from __future__ import annotations

from importlib import import_module

from irc.pipeline.default import passes_by_part
from irc.pipeline.options import Options
from irc.plugin import find_backend

SOLVER = "highspy"


def preload(options: Options) -> None:
    """Import the passes and the backend of a plan, and the solver of its placements.

    Raises:
        IrcError: what is wrong with the options.
    """
    passes_by_part(options)
    find_backend(options.backend)
    import_module(SOLVER)
