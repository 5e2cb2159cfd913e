"""Programs with fewer of their layers, and the pieces that steps are put together from."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp

from irc.dialects.builder import arguments, entry
from irc.dialects.placement import Placement, Split
from irc.frontends.torch.capture import capture
from irc.search.blocks import UPDATE, Blocks, Content, Passed, Piece
from irc.search.layers import layers_of, shortened
from tests.programs.models import GPT


@cache
def captured(layers: int) -> ModuleOp:
    ids = torch.zeros((2, 12), dtype=torch.int64)
    return capture(GPT(layers), (ids, ids)).program.module


def kinds(module: ModuleOp) -> list[tuple[str, list[str]]]:
    """Return what each op of the entry is, and of which types."""
    ops = entry(module).body.block.ops
    return [(op.name, [str(value.type) for value in op.operands]) for op in ops]


def test_fewer_layers_are_the_model_that_has_fewer() -> None:
    known = layers_of(captured(5))
    assert known is not None
    assert (known.count, known.period) == (5, 1)
    short, whole = shortened(captured(5), 3), captured(3)
    assert kinds(short) == kinds(whole)
    names = [[(role, name) for role, name, _ in arguments(entry(m))] for m in (short, whole)]
    assert names[0] == names[1]
    # The model itself stays as it is, and has no fewer than it has.
    assert kinds(shortened(captured(3), 9)) == kinds(captured(3))


def test_a_model_without_repeated_layers_has_no_run() -> None:
    assert layers_of(captured(1)) is None


def test_a_stage_is_the_sum_of_its_pieces_and_the_largest_arena() -> None:
    layer = Piece({"F": 1.0, "B": 2.0}, held_bytes=10.0, arena_bytes={"F": 5.0})
    head = Piece({"F": 3.0, UPDATE: 1.0}, held_bytes=7.0, arena_bytes={"F": 9.0})
    blocks = Blocks(Piece({"F": 0.5}), Piece(), layer, head)
    stage = blocks.stage(Content(4, has_last=True))
    assert stage.seconds == {"F": 7.5, "B": 8.0, UPDATE: 1.0}
    assert (stage.held_bytes, stage.arena_bytes["F"]) == (47.0, 9.0)
    assert blocks.stage(Content(0, has_first=True)).arena_bytes == {}


@pytest.mark.parametrize(("ranks", "held"), [(2, 100.0), (4, 80.0), (8, 70.0)])
def test_on_other_ranks_of_data_a_rank_has_another_part_of_what_is_divided(
    ranks: int, held: float
) -> None:
    piece = Piece({"F": 1.0, UPDATE: 3.0}, {UPDATE: 1.0}, 100.0, 40.0)
    place = Placement((("data", Split(0)),))
    blocks = Blocks(piece, piece, piece, piece, (Passed((8, 3), "f32", place, 48.0, True),))
    other = blocks.on(2, ranks, link=1.5 if ranks > 2 else 1.0)
    assert other.layer.held_bytes == pytest.approx(held)
    assert other.layer.seconds["F"] == 1.0
    waits = 1.5 if ranks > 2 else 1.0
    assert other.layer.seconds[UPDATE] == pytest.approx(waits + 2.0 * held / 100.0)
    assert other.passed[0].shape == (8 * ranks // 2, 3)
