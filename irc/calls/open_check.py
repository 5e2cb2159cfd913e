"""A plan and the program that it is of, both run on random inputs.

How far rounding may take a plan from exact numbers, the program alone tells. A product or
convolution in float32 gives the exact result of weights that differ by some roundings (Higham,
Accuracy and Stability of Numerical Algorithms, 2002, section 3.5), so the program is also run on
inputs and weights that are moved by as much: where its last op magnifies that, as a sigmoid far
below 0 does, no order of sums is nearer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from irc.errors import IrcError
from irc.interpret.flow import run_function
from irc.interpret.levels import difference
from irc.plan.load import LoadedPlan
from irc.plan.ranges import input_ranges
from irc.program import Program
from irc.runtime.compare import HALF_SLACK, TOLERANCE
from irc.runtime.executors import executor_of
from irc.runtime.inputs import random_inputs
from irc.runtime.prepared import Store


def differs(loaded: LoadedPlan, program: Program, store: Store | None = None) -> str | None:
    """Run both, and say how far apart they are; None where the difference is rounding.

    Args:
        loaded: the plan.
        program: at level flow, of the same sizes.
        store: what is prepared of the weights.
    """
    try:
        return _difference(loaded, program, store, 1)
    except IrcError as error:
        if "index-out-of-range" not in error.codes:
            raise
    # Indices that are computed show no table: 0 is in any, 1 is not where a size is 1.
    try:
        return _difference(loaded, program, store, 0)
    except IrcError as error:
        if "index-out-of-range" not in error.codes:
            raise
        return f"it refuses what the program may compute: {error.message}"


NUDGE = 2.0**-22
"""By how much of themselves inputs and weights are moved: four roundings of float32."""

MOST_BY_ROUNDING = 0.05
"""A plan that is further away computes something else, whatever roundings could do."""


def _nudged(arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return arguments whose floats are moved by some roundings, each its own way."""
    generator = torch.Generator().manual_seed(0)
    return [
        x.to(torch.float64) * (1 + NUDGE * (2 * torch.rand(x.shape, generator=generator) - 1))
        if x.is_floating_point()
        else x
        for x in arguments
    ]


def _difference(
    loaded: LoadedPlan, program: Program, store: Store | None, whole: int
) -> str | None:
    """Compare on inputs whose whole numbers are all the same, but for those that are indices."""
    ranges, plan = input_ranges(program.module), loaded.plan
    names = [plan.buffers[index].name for index in plan.inputs]
    drawn = random_inputs(replace(plan, ranges=tuple(map(ranges.get, names))), 0)
    # Other integers are masks mostly; one that hides all is a case of its own.
    inputs = [
        x if name in ranges or x.is_floating_point() else torch.full_like(x, whole)
        for name, x in zip(names, drawn, strict=True)
    ]
    run = executor_of(loaded, program.tensors, store=store)
    run(*inputs)
    # The second call finds what the first one has left in memory.
    outputs = run(*inputs)
    arguments = program.bind(dict(zip(names, inputs, strict=True)))
    with torch.no_grad():
        exact = run_function(program.module, arguments, dtype=torch.float64)
        apart = max(map(difference, outputs, exact), default=0.0)
        if apart <= TOLERANCE:
            return None
        eager = run_function(program.module, arguments)
        own = max(map(difference, eager, exact), default=0.0)
        if apart > HALF_SLACK * own and apart < MOST_BY_ROUNDING:
            felt = run_function(program.module, _nudged(arguments), dtype=torch.float64)
            own = max(own, *map(difference, felt, exact))
    return None if apart <= HALF_SLACK * own else f"it is off by {apart:.1e} of the largest element"
