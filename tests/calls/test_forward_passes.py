"""Forward passes of micro-batches: which are traced, where, and what follows from them."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from irc.calls.forward_passes import Cut, ForwardPasses
from irc.choices import recipe_option
from irc.dialects.text import dump


class Sizes(nn.Module):
    """A loss with a constant that may be made of the number of samples."""

    def __init__(self, *, of_samples: bool) -> None:
        super().__init__()
        self.up, self.of_samples = nn.Linear(8, 100), of_samples

    def forward(self, x: Tensor) -> Tensor:
        """Return a loss."""
        own = float(len(x)) if self.of_samples else 0.5
        return (self.up(x) * torch.tensor([own] * 100)).sum()


class Traces(ForwardPasses):
    """Notes what this process traces."""

    def traced(self, count: int) -> Cut:
        counts.append(count)
        return super().traced(count)


counts: list[int] = []


def passes(samples: int, *, of_samples: bool = False) -> ForwardPasses:
    counts.clear()
    module = Sizes(of_samples=of_samples)
    recipe = recipe_option(module, None, "sgd", "", 1, "none", None)
    return Traces(module, (torch.zeros(samples, 8),), {}, recipe, None)


def text(cut: Cut) -> str:
    """Return a program's text; values may be numbered otherwise."""
    return re.sub("%[0-9]+", "%", dump(cut[0].program.module))


def test_two_sizes_are_traced_whichever_are_asked_for() -> None:
    forwards = passes(12)
    own = {count: forwards.cut(count) for count in (1, 6, 2)}
    assert counts == [1, 2]
    for count, each in own.items():
        here = forwards.traced(count)
        assert text(each) == text(here)
        assert each[1] == here[1]
        assert each[0].program.tensors.keys() == here[0].program.tensors.keys()


def test_constants_that_are_made_of_the_size_follow_from_no_other() -> None:
    """Such a program had the constants of another size."""
    forwards = passes(12, of_samples=True)
    for count in (1, 2, 6, 3):
        tensors = forwards.cut(count)[0].program.tensors.values()
        [constant] = [each for each in tensors if each.shape == (100,) and each[0] == each[-1]]
        assert constant[0] == 12 // count
    assert counts == [1, 2, 6, 3]


def test_sizes_that_nothing_follows_from_are_traced() -> None:
    """Of seven samples the only second size is one sample; eight are not five equal parts."""
    forwards = passes(7)
    for count in (1, 7, 3):
        assert text(forwards.cut(count)) == text(forwards.traced(count))
    forwards = passes(8)
    counts.clear()
    for count in (1, 5, 4):
        assert text(forwards.cut(count)) == text(forwards.traced(count))
    assert counts == [1, 1, 2, 5, 5, 4]
