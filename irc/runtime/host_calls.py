"""The calls of a host program: its steps on arrays, its regions by what runs them.

Everything that does not depend on the values of a call is looked up when a program is loaded. What
is kept between calls follows from the program alone, so calls may come from any thread.

It needs numpy alone; who loads a program says what runs its regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from irc.errors import IrcError
from irc.plan.host_code import ENTRY, HostCode, Library
from irc.plan.open_sizes import meets, number_of, shown
from irc.runtime.host_shapes import Known, Shape, shape_of, without_elements
from irc.runtime.host_steps import Prepared
from irc.runtime.onnx_ops.values import Item

MAX_SIZES = 64
"""Numbers of input sizes that are known to meet the conditions of a program."""


class Regions(Protocol):
    """What runs the regions of a program."""

    def run(self, name: str, inputs: list[Item], sizes: Known) -> list[Item] | None:
        """Run the plan of a region; None where there is none for the sizes."""
        ...

    def step(self, name: str, inputs: list[Item], sizes: Known) -> list[Item]:
        """Run the ops of a region one by one.

        Raises:
            IrcError: where nothing can.
        """
        ...

    def library(self, step: Library, operands: list[Item], shapes: Sequence[Sequence[int]]) -> Any:
        """Run an op of flow and return its results.

        Raises:
            IrcError: where nothing can.
        """
        ...


class HostCalls:
    """Runs a program.

    Args:
        code: the program.
        arrays: those that its functions name by number.
        regions: runs what is compiled.
    """

    def __init__(self, code: HostCode, arrays: Sequence[Item], regions: Regions) -> None:
        self.code, self.regions = code, regions
        self._named = frozenset(code.regions)
        self.functions = {n: Prepared(self, f, arrays) for n, f in code.functions.items()}
        self._held: list[Any] = [each for each in arrays if isinstance(each, np.ndarray)]
        self._shapes = [shape_of(each) for each in code.functions[ENTRY].inputs]
        self._sizes: dict[tuple[int, ...], Known] = {}

    def run(self, inputs: Sequence[Item]) -> list[Item]:
        """Run once on inputs in order; each output has memory of its own.

        Raises:
            IrcError: ``input-mismatch``, ``size-outside``.
        """
        sizes = self.check_sizes(inputs)
        outputs = self.functions[ENTRY].run(inputs, sizes)
        held: list[Any] = [*self._held, *(each for each in inputs if isinstance(each, np.ndarray))]
        return [_apart(value, held) for value in outputs]

    def check_sizes(self, inputs: Sequence[Item]) -> Known:
        """Return the numbers of the open sizes in a call's inputs, which are checked.

        Raises:
            IrcError: ``input-mismatch``; ``size-outside`` where the program does not hold for them.
        """
        if len(inputs) != len(self._shapes):
            raise IrcError(
                "input-mismatch", f"the plan takes {len(self._shapes)} inputs, not {len(inputs)}"
            )
        for name, shape, value in zip(self.code.inputs, self._shapes, inputs, strict=True):
            if shape is not None:
                shape.check(name, value)
        code = self.code
        key = tuple([int(inputs[each.input].shape[each.dim]) for each in code.symbols])
        known = self._sizes.get(key)
        if known is None:
            known = sizes_of(code, key)
            if len(self._sizes) >= MAX_SIZES:
                self._sizes.clear()
            self._sizes[key] = known
        for shape, value in zip(self._shapes, inputs, strict=True):
            if shape is not None:
                shape.learn(value, dict(known))
        return known

    def call(
        self, name: str, inputs: list[Item], known: Known, result_shapes: Sequence[Shape | None]
    ) -> Any:
        """Run a region, or a function of the host."""
        if name not in self._named:
            return self.functions[name].run(inputs, known)
        results = self.regions.run(name, inputs, known)
        if results is None:
            # What has no elements is not computed: a loop of no trips collects such results.
            results = without_elements(result_shapes, known) or self.regions.step(
                name, inputs, known
            )
        return results


def sizes_of(code: HostCode, numbers: Sequence[int]) -> Known:
    """Return the numbers of all sizes from those of the symbols, in order.

    Raises:
        IrcError: ``size-outside``.
    """
    known = {each.symbol: n for each, n in zip(code.symbols, numbers, strict=True)}
    for each in code.symbols:
        if known[each.symbol] < 1:
            raise IrcError("size-outside", f"size '{each.name}' is {known[each.symbol]}")
    for quotient in code.quotients:
        dim, by = number_of(quotient.dim, known), number_of(quotient.by, known)
        known[quotient.symbol] = dim // by
    for condition in code.conditions:
        if not meets(condition, known):
            raise IrcError(
                "size-outside",
                f"the plan is for sizes with {shown(condition)}",
                condition.where,
                help="compile the model for these sizes: irc compile ... --size NAME=N",
            )
    return known


def _apart(value: Item, held: list[Any]) -> Item:
    """Return an output that shares no memory with inputs, weights or other outputs."""
    own: Item = value
    if isinstance(value, list):
        return [_apart(each, held) for each in own]
    if not isinstance(value, np.ndarray):
        return value
    if any(np.may_share_memory(own, each) for each in held):
        own = own.copy()
    held.append(own)
    return np.ascontiguousarray(own) if own.ndim else own
