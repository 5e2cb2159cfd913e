"""``sizes.json``: a plan for every size, as the numbers of plan.json that depend on sizes.

plan.json is the plan for one choice of sizes, the *example*, and can be run by itself. This file
says which of its numbers follow from the sizes of the inputs, each as a polynomial
(:mod:`irc.plan.open_sizes`), and for which sizes that holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

from irc.dialects.size import Dim, value_of
from irc.plan import json_text
from irc.plan.input_sizes import InputSizes, check_inputs, check_names
from irc.plan.json_text import corrupt
from irc.plan.numbers import Number, with_numbers
from irc.plan.open_sizes import MadeKernel, Polynomial, QuotientSize, SizeCondition, Symbol
from irc.plan.schema import Plan, check_format
from irc.plan.template.stack import Stack
from irc.plan.template.unify import evaluate
from irc.plan.verify import verify_plan

SIZES = "sizes.json"
CAPTURE = "sizes/capture.mlir"
KERNELS = "sizes/kernels.mlir"
LIKE = "sizes/like.mlir"
SHARED = "sizes/shared.mlir"
"""The kernels that take sizes when they run, or need none."""
FORMAT = 1
"""The version of the file; a reader takes this one only."""


@dataclass(frozen=True)
class FixedSize:
    """A size of the model that is a number in the plan, and what needs it so."""

    name: str
    number: int
    reason: str


@dataclass(frozen=True)
class PlanSizes:
    """What a plan says of its sizes.

    Attributes:
        symbols: read from the inputs.
        shapes: of the inputs, in the order of the plan.
        quotients: in an order in which they can be computed.
        conditions: what else must hold of the sizes.
        numbers: of plan.json.
        arena: the buffers that are placed, as ``order`` and ``below`` count them.
        order, below: which buffer lies above which (:class:`irc.plan.template.stack.Stack`).
        kernels: those that are compiled for each size.
        fixed: sizes that are numbers.
    """

    symbols: tuple[Symbol, ...]
    shapes: tuple[tuple[Polynomial, ...], ...]
    numbers: tuple[Number, ...]
    arena: tuple[int, ...]
    order: tuple[int, ...]
    below: tuple[tuple[int, ...], ...]
    quotients: tuple[QuotientSize, ...] = ()
    conditions: tuple[SizeCondition, ...] = ()
    kernels: tuple[MadeKernel, ...] = ()
    fixed: tuple[FixedSize, ...] = ()
    format: int = FORMAT

    @cached_property
    def given(self) -> InputSizes:
        """What is said of the sizes of inputs."""
        return InputSizes(self.symbols, self.shapes, self.quotients, self.conditions)

    @property
    def example(self) -> dict[str, int]:
        """The numbers of plan.json, of quotients too."""
        return self.given.example

    def extended(self, values: Mapping[str, int]) -> dict[str, int]:
        """Return the numbers of the symbols, and of the quotients."""
        return self.given.extended(values)

    def values(self, shapes: Sequence[Sequence[int]], names: Sequence[str]) -> dict[str, int]:
        """Return the numbers of all symbols in a call's shapes; as :meth:`InputSizes.values`."""
        return self.given.values(shapes, names)

    def check(self, full: Mapping[str, int], names: Sequence[str]) -> None:
        """Refuse sizes that the plan was not checked for; as :meth:`InputSizes.check`."""
        self.given.check(full, names)


class SizedPlan:
    """A plan for any sizes that it was checked for.

    Args:
        plan: for the example.
        sizes: what of it depends on sizes.

    Raises:
        IrcError: ``plan-corrupt`` where the two do not fit together.
    """

    def __init__(self, plan: Plan, sizes: PlanSizes) -> None:
        self.sizes = sizes
        check_sizes(plan, sizes)
        self._form: Plan = with_numbers(plan, {each.path: each for each in sizes.numbers})
        self._stack = Stack(sizes.order, sizes.below)
        if self.at(sizes.example) != plan:
            raise corrupt("at the sizes of the example it gives another plan", SIZES)

    def at(self, full: Mapping[str, int]) -> Plan:
        """Return the plan for the numbers of all symbols.

        Raises:
            IrcError: ``plan-corrupt`` where it makes no sense.
        """
        try:
            unplaced = evaluate(self._form, lambda size: value_of(size, full))
            sizes = [unplaced.buffers[index].size_bytes for index in self.sizes.arena]
            offsets, arena = self._stack.place(sizes)
        except (TypeError, ValueError, IndexError) as error:
            raise corrupt(f"sizes cannot be put in: {error}", SIZES) from None
        buffers = list(unplaced.buffers)
        for index, offset in zip(self.sizes.arena, offsets, strict=True):
            buffers[index] = replace(buffers[index], offset=offset)
        plan = replace(unplaced, buffers=tuple(buffers), arena_bytes=arena)
        verify_plan(plan, SIZES)
        return plan

    def named(self, places: Sequence[Dim]) -> Plan:
        """Return the plan with sizes for its numbers.

        Args:
            places: where the buffers of the arena begin, in the order of ``sizes.arena``.
        """
        buffers = list(self._form.buffers)
        for index, place in zip(self.sizes.arena, places, strict=True):
            # A plan's offsets are numbers; who asks for this one has names for them.
            buffers[index] = replace(buffers[index], offset=cast("int", place))
        return replace(self._form, buffers=tuple(buffers))


def check_sizes(plan: Plan, sizes: PlanSizes) -> None:
    """Refuse sizes that say of a plan what cannot be.

    Raises:
        IrcError: ``plan-corrupt``.
    """
    known = check_inputs(sizes.given, len(plan.inputs), SIZES)
    check_names([each.value for each in sizes.numbers], known, SIZES)
    arena = tuple(i for i, buffer in enumerate(plan.buffers) if buffer.storage == "arena")
    if set(sizes.arena) != set(arena) or sorted(sizes.order) != list(range(len(arena))):
        raise corrupt("it places other buffers than the plan has", SIZES)
    if len(sizes.below) != len(arena):
        raise corrupt("it places other buffers than the plan has", SIZES)


def sizes_to_json(sizes: PlanSizes) -> str:
    """Print the file; equal sizes print equally."""
    return json_text.dump({"format": sizes.format, **json_text.encode(sizes)})


def sizes_from_json(text: str | bytes) -> PlanSizes:
    """Read the file, strictly.

    Raises:
        IrcError: ``plan-version`` or ``plan-corrupt``.
    """
    data = json_text.parse_object(text, SIZES)
    check_format(data.get("format"), SIZES)
    return json_text.decode(PlanSizes, data, SIZES)
