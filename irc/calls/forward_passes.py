"""The forward pass of a micro-batch, of however many there are: what a search trains.

It is captured once for each size of a micro-batch, whatever meshes it is planned for, and traced
for two sizes: the text of every other size follows from theirs (:mod:`irc.calls.batch_sizes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from xdsl.dialects.builtin import ModuleOp

from irc.calls.batch_sizes import Lines, lines_through
from irc.calls.best_meshes import canonical
from irc.dialects.text import dump, load
from irc.program import Program
from irc.programs.short_steps import MOST
from irc.search.configurations import Outline
from irc.search.layers import shortened
from irc.search.outline import outline_of
from irc.search.products import moved_by_step, products_of_step
from irc.training.optimizers import OPTIMIZERS
from irc.training.recipe import Recipe

if TYPE_CHECKING:
    from torch import nn

    from irc.calls.step_plan import Loss
    from irc.frontends.torch.capture import Captured

Cut: TypeAlias = "tuple[Captured, tuple[str, ...]]"
"""The forward pass of a micro-batch, and the inputs that are cut into micro-batches."""


@dataclass
class ForwardPasses:
    """The forward pass of a micro-batch, by how many there are.

    Args:
        module: what is trained; on the meta device, or with values.
        args: the whole batch.
        kwargs: keyword arguments.
        recipe: how it is trained; its micro-batches do not count.
        loss: a function of the module's output, where the module itself gives none.
        known: by the number of micro-batches, in the order in which they were captured.
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
        return outline_of(
            program.module,
            products=products_of_step(simple, trained, loss),
            held=moved_by_step(simple, trained, loss),
            optimizer=OPTIMIZERS[self.recipe.kind],
        )

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
        if count not in self.known:
            self.known[count] = self._like_others(count) or self.traced(count)
        return self.known[count]

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

    def _like_others(self, count: int, *, short: bool = False) -> Cut | None:
        """Return a forward pass whose text follows from those of two other sizes; None for none.

        Args:
            count: of micro-batches.
            short: with the first few layers alone.
        """
        if len(self.known) < 2 or 1 not in self.known:
            return None
        if self.outline.samples % count:
            return None
        if (lines := self._short_lines if short else self.lines) is None:
            return None
        # All that are cut have the same inputs cut.
        captured, split = next(each for own, each in self.known.items() if own > 1)
        size, like = self.outline.samples // count, captured.program
        program = Program(load(lines.at(size)), like.tensors, like.source)
        return replace(captured, program=program), split

    @cached_property
    def lines(self) -> Lines | None:
        """What the first two captures say of any other size; None for nothing."""
        return self._lines_of(lambda module: module)

    @cached_property
    def _short_lines(self) -> Lines | None:
        """What the first two captures, with the first few layers alone, say of any other size."""
        return self._lines_of(lambda module: shortened(module, MOST))

    def _lines_of(self, part: Callable[[ModuleOp], ModuleOp]) -> Lines | None:
        samples = self.outline.samples
        (one, (first, _)), (other, (second, _)) = list(self.known.items())[:2]
        shapes = [
            {name: value.shape for name, value in each.program.tensors.items()}
            for each in (first, second)
        ]
        # What holds for one sample alone is broadcast, and does not hold for others.
        if shapes[0] != shapes[1] or samples // max(one, other) < 2:
            return None
        texts = [dump(part(each.program.module)) for each in (first, second)]
        return lines_through(texts[0], samples // one, texts[1], samples // other)
