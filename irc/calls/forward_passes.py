"""The forward pass of a micro-batch, of however many there are: what a search trains.

It is traced for two sizes, of the whole batch and of a part; the text of every other size follows
from theirs (:mod:`irc.calls.batch_sizes`). Of one size alone nothing follows: a number may equal
the batch by chance, or be made from it (an index from its end). A trace with a name for the size
takes several times as long as two with numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from irc.calls.batch_sizes import Lines, lines_through
from irc.calls.best_meshes import canonical
from irc.dialects.builder import arguments, entry
from irc.dialects.text import dump, load
from irc.errors import IrcError
from irc.program import Program
from irc.programs.short_steps import MOST
from irc.search.again import products_again
from irc.search.configurations import Outline, divisors
from irc.search.layers import shortened
from irc.search.outline import outline_of
from irc.search.products import moved_by_step, products_of_step
from irc.training.optimizers import OPTIMIZERS
from irc.training.recipe import Recipe

if TYPE_CHECKING:
    import torch
    from torch import nn

    from irc.calls.step_plan import Loss
    from irc.frontends.torch.capture import Captured

Cut: TypeAlias = "tuple[Captured, tuple[str, ...]]"
"""The forward pass of a micro-batch, and the inputs that are cut into micro-batches."""


@dataclass(frozen=True)
class _Second:
    """A trace of the second size, without its tensors: those of the first are the same.

    Attributes:
        text: of the program.
        short: of the program with the first few layers alone.
        split: the inputs that are cut.
        facts: what has to be equal of two traces for one to have the tensors of the other.
    """

    text: str
    short: str
    split: tuple[str, ...]
    facts: Hashable


@dataclass
class ForwardPasses:
    """The forward pass of a micro-batch, by how many there are.

    Args:
        module: what is trained; on the meta device, or with values.
        args: the whole batch.
        kwargs: keyword arguments.
        recipe: how it is trained; its micro-batches do not count.
        loss: a function of the module's output, where the module itself gives none.
        known: by the number of micro-batches.
    """

    module: nn.Module
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    recipe: Recipe
    loss: Loss | None
    known: dict[int, Cut] = field(default_factory=dict[int, "Cut"])

    @cached_property
    def outline(self) -> Outline:
        """What is known of the forward pass of the whole batch."""
        from irc.programs.make import trained_of

        program = self.cut(1)[0].program
        still = {name for name, own in self.module.named_parameters() if not own.requires_grad}
        trained = trained_of(program, self.recipe) - still
        loss, simple = self.recipe.loss, canonical(program)
        outline = outline_of(
            program.module,
            products=products_of_step(simple, trained, loss),
            held=moved_by_step(simple, trained, loss),
            optimizer=OPTIMIZERS[self.recipe.kind],
        )
        again = products_again(program.module, trained)
        return replace(outline, again=tuple(sorted(again.items())))

    def of(self, count: int) -> tuple[Program, Recipe]:
        """Return the forward pass of one of so many micro-batches, and how it is trained."""
        captured, split = self.cut(count)
        return captured.program, self._recipe(captured, split, count)

    def short(self, count: int) -> tuple[Program, Recipe]:
        """Return the forward pass of a micro-batch with the first few layers alone.

        Where it follows from two others, theirs are shortened first, so that no depth is parsed.
        """
        if count not in self.known and (like := self._like_others(count, short=True)):
            return like[0].program, self._recipe(*like, count)
        captured, split = self.cut(count)
        own = captured.program
        program = Program(shortened(own.module, MOST), own.tensors, own.source)
        return program, self._recipe(captured, split, count)

    def cut(self, count: int) -> Cut:
        """Return the forward pass of one of so many micro-batches, and the inputs that are cut."""
        self.prepare(count)
        if count not in self.known:
            self.known[count] = self._like_others(count) or self.traced(count)
        return self.known[count]

    def prepare(self, count: int) -> None:
        """Trace what the forward pass of so many micro-batches follows from.

        What is computed in child processes that begin later then has it.
        """
        if count > 1:
            _ = self._second

    @cached_property
    def second(self) -> int:
        """The least number of micro-batches of several samples each that is traced; 0 for none.

        What holds for one sample alone is broadcast, and does not hold for others.
        """
        return next((n for n in divisors(self._samples) if 1 < n < self._samples), 0)

    @cached_property
    def _samples(self) -> int:
        from irc.calls.step_plan import batch_samples

        return batch_samples(self.args, self.kwargs)

    def traced(self, count: int) -> Cut:
        """Trace the forward pass of one of so many micro-batches, whatever is known of others."""
        import torch

        from irc.calls.step_plan import captured_step

        recipe = replace(self.recipe, micro_batches=count)
        with torch.no_grad():
            return captured_step(self.module, self.loss, recipe, self.args, self.kwargs)

    def _recipe(self, captured: Captured, split: tuple[str, ...], count: int) -> Recipe:
        from irc.calls.pipelined import stages_recipe

        recipe = replace(self.recipe, micro_batches=count, split=split)
        return stages_recipe(self.module, captured, recipe)

    @cached_property
    def _second(self) -> _Second | None:
        """The trace of the second size; None where it says nothing of any other."""
        if not self.second:
            return None
        first = self.cut(1)[0]
        try:
            second = self._trace_second()
        except IrcError:
            return None  # it is raised where this size is asked for
        return second if second.facts == _facts(first) else None

    def _trace_second(self) -> _Second:
        captured, split = self.known[self.second] = self.traced(self.second)
        module = captured.program.module
        return _Second(dump(module), dump(shortened(module, MOST)), split, _facts(captured))

    def _like_others(self, count: int, *, short: bool = False) -> Cut | None:
        """Return a forward pass whose text follows from those of two other sizes; None for none.

        Args:
            count: of micro-batches.
            short: with the first few layers alone.
        """
        if count == 1 or self._samples % count or (second := self._second) is None:
            return None
        if count == self.second:
            text = second.short if short else second.text
        elif lines := self._short_lines if short else self.lines:
            text = lines.at(self._samples // count)
        else:
            return None
        captured, _ = self.cut(1)
        like = captured.program
        program = Program(load(text), like.tensors, like.source)
        # All that are cut have the same inputs cut.
        return replace(captured, program=program), second.split

    @cached_property
    def lines(self) -> Lines | None:
        """What the two traces say of any other size; None for nothing."""
        module = self.cut(1)[0].program.module
        return None if self._second is None else self._through(dump(module), self._second.text)

    @cached_property
    def _short_lines(self) -> Lines | None:
        """What the two traces, with the first few layers alone, say of any other size."""
        if self._second is None:
            return None
        module = shortened(self.cut(1)[0].program.module, MOST)
        return self._through(dump(module), self._second.short)

    def _through(self, first: str, second: str) -> Lines | None:
        return lines_through(first, self._samples, second, self._samples // self.second)


def _facts(captured: Captured) -> Hashable:
    """Return what is equal of two traces whose tensors are the same, whatever they compute.

    What a module holds is one for all sizes; constants may have been made from the size.
    """
    own = captured.program
    roles = {name: role for role, name, _ in arguments(entry(own.module))}
    every = sorted(own.tensors.items())
    shapes = tuple((name, tuple(value.shape), f"{value.dtype}") for name, value in every)
    constants = tuple(_bytes(value) for name, value in every if roles.get(name) == "constant")
    return shapes, constants, tuple(sorted(captured.mutated_inputs.items()))


def _bytes(value: torch.Tensor) -> bytes:
    import torch

    if value.is_meta:
        return b""
    return value.cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
