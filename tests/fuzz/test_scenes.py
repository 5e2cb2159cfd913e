"""Scenes through every way in: a seeded part here, more with ``-m slow``; and the checks."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch

from tests.fuzz import guarded, ways
from tests.fuzz.observed import differences, observe
from tests.fuzz.scene_motifs import scene
from tests.fuzz.scene_mutants import DIRECTED, SCENE_MUTANTS
from tests.fuzz.session import Session


def run(names: list[str], seeds: range) -> None:
    session = Session(names)
    failures = [failure.text for failure in session.run(seeds)]
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("way", ways.WAYS)
def test_scenes(way: str) -> None:
    run([way], range(1100, 1115))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_thousand() -> None:
    """Each in the way, and on the instruction set, whose turn it is."""
    run(["way"], range(2000))


# the fuzzer itself


def test_a_seed_is_a_scene() -> None:
    assert [scene(s).text for s in range(40)] == [scene(s).text for s in range(40)]


def test_scenes_have_what_is_promised() -> None:
    """Dtypes, layouts, writes, shared memory, hooks and random numbers among a few hundred."""
    scenes = [scene(seed) for seed in range(400)]
    text = "\n".join(each.text for each in scenes)
    assert {x.dtype for each in scenes for x in each.arguments} >= {
        "c64", "c128", "f64", "f32", "f16", "bf16", "i64", "i32", "i16", "u8", "i1",
    }  # fmt: skip
    assert any(x.layout == "channels_last" for each in scenes for x in each.arguments)
    assert any(0 in x.shape for each in scenes for x in each.arguments)
    assert sum(bool(x.of) for each in scenes for x in each.arguments) > 20
    assert {each.hook for each in scenes} == {"", "pre", "forward", "layer", "backward"}
    assert sum(bool(each.random) for each in scenes) > 20
    assert sum(len(set(each.results)) < len(each.results) for each in scenes) > 5
    assert sum(any(r.startswith("x") for r in each.results) for each in scenes) > 20
    for words in (
        ".add_(", "[...] = ", ".copy_(", "as_strided", "diagonal", ".real", "conv2d", "dropout",
        "scaled_dot_product_attention", "channels_last)", "torch.where", " / 3", "(1 + 2j)",
    ):  # fmt: skip
        assert words in text, words


def test_eager_agrees_with_itself() -> None:
    """What a caller sees of eager is what a caller sees of eager: hooks, seeds and all."""
    for seed in range(60):
        one = scene(seed)
        for gradients in (False, True):
            try:
                seen, wanted = (
                    observe(one, lambda target: target, gradients=gradients) for _ in range(2)
                )
                wide = observe(one.widened(), lambda target: target, gradients=gradients)
            except RuntimeError:
                continue
            assert differences(one, seen, wanted, wide) == [], one.text


def test_gradients_that_share_memory_are_seen() -> None:
    """By where they lie, and by what a second backward pass makes of them."""
    one = DIRECTED["equal gradients"]
    (mutant,) = [each for each in SCENE_MUTANTS if "share memory" in each.name]
    with mutant.planted():
        failure = ways.check(one, mutant.way)
    assert failure is not None
    assert failure.kind == "memory"
    assert "('.grad of argument 0', '.grad of argument 1')" in failure.text
    assert "gradient of x0: 15 of 15 elements" in failure.text
    assert "('gradient of argument 0', 'gradient of argument 1')" in failure.text
    assert ways.check(one, mutant.way) is None


def test_strides_of_torchs_own_trace_are_told_from_others() -> None:
    """A result that lies as the trace says is excused; one that a fault lays otherwise is not."""
    convolved = DIRECTED["one channel"]
    assert ways.check(convolved, "way-dynamo") is None
    with patch.object(ways, "_traced", lambda target: target):
        failure = ways.check(convolved, "way-dynamo")
    assert failure is not None
    assert "has strides (140, 1, 28, 4), not (140, 35, 7, 1)" in failure.text


def test_guards_see_what_is_written_beyond() -> None:
    guards = guarded.Guards(0x40)
    tensor = guards.empty((3, 5), torch.float32)
    assert tensor.flatten().tolist() == [tensor[0, 0].item()] * 15
    tensor.zero_()
    guards.check()
    tensor.as_strided((1,), (1,), tensor.storage_offset() + 15).zero_()
    with pytest.raises(AssertionError, match="beyond a tensor"):
        guards.check()
