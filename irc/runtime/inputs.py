"""Inputs of a trial run: from a file, or drawn from a seed, the same on every rank."""

# pyright: basic
from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

import torch

from irc.cluster.host import memory_bytes
from irc.dialects.items import ITEM_BYTES, is_complex, is_smooth
from irc.errors import IrcError, did_you_mean
from irc.plan.load import LoadedPlan
from irc.plan.schema import Plan
from irc.plan.training import recipe_of_plan
from irc.runtime.arguments import whole_shape
from irc.runtime.dtypes import dtypes


def inputs_for(loaded: LoadedPlan, file: str | None, seed: int) -> list[torch.Tensor]:
    """Return whole inputs in the order of the plan; a plan of training knows its learning rate.

    Raises:
        IrcError: ``file-missing``, ``input-mismatch``; ``memory-exceeded``, before any is drawn.
    """
    if file is not None:
        return read_inputs(loaded, file)
    plan = loaded.plan
    drawn = [(plan.buffers[i].dtype, whole_shape(plan, i)) for i in plan.inputs]
    outputs = sum(b.size_bytes for b in plan.buffers if b.storage == "output")
    check_memory(drawn, plan.arena_bytes + outputs)
    found = random_inputs(plan, seed)
    return [
        known_inputs(loaded).get(loaded.plan.buffers[index].name, value)
        for index, value in zip(loaded.plan.inputs, found, strict=True)
    ]


def check_memory(drawn: Sequence[tuple[str, Sequence[int]]], more_bytes: int = 0) -> None:
    """Refuse a trial run that the machine has no memory for, before any of it is allocated.

    Args:
        drawn: dtype and shape of each random input.
        more_bytes: what a call takes beside them.

    Raises:
        IrcError: ``memory-exceeded``.
    """
    needed = sum(prod(shape) * ITEM_BYTES[dtype] for dtype, shape in drawn) + more_bytes
    if needed > (held := memory_bytes()):
        raise IrcError(
            "memory-exceeded",
            f"a run takes {needed / 2**30:.3g} GiB, and this machine has {held / 2**30:.3g} GiB",
            because=[f"{dtype} {list(shape)} is an input" for dtype, shape in drawn[:8]],
            help="give open sizes smaller numbers (--size NAME=N), or inputs (--inputs F.npz)",
        )


def known_inputs(loaded: LoadedPlan) -> dict[str, torch.Tensor]:
    """Return what a plan has values for itself: of one of training, the learning rate."""
    recipe = recipe_of_plan(loaded)
    return {} if recipe is None else {"lr": torch.tensor(recipe.lr, dtype=torch.float64)}


def random_inputs(plan: Plan, seed: int) -> list[torch.Tensor]:
    """Draw inputs; integers that index a table stay inside it, others are 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    ranges = plan.ranges or (None,) * len(plan.inputs)
    found: list[torch.Tensor] = []
    for index, bounds in zip(plan.inputs, ranges, strict=True):
        dtype, shape = plan.buffers[index].dtype, whole_shape(plan, index)
        if is_smooth(dtype):
            wide = torch.complex64 if is_complex(dtype) else torch.float32
            drawn = torch.randn(shape, generator=generator, dtype=wide)
        else:
            low, high = bounds or (0, 1)
            drawn = torch.randint(low, high + 1, shape, generator=generator)
        found.append(drawn.to(dtypes()[dtype]))
    return found


def read_inputs(loaded: LoadedPlan, file: str) -> list[torch.Tensor]:
    """Read an ``.npz`` file that has the inputs by name.

    Raises:
        IrcError: ``file-missing``, or ``input-mismatch`` where it has others.
    """
    return choose_inputs(loaded, read_arrays(file))


def read_arrays(file: str) -> dict[str, torch.Tensor]:
    """Read the arrays of an ``.npz`` file.

    Raises:
        IrcError: ``file-missing``, or ``input-mismatch`` where it is none.
    """
    import numpy as np

    if not Path(file).is_file():
        raise IrcError("file-missing", f"no file '{file}'")
    try:
        # numpy leaves a file that it opened itself open where it is broken.
        with Path(file).open("rb") as opened, np.load(opened, allow_pickle=False) as data:
            return {name: torch.from_numpy(np.array(data[name])) for name in data.files}
    except (ValueError, TypeError, OSError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise IrcError(
            "input-mismatch", f"'{file}' is not an .npz file of arrays: {error}"
        ) from None


def choose_inputs(loaded: LoadedPlan, given: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Put named inputs into the plan's order; floats take the plan's dtype (npz has no bfloat16).

    Raises:
        IrcError: ``input-mismatch`` for a name that is missing or unknown.
    """
    buffers = [loaded.plan.buffers[i] for i in loaded.plan.inputs]
    names = [buffer.name for buffer in buffers]
    for name in given:
        check_name(name, names)
    found: list[torch.Tensor] = []
    given = {**known_inputs(loaded), **given}
    for buffer in buffers:
        if buffer.name not in given:
            raise IrcError("input-mismatch", f"input '{buffer.name}' is missing")
        tensor = given[buffer.name]
        wanted = dtypes()[buffer.dtype]
        if tensor.is_floating_point() and wanted.is_floating_point:
            tensor = tensor.to(wanted)
        found.append(tensor)
    return found


def check_name(name: str, names: Sequence[str]) -> None:
    """Refuse an input that a plan does not have.

    Raises:
        IrcError: ``input-mismatch``.
    """
    if name not in names:
        raise IrcError(
            "input-mismatch", f"the plan has no input '{name}'", help=did_you_mean(name, names)
        )


def chosen(given: Mapping[str, torch.Tensor], names: Sequence[str]) -> list[torch.Tensor]:
    """Put named inputs into an order.

    Raises:
        IrcError: ``input-mismatch`` for a name that is missing or unknown.
    """
    for name in given:
        check_name(name, names)
    for name in names:
        if name not in given:
            raise IrcError("input-mismatch", f"input '{name}' is missing")
    return [given[name] for name in names]
