"""Running a program on a target and holding the results against the reference."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from irc.errors import IrcError
from tests.fuzz.bounded import DTYPES, Bounded, misses
from tests.fuzz.program import Program
from tests.fuzz.targets import TARGETS, Target


@dataclass(frozen=True)
class Failure:
    """What went wrong.

    Attributes:
        kind: ``wrong``, ``type`` (shape or dtype), ``crash``, ``refused`` (a user error),
            ``input`` (an argument was changed), or ``memory`` (a gradient has elements of
            another tensor).
        text: the details.
    """

    kind: str
    text: str


def check(program: Program, target: str) -> Failure | None:
    """Run a program; return what is wrong with it on a target, or None."""
    return check_with(program, TARGETS[target])


def check_with(program: Program, run: Target) -> Failure | None:
    """Run a program by a function."""
    inputs = program.draw()
    before = [x.clone() for x in inputs]
    wanted = program.reference(inputs)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            results = run(program, inputs)
    except IrcError as error:
        return Failure("refused", f"{error}")
    except Exception as error:  # a crash of any kind is what is looked for
        return Failure("crash", f"{type(error).__name__}: {error}")
    for x, was, now in zip(program.inputs, before, inputs, strict=True):
        if not torch.equal(was.nan_to_num(), now.nan_to_num()):
            return Failure("input", f"{x.name} was changed")
    return compared(program.outputs, results, wanted)


def compared(
    names: Sequence[str], results: Sequence[torch.Tensor], wanted: Sequence[Bounded]
) -> Failure | None:
    """Hold results against their bounds."""
    if len(results) != len(wanted):
        return Failure("type", f"{len(results)} results, not {len(wanted)}")
    for name, one, other in zip(names, results, wanted, strict=True):
        if (one.dtype, tuple(one.shape)) != (DTYPES[other.dtype], other.shape):
            shown = f"{one.dtype} {list(one.shape)}, not {other.dtype} {list(other.shape)}"
            return Failure("type", f"{name} is {shown}")
        outside = misses(one, other)
        if bool(outside.any()):
            at = tuple(outside.nonzero()[0].tolist())
            return Failure(
                "wrong",
                f"{name}: {int(outside.sum())} of {outside.numel()} elements, first at {list(at)}: "
                f"{one[at].item()!r}, not {other.value[at].item()!r} "
                f"within {other.error[at].item():.1e}",
            )
    return None
