"""Strings: joining, splitting, matching, normalising, counting n-grams."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from irc.runtime.onnx_ops.call import Call, Kernels
from irc.runtime.onnx_ops.values import Array, strings


def _concat(call: Call) -> Array:
    a, b = np.broadcast_arrays(call[0], call[1])
    joined = [x + y for x, y in zip(a.reshape(-1).tolist(), b.reshape(-1).tolist(), strict=True)]
    return strings(joined, a.shape)


def _split(call: Call) -> tuple[Array, Array]:
    x, limit = call[0], call.attr("maxsplit", -1)
    # An empty delimiter means, as none does, runs of white space.
    delimiter = call.attr("delimiter") or None
    rows = [text.split(delimiter, limit) for text in x.reshape(-1).tolist()]
    longest = max((len(row) for row in rows), default=0)
    padded = [part for row in rows for part in (*row, *[""] * (longest - len(row)))]
    counts = np.array([len(row) for row in rows], np.int64).reshape(x.shape)
    return strings(padded, (*x.shape, longest)), counts


def _match(call: Call) -> Array:
    pattern, x = re.compile(call.attr("pattern", "")), call[0]
    matches = [pattern.fullmatch(text) is not None for text in x.reshape(-1).tolist()]
    return np.array(matches, np.bool_).reshape(x.shape)


def _normalise(call: Call) -> Array:
    x, action = call[0], call.attr("case_change_action", "NONE")
    exact = bool(call.attr("is_case_sensitive", 0))
    stop: list[str] = call.attr("stopwords") or []
    stopped = set(stop) if exact else {word.lower() for word in stop}
    change = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}[action]
    rows = x.reshape(-1, x.shape[-1]).tolist()
    kept = [[change(t) for t in row if (t if exact else t.lower()) not in stopped] for row in rows]
    if not any(kept):
        # Nothing left is one empty string.
        kept = [[""] for _ in kept]
    return strings([text for row in kept for text in row], (*x.shape[:-1], len(kept[0])))


def _count_ngrams(call: Call) -> Array:
    """TfIdfVectorizer: how often each n-gram of the pool occurs, with skips between its items."""
    x, weights = call[0], call.attr("weights")
    pool: dict[tuple[Any, ...], int] = _pool(call)
    places = call.attr("ngram_indexes")
    rows = x.reshape(-1, x.shape[-1] if x.ndim else 1).tolist()
    counts = np.zeros((len(rows), max(places) + 1), np.float32)
    for r, row in enumerate(rows):
        for gram in _ngrams(call, row):
            if gram in pool:
                counts[r, places[pool[gram]]] += 1
    mode = call.attr("mode")
    features = counts if mode == "TF" else (counts > 0).astype(np.float32)
    if mode != "TF":
        features = _weighted(features, weights, places) if mode == "IDF" else features
    if mode == "TFIDF":
        features = _weighted(counts, weights, places)
    return features if x.ndim > 1 else features[0]


def _weighted(counts: Array, weights: Sequence[float] | None, places: Sequence[int]) -> Array:
    if weights is None:
        return counts
    factors = np.ones(counts.shape[-1], np.float32)
    factors[list(places)] = weights
    return counts * factors


def _pool(call: Call) -> dict[tuple[Any, ...], int]:
    items = call.attr("pool_strings") or call.attr("pool_int64s")
    starts = call.attr("ngram_counts")
    pool: dict[tuple[Any, ...], int] = {}
    for size, (start, end) in enumerate(zip(starts, (*starts[1:], len(items)), strict=True), 1):
        for at in range(start, end, size):
            pool[tuple(items[at : at + size])] = len(pool)
    return pool


def _ngrams(call: Call, row: Sequence[Any]) -> list[tuple[Any, ...]]:
    grams: list[tuple[Any, ...]] = []
    for size in range(call.attr("min_gram_length"), call.attr("max_gram_length") + 1):
        # Skips make no difference to single items, which are counted once.
        most = 1 if size == 1 else call.attr("max_skip_count") + 1
        for gap in range(1, most + 1):
            reach = (size - 1) * gap
            grams += [tuple(row[at : at + reach + 1 : gap]) for at in range(len(row) - reach)]
    return grams


KERNELS: Kernels = {
    "RegexFullMatch": _match,
    "StringConcat": _concat,
    "StringNormalizer": _normalise,
    "StringSplit": _split,
    "TfIdfVectorizer": _count_ngrams,
}
