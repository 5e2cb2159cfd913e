"""Inputs of a trial run: from a file, or drawn from a seed, the same on every rank."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from irc.cluster.host import memory_bytes
from irc.dialects.builder import arguments, entry
from irc.dialects.flow import tensor
from irc.dialects.items import ITEM_BYTES, is_complex, is_smooth
from irc.errors import IrcError, did_you_mean
from irc.plan.json_text import corrupt
from irc.plan.load import LoadedPlan
from irc.plan.parts import PartsPlan
from irc.plan.ranges import input_ranges
from irc.plan.schema import Plan
from irc.plan.training import FORWARD, Training, forward_text, recipe_of_plan
from irc.runtime.arguments import whole_shape
from irc.runtime.code import load_program
from irc.runtime.dtypes import dtypes
from irc.runtime.loss_scale import loss_scale_of
from irc.runtime.torch_optimizer import rates_tensor
from irc.training.loss_scale import INVERSE, SCALE

LR = "lr"
"""The input of a step that is its learning rate."""

_TORCH: Any = torch
"""Types know its ``from_numpy`` only in part."""


@dataclass(frozen=True)
class InputSpec:
    """An input of a plan, whole.

    Attributes:
        name: of it.
        dtype: irc's short name.
        shape: over all ranks and micro-batches.
        bounds: of an index, the first and last integer that it may be.
        known: its value, where the plan has one itself.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bounds: tuple[int, int] | None = None
    known: torch.Tensor | None = None


def specs_of(loaded: LoadedPlan) -> list[InputSpec]:
    """Return the inputs of a plan; one of training knows its learning rate."""
    plan = loaded.plan
    ranges, known = plan.ranges or (None,) * len(plan.inputs), known_inputs(loaded)
    named = [(index, plan.buffers[index]) for index in plan.inputs]
    return [
        InputSpec(b.name, b.dtype, whole_shape(plan, index), bounds, known.get(b.name))
        for (index, b), bounds in zip(named, ranges, strict=True)
    ]


def specs_of_parts(plan: PartsPlan) -> list[InputSpec]:
    """Return the inputs of a step of a plan of several programs: what its model takes, and a rate.

    Raises:
        IrcError: ``plan-corrupt``; ``plan-untrusted``.
    """
    module = load_program(plan, forward_text(plan), FORWARD)
    bounds, named = input_ranges(module), dict[str, InputSpec]()
    for role, name, value in arguments(entry(module)):
        if role != "input":
            continue
        kind = tensor(value)
        shape = kind.static_shape()
        if name in plan.facts.cut:
            samples = plan.facts.samples or shape[0] * plan.num_micro_batches
            shape = (samples, *shape[1:])
        named[name] = InputSpec(name, kind.dtype, shape, bounds.get(name))
    rates = known_inputs(plan)[LR]
    named[LR] = InputSpec(LR, "f64", tuple(rates.shape), None, rates)
    if set(named) != set(plan.facts.inputs):
        raise corrupt(f"the model takes {', '.join(named)}, not what a step does", FORWARD)
    return [named[name] for name in plan.facts.inputs]


def inputs_for(loaded: LoadedPlan, file: str | None, seed: int) -> list[torch.Tensor]:
    """Return whole inputs in the order of the plan; a plan of training knows its learning rate.

    Raises:
        IrcError: ``file-missing``, ``input-mismatch``; ``memory-exceeded``, before any is drawn.
    """
    plan = loaded.plan
    outputs = sum(b.size_bytes for b in plan.buffers if b.storage == "output")
    return given_inputs(specs_of(loaded), file, seed, plan.arena_bytes + outputs)


