"""The margin loss of several labels, of which torch's decomposition counts too much."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import irc

WAYS: dict[str, Callable[[Any], Any]] = {
    "irc.compile": irc.compile,
    "torch.compile": partial(torch.compile, backend="irc"),
}
LABELS = torch.tensor([[0, 1, -1, 2], [3, -1, 0, 0], [2, 1, 0, 3], [-1, 1, 1, 1]])
SCORES = torch.linspace(-1, 2, 16).sin().reshape(4, 4)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 0)])
@torch.no_grad()
def test_scores_of_no_class_are_refused_as_in_eager(shape: tuple[int, ...]) -> None:
    scores, labels = torch.zeros(shape), torch.zeros(shape, dtype=torch.int64)
    for call in (F.multilabel_margin_loss, irc.compile(F.multilabel_margin_loss)):
        with pytest.raises(RuntimeError, match="Expected non-empty vector or matrix"):
            call(scores, labels)


@torch.no_grad()
def test_a_single_score_has_a_loss() -> None:
    score, label = torch.tensor(0.5), torch.tensor(0)
    assert irc.compile(F.multilabel_margin_loss)(score, label) == F.multilabel_margin_loss(
        score, label
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("rows", [slice(None), 0])
def test_what_stands_behind_the_last_label_does_not_count(
    rows: Any, reduction: str, way: str
) -> None:
    torch._dynamo.reset()
    wanted = F.multilabel_margin_loss(SCORES[rows], LABELS[rows], reduction=reduction)
    run = WAYS[way](nn.MultiLabelMarginLoss(reduction=reduction))
    with torch.no_grad():
        torch.testing.assert_close(run(SCORES[rows], LABELS[rows]), wanted)


@pytest.mark.parametrize("way", WAYS)
def test_gradients(way: str) -> None:
    torch._dynamo.reset()
    # Margins of exactly 0, too.
    theirs, mine = (torch.ones(4, 4).triu().requires_grad_() for _ in range(2))
    F.multilabel_margin_loss(theirs, LABELS).backward()
    WAYS[way](F.multilabel_margin_loss)(mine, LABELS).backward()
    torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("label", [4, -2])
def test_a_label_that_is_no_class(label: int, way: str) -> None:
    torch._dynamo.reset()
    labels = torch.tensor([0, 1, -1, label])
    with pytest.raises(RuntimeError):
        F.multilabel_margin_loss(SCORES[0], labels)
    with torch.no_grad(), pytest.raises((RuntimeError, IndexError)):
        WAYS[way](F.multilabel_margin_loss)(SCORES[0], labels)


def test_a_score_that_is_no_number_counts_nothing() -> None:
    scores = SCORES.clone()
    scores[0, 3] = torch.nan
    wanted = F.multilabel_margin_loss(scores, LABELS)
    assert wanted.isfinite()
    torch.testing.assert_close(irc.compile(F.multilabel_margin_loss)(scores, LABELS), wanted)
