"""What stages tell each other of the states of an eager optimiser, which each has of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from irc.errors import IrcError
from irc.runtime.agreement import fail_together, texts
from irc.runtime.dtypes import dtype_name, dtypes
from irc.runtime.torch_optimizer import state_name

Told: TypeAlias = "tuple[dict[str, torch.Tensor], dict[str, Any]]"
"""States of a parameter by their names: those with dims, on the meta device, and numbers."""
NUMBERS = (bool, int, float, str, type(None))
"""Types that JSON gives back as they were."""


def told_by_all(
    states: Mapping[str, Mapping[str, Any]],
    whole: Callable[[str], tuple[int, ...]],
    is_first: bool,
) -> dict[str, Told]:
    """Return what all stages keep, by the name of the parameter; every rank calls it.

    Args:
        states: of the parameters of this rank's stages.
        whole: gives the shape of a state with dims, by irc's name.
        is_first: whether this rank speaks for its stages.

    Raises:
        IrcError: ``pipeline-unsupported`` on every rank for a state that is neither a tensor nor a
            number, or cannot be read.
    """
    failed: IrcError | None = None
    said = ""
    try:
        said = json.dumps({
            name: {key: _described(state_name(key, name), value, whole)
                   for key, value in own.items()}
            for name, own in states.items()
        }) if is_first else ""  # fmt: skip
    except IrcError as error:
        failed = error
    except Exception as error:  # a class of the user's may keep anything; the others would wait
        failed = IrcError(
            "pipeline-unsupported",
            f"the optimiser's states cannot be told: {type(error).__name__}: {error}",
            help="choose a mesh without 'pipe'",
        )
        failed.__cause__ = error
    fail_together(failed)
    every: dict[str, Told] = {}
    for text in filter(None, texts(said)):
        told: dict[str, dict[str, tuple[str, list[int] | float | str | None]]] = json.loads(text)
        for name, own in told.items():
            tensors, numbers = every.setdefault(name, ({}, {}))
            for key, (kind, value) in own.items():
                if kind == "number":
                    numbers[key] = value
                elif isinstance(value, list):
                    tensors[key] = torch.empty(value, dtype=dtypes()[kind], device="meta")
                else:
                    numbers[key] = torch.tensor(value, dtype=dtypes()[kind])
    return every


def _described(name: str, value: Any, whole: Callable[[str], tuple[int, ...]]) -> tuple[str, Any]:
    if isinstance(value, torch.Tensor):
        return dtype_name(value.dtype), list(whole(name)) if value.ndim else value.item()
    if isinstance(value, NUMBERS):
        return "number", value
    raise IrcError(
        "pipeline-unsupported",
        f"the optimiser keeps '{name}', which is {type(value).__name__}: stages tell each other of "
        "tensors and numbers alone",
        help="choose a mesh without 'pipe'",
    )