def given_inputs(
    specs: Sequence[InputSpec], file: str | None, seed: int, more_bytes: int = 0
) -> list[torch.Tensor]:
    """Return inputs from a file, or drawn.

    Args:
        specs: of the inputs, in order.
        file: an ``.npz`` file; None draws them.
        seed: of what is drawn.
        more_bytes: what a call takes beside them.

    Raises:
        IrcError: ``file-missing``, ``input-mismatch``; ``memory-exceeded``, before any is drawn.
    """
    if file is not None:
        return chosen_inputs(specs, read_arrays(file))
    check_memory([(spec.dtype, spec.shape) for spec in specs], more_bytes)
    drawn = drawn_inputs(specs, seed)
    return [
        value if spec.known is None else spec.known
        for spec, value in zip(specs, drawn, strict=True)
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


def known_inputs(loaded: Training) -> dict[str, torch.Tensor]:
    """Return what a plan has values for itself: of training, the rates and the scale of a loss."""
    recipe = recipe_of_plan(loaded)
    if recipe is None:
        return {}
    scale = loss_scale_of(recipe.precision)
    scales = {} if scale is None else dict(zip((SCALE, INVERSE), scale.read(), strict=True))
    return {LR: rates_tensor(recipe.rates), **scales}


def random_inputs(plan: Plan, seed: int) -> list[torch.Tensor]:
    """Draw the inputs of a plan; see :func:`drawn_inputs`."""
    ranges = plan.ranges or (None,) * len(plan.inputs)
    specs = [
        InputSpec(plan.buffers[i].name, plan.buffers[i].dtype, whole_shape(plan, i), bounds)
        for i, bounds in zip(plan.inputs, ranges, strict=True)
    ]
    return drawn_inputs(specs, seed)


def drawn_inputs(specs: Sequence[InputSpec], seed: int) -> list[torch.Tensor]:
    """Draw inputs; integers that index a table stay inside it, others are 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    inputs: list[torch.Tensor] = []
    for spec in specs:
        if is_smooth(spec.dtype):
            wide = torch.complex64 if is_complex(spec.dtype) else torch.float32
            drawn = torch.randn(spec.shape, generator=generator, dtype=wide)
        else:
            low, high = spec.bounds or (0, 1)
            drawn = torch.randint(low, high + 1, spec.shape, generator=generator)
        inputs.append(drawn.to(dtypes()[spec.dtype]))
    return inputs


def read_inputs(loaded: LoadedPlan, file: str) -> list[torch.Tensor]:
    """Read an ``.npz`` file that has the inputs by name.

    Raises:
        IrcError: ``file-missing``, or ``input-mismatch`` where it has others.
    """
    return chosen_inputs(specs_of(loaded), read_arrays(file))


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
            return {name: _TORCH.from_numpy(np.array(data[name])) for name in data.files}
    except (ValueError, TypeError, OSError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise IrcError(
            "input-mismatch", f"'{file}' is not an .npz file of arrays: {error}"
        ) from None


def chosen_inputs(
    specs: Sequence[InputSpec], named: Mapping[str, torch.Tensor]
) -> list[torch.Tensor]:
    """Put named inputs into the plan's order; floats take the plan's dtype (npz has no bfloat16).

    Raises:
        IrcError: ``input-mismatch`` for a name that is missing or unknown.
    """
    names = [spec.name for spec in specs]
    for name in named:
        check_name(name, names)
    inputs: list[torch.Tensor] = []
    for spec in specs:
        value = named.get(spec.name, spec.known)
        if value is None:
            raise IrcError("input-mismatch", f"input '{spec.name}' is missing")
        wanted = dtypes()[spec.dtype]
        if value.is_floating_point() and wanted.is_floating_point:
            value = value.to(wanted)
        inputs.append(value)
    return inputs


def check_name(name: str, names: Sequence[str]) -> None:
    """Refuse an input that a plan does not have.

    Raises:
        IrcError: ``input-mismatch``.
    """
    if name not in names:
        raise IrcError(
            "input-mismatch", f"the plan has no input '{name}'", help=did_you_mean(name, names)
        )


def chosen(named: Mapping[str, torch.Tensor], names: Sequence[str]) -> list[torch.Tensor]:
    """Put named inputs into an order.

    Raises:
        IrcError: ``input-mismatch`` for a name that is missing or unknown.
    """
    for name in named:
        check_name(name, names)
    for name in names:
        if name not in named:
            raise IrcError("input-mismatch", f"input '{name}' is missing")
    return [named[name] for name in names]
