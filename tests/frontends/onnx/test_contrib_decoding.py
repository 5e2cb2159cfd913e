"""Attention of decoders and rotary embeddings of com.microsoft, against ONNX Runtime."""

# pyright: basic
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from irc.errors import IrcError
from irc.frontends.onnx import load_onnx
from irc.onnx import InferenceSession
from tests.frontends.onnx.test_contrib import check, compare, floats, model_with

RNG = np.random.default_rng(3)
HEADS, GROUPS, SIZE, LONGEST = 4, 2, 32, 16


def tables(pairs: int = 4) -> list[np.ndarray]:
    angles = np.outer(np.arange(LONGEST), 0.3 ** np.arange(pairs)).astype(np.float32)
    return [np.cos(angles), np.sin(angles)]


def decode(
    steps: int,
    lengths: list[int],
    *,
    past: int = 0,
    packed: bool = False,
    pairs: int = SIZE // 2,
    bias: bool = False,
    **attributes: Any,
) -> None:
    """Compare GroupQueryAttention; ``lengths`` are of the samples, their new steps included."""
    batch, total = len(lengths), max(lengths)
    wide, narrow = HEADS * SIZE, GROUPS * SIZE
    operands: list[np.ndarray | None]
    if packed:
        operands = [floats(batch, steps, wide + 2 * narrow), None, None]
    else:
        operands = [floats(batch, steps, n) for n in (wide, narrow, narrow)]
    caches = [floats(batch, GROUPS, past, SIZE) for _ in range(2)] if past else [None, None]
    for cache in caches:
        for sample, length in enumerate(lengths if cache is not None else ()):
            # What lies behind is nobody's; ONNX Runtime gives zeros.
            cache[sample, :, length - steps :] = 0  # type: ignore[index]
    operands += caches
    operands += [np.array(lengths, np.int32) - 1, np.array(total, np.int32)]
    operands += tables(pairs) if attributes.get("do_rotary") else [None, None]
    if bias:
        operands += [None, floats(batch, HEADS, steps, total)]
    check(
        "GroupQueryAttention", operands, outputs=3, stored=[6], num_heads=HEADS,
        kv_num_heads=GROUPS, **attributes,
    )  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rotary", [0, 1])
def test_a_prompt(packed: bool, rotary: int) -> None:
    decode(5, [5, 5], packed=packed, do_rotary=rotary)
    decode(1, [1], packed=packed, do_rotary=rotary)


def test_one_more_token() -> None:
    decode(1, [7], past=6, do_rotary=1)
    decode(1, [7, 7], past=6, do_rotary=1, rotary_interleaved=1)
    decode(1, [7, 7], past=6, do_rotary=1, pairs=8)


def test_more_tokens_after_a_cache() -> None:
    decode(3, [9], past=6, do_rotary=1)


def test_a_buffer_that_is_longer_than_what_it_holds() -> None:
    decode(1, [7, 7], past=12, do_rotary=1)
    decode(1, [7, 4], past=12, do_rotary=1)


@pytest.mark.parametrize("window", [1, 3, 40])
def test_windows(window: int) -> None:
    decode(6, [6, 6], local_window_size=window)
    decode(1, [7], past=6, local_window_size=window)


def test_what_changes_scores() -> None:
    decode(5, [5], scale=0.1)
    decode(5, [5], softcap=2.0)
    decode(5, [5, 5], bias=True)
    decode(1, [7], past=6, smooth_softmax=1)


def test_a_length_that_is_an_input() -> None:
    """The session compiles the model for each length; a plan needs the number."""
    operands = [floats(1, 1, n * SIZE) for n in (HEADS, GROUPS, GROUPS)]
    operands += [floats(1, GROUPS, 4, SIZE)] * 2 + [np.array([4], np.int32), np.array(5, np.int32)]
    inputs = {f"x{i}": x for i, x in enumerate(operands)}
    model = model_with(
        "GroupQueryAttention", inputs, outputs=3, num_heads=HEADS, kv_num_heads=GROUPS
    )
    compare(model, inputs)
    with pytest.raises(IrcError, match="must be constant"):
        load_onnx(model)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(interleaved: int) -> None:
    places = RNG.integers(0, LONGEST, (2, 3)).astype(np.int64)
    first = np.array([5], np.int64)
    for where in (places, first):
        check("RotaryEmbedding", [floats(2, 3, 16), where, *tables()], interleaved=interleaved)
        check("RotaryEmbedding", [floats(2, 2, 3, 8), where, *tables()], interleaved=interleaved)
        check(
            "RotaryEmbedding", [floats(2, 3, 16), where, *tables(2)], interleaved=interleaved,
            num_heads=2, rotary_embedding_dim=4,
        )  # fmt: skip


def test_rotary_embedding_is_no_library_op() -> None:
    inputs = {"x0": floats(1, 3, 16), "x1": np.array([0], np.int64)}
    inputs |= {f"x{i + 2}": table for i, table in enumerate(tables())}
    model = model_with("RotaryEmbedding", inputs)
    compare(model, inputs)
    session = InferenceSession(model)
    session.run(None, inputs)
    assert [version.library_nodes for version in session.versions] == [0]


def test_multi_head_attention_of_packed_operands() -> None:
    """Of these, ONNX Runtime's CPU kernel takes only the first two."""
    q, k, v = floats(2, 3, 6), floats(2, 5, 6), floats(2, 5, 6)
    check("MultiHeadAttention", [q, k, v], num_heads=2, unidirectional=0)
    pairs = np.stack([k.reshape(2, 5, 2, 3), v.reshape(2, 5, 2, 3)], 3)
    both = {"x0": q, "x1": k, "x2": v}, {"x0": q, "x1": pairs}
    results = [
        InferenceSession(model_with("MultiHeadAttention", inputs, num_heads=2)).run(None, inputs)[0]
        for inputs in both
    ]
    np.testing.assert_array_equal(*results)
    three = np.stack([x.reshape(2, 5, 2, 3) for x in (k, k, v)], 3)
    both = {"x0": k, "x1": k, "x2": v}, {"x0": three}
    results = [
        InferenceSession(model_with("MultiHeadAttention", inputs, num_heads=2)).run(None, inputs)[0]
        for inputs in both
    ]
    np.testing.assert_array_equal(*results)


def test_masks_of_starts_and_ends() -> None:
    operands = [floats(2, 4, 6), floats(6, 18), floats(18), np.array([4, 3, 1, 0], np.int32)]
    check("Attention", operands, num_heads=2)
