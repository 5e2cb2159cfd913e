"""Gradients of attention: what is decided before a kernel is written.

FlashAttention-2 (arXiv:2307.08691, algorithm 2): for each block of keys, and each block of rows
that sees some of them, the scores are computed again from the log-sums, in five products::

    P = exp(Q K^T scale - sums)     dP = G V^T      dS = P (dP - delta) scale
    dV += P^T G      dK += dS^T Q      dQ += dS K

Keys lie in the lanes: ``P[rows][keys]`` is a register tile of rows of Q with a packed panel of K,
masks are read as they lie, and log-sums are one number a row. The other three are tiles whose lanes
are features and whose factors are elements of P and dS, by rows or by columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from irc.backends.cpu.attention.blocks import AttentionPlan
from irc.backends.cpu.features import Features
from irc.dialects.attention import AttentionForm, Place

VECTORS = 4
"""Vectors of keys of a block; also the most of features that are accumulated at once."""
ROWS, EDGE_ROWS = 60, 24
"""Rows of a block: whole tiles; fewer where the block stands on the diagonal."""
FLOPS = 200_000
"""From how many on a thread pool is worth its start."""


@dataclass(frozen=True)
class Groups:
    """Features in groups of vectors.

    Attributes:
        count: features.
        padded: those of whole vectors.
        vectors: of each group.
    """

    count: int
    padded: int
    vectors: tuple[int, ...]


def groups_of(features: int, lanes: int) -> Groups:
    """Divide features evenly.

    >>> groups_of(80, 16).vectors, groups_of(33, 16)
    ((3, 2), Groups(count=33, padded=48, vectors=(3,)))
    """
    total = -(-features // lanes)
    count = -(-total // VECTORS)
    low, more = divmod(total, count)
    return Groups(features, total * lanes, (*(low + 1,) * more, *(low,) * (count - more)))


@dataclass(frozen=True)
class GradientPlan:
    """Everything that is decided before a kernel is written.

    Attributes:
        blocks: the form, the machine, and the sizes of blocks: ``block`` rows, ``keys`` keys.
        edge: rows of a block on the diagonal.
        depth, width: features of queries and keys, of values.
        pairs: whether products are dot products of pairs of bfloat16.
        copied: which of g, q, k are copied as rows of float32 before they are read.
        inside: whether dq adds up where it is stored.
    """

    blocks: AttentionPlan
    edge: int
    depth: Groups
    width: Groups
    pairs: bool
    copied: frozenset[str]
    inside: bool

    @property
    def vectors(self) -> int:
        """Vectors of keys of a block."""
        return self.blocks.keys // self.blocks.lanes

    def tile_rows(self, vectors: int) -> int:
        """Rows of a register tile: all registers but those of one row's vectors."""
        most = 24 if self.blocks.features.registers == 32 else 12
        return max(1, most // vectors)

    @property
    def units(self) -> int:
        """Parts of all heads of keys."""
        return prod(self.blocks.form.space[:-4]) * self.blocks.form.parts


def plan_gradients(form: AttentionForm, features: Features, workers: int) -> GradientPlan:
    """Decide how the gradients are computed."""
    lanes = features.float_lanes
    keys = min(VECTORS, -(-form.chunk // lanes)) * lanes
    depth, width = groups_of(form.depth, lanes), groups_of(form.width, lanes)
    pairs = suits_pairs(form, features)
    copied = frozenset(
        role for role, groups in (("g", width), ("q", depth), ("k", depth))
        if not pairs and not _is_dense(form.places[role], groups, role)
    )  # fmt: skip
    flops = 2.0 * prod(form.space) * (3 * form.depth + 2 * form.width)
    row = len(form.space) - 3
    parallel = workers > 1 and flops > FLOPS
    blocks = AttentionPlan(form, features, row, lanes, min(ROWS, form.rows), keys, parallel)
    inside = "dq" in form.places and _is_dense(form.places["dq"], depth, "dq")
    return GradientPlan(blocks, min(EDGE_ROWS, form.rows), depth, width, pairs, copied, inside)


def _is_dense(place: Place, groups: Groups, role: str) -> bool:
    """True where rows of float32 lie behind each other, in whole vectors."""
    apart = place.strides[-1 if role == "k" else -3]
    whole = groups.count == groups.padded == apart
    return place.dtype == "f32" and place.feature == 1 and whole


def suits_pairs(form: AttentionForm, features: Features) -> bool:
    """True where the machine multiplies pairs of bfloat16, and those lie side by side in memory."""
    places = [form.places[role] for role in ("g", "q", "k", "v")]
    if not features.dot_bf16 or features.float_lanes != 16 or form.places["q"].dtype != "bf16":
        return False
    even = all(not p.offset % 2 and not any(s % 2 for s in p.strides) for p in places)
    return even and form.depth % 2 == form.width % 2 == 0 and all(p.feature == 1 for p in places)
