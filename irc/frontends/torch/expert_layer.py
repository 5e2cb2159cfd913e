"""Layers of experts in place of the additions of a loop (`irc.frontends.torch.expert_loops`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.fx import Graph, Node

from irc.frontends.torch.expert_rows import (
    Choice,
    Expert,
    Gathered,
    Linear,
    aten,
    differs,
    numbers,
    same,
    shape,
)

EVEN = 8
"""Columns for a bias: matrices keep a width that units of eight divide."""


@dataclass(frozen=True)
class Member:
    """One expert of a loop.

    Attributes:
        mask: which tokens chose it, once for each choice or once for all.
        tokens: the dims of the mask that are tokens; at most one other is choices.
        expert: what it computes.
        weights: of its rows, multiplied.
        choice: what the mask is; None where that is not known.
        once: a token that chose it twice counts once.
    """

    mask: Node
    tokens: tuple[int, ...]
    expert: Expert
    weights: list[Gathered]
    choice: Choice | None
    once: bool


class Build:
    """Appends ops in front of a node, each with its fake value.

    Attributes:
        wanted: the value of that node.
    """

    def __init__(self, graph: Graph, before: Node) -> None:
        self._graph, self._before = graph, before
        self.wanted = before.meta["val"]
        self._mode = before.meta["val"].fake_mode
        self._meta = {k: v for k, v in before.meta.items() if k not in ("val", "tensor_meta")}

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Append an op."""
        with self._graph.inserting_before(self._before):
            node = self._graph.call_function(target, args, kwargs)
        node.meta.update(self._meta)
        values = torch.fx.map_arg((args, kwargs), lambda operand: operand.meta["val"])
        with self._mode:
            node.meta["val"] = target(*values[0], **values[1])
        return node

    def cast(self, value: Node, dtype: torch.dtype) -> Node:
        """Append a cast where one is needed."""
        return value if value.meta["val"].dtype == dtype else self(aten.to.dtype, value, dtype)

    def ordinals(self, count: int, like: Node) -> Node:
        """Append 0, 1, .. on the device of another value."""
        return self(aten.arange.default, count, dtype=torch.int64, device=like.meta["val"].device)

    def filled(self, rows: Node, columns: int, number: int) -> Node:
        """Append a number for each row of another value, ``columns`` times."""
        column = self(aten.full_like.default, self(aten.slice.Tensor, rows, 1, 0, 1), number)
        return column if columns == 1 else self(aten.expand.default, column, [-1, columns])


def combined(
    build: Build, members: Sequence[Member], start: Node | None, in_place: bool, sets: bool
) -> Node | None:
    """Append what a loop computes; None, and nothing appended, where that is not understood.

    Args:
        build: appends ops.
        members: its experts, in order.
        start: what their rows are added to; None for zeros.
        in_place: add them in place.
        sets: rows are set to what experts give.
    """
    layers, wanted = list(_layers(members)), build.wanted
    if not all(_fits(member, wanted) for member in members):
        return None
    open_ = wanted.ndim > 2 and not all(isinstance(size, int) for size in wanted.shape)
    if open_ or not all(map(_understood, layers)) or (sets and not _covers(layers, start)):
        return None
    total: Node | None = None
    for layer in layers:
        output = build.cast(_layer(build, layer), wanted.dtype)
        if wanted.ndim > 2:
            output = build(aten.reshape.default, output, list(wanted.shape))
        total = output if total is None else build(aten.add.Tensor, total, output)
    if start is None or total is None:
        return total
    return build(aten.add_.Tensor if in_place else aten.add.Tensor, start, total)


def _fits(member: Member, wanted: torch.Tensor) -> bool:
    """Return whether an expert gives as many rows and columns as the result has."""
    rows = member.expert.rows
    output_shape = [*shape(rows.base)[rows.lead : -1], _sizes(member.expert.down)[0]]
    sizes = [shape(member.mask)[dim] for dim in member.tokens]
    return list(map(str, output_shape)) == list(map(str, wanted.shape)) and (
        list(map(str, sizes)) == list(map(str, output_shape[:-1]))
    )


def _covers(layers: Sequence[Sequence[Member]], start: Node | None) -> bool:
    """Return whether no row can be set twice, and one that is not set is zero or anything."""
    if start is not None or len(layers) != 1:
        return False
    return all(
        member.choice is not None
        and not member.choice.reduced
        and len(member.tokens) == len(numbers(member.mask) or ())
        for member in layers[0]
    )


def _layers(members: Sequence[Member]) -> Iterator[list[Member]]:
    """Group experts that follow each other and are of one layer; a second round is another."""
    group: list[Member] = []
    for member in members:
        if group and not _joins(group, member):
            yield group
            group = []
        group.append(member)
    if group:
        yield group


def _joins(group: Sequence[Member], member: Member) -> bool:
    first = group[0]
    a, b = first.expert, member.expert
    if not same(a.rows.base, b.rows.base) or a.act != b.act or (a.up is None) != (b.up is None):
        return False
    if first.tokens != member.tokens or numbers(first.mask) != numbers(member.mask):
        return False
    if (first.choice is None) != (member.choice is None):
        return False
    if first.choice is not None and member.choice is not None:
        if not same(first.choice.index, member.choice.index):
            return False
        if any(m.choice is not None and m.choice.expert == member.choice.expert for m in group):
            return False
    return not any(m.expert.down.matrix is b.down.matrix for m in group) and all(
        _sizes(x) == _sizes(y) for x, y in zip(_linears(a), _linears(b), strict=True)
    )


def _linears(expert: Expert) -> list[Linear]:
    return [each for each in (expert.gate, expert.up, expert.down) if each is not None]


def _sizes(linear: Linear) -> tuple[Any, ...]:
    """Return (out, in)."""
    out, width = shape(linear.matrix)[:: -1 if linear.turned else 1]
    return out // linear.part[1], width


def _understood(layer: Sequence[Member]) -> bool:
    for member in layer:
        extra = len(numbers(member.mask) or ()) - len(member.tokens)
        base = shape(member.expert.rows.base)[member.expert.rows.lead :]
        choices = [shape(member.mask)[d] for d in range(len(shape(member.mask)))]
        if not all(isinstance(n, int) for d, n in enumerate(choices) if d not in member.tokens):
            return False
        if numbers(member.expert.rows.base) is None or len(base) != len(member.tokens) + 1:
            return False
        if extra and member.once and not _unique(member):
            return False
        for weight in member.weights:
            if sorted(weight.dims) not in (
                sorted(member.tokens),
                list(range(extra + len(member.tokens))),
            ):
                return False
    return True


def _unique(member: Member) -> bool:
    """Return whether a token is known to choose each expert once at most."""
    return member.choice is not None and differs(member.choice.index)


def _layer(build: Build, layer: Sequence[Member]) -> Node:
    first = layer[0].expert
    base = first.rows.base
    width = shape(base)[-1]
    rows = build(aten.reshape.default, base, [-1, width])
    routed = _by_choice(build, layer, rows) or _by_mask(build, layer, rows)
    index, weights, layer = routed
    count = len(layer)
    dtype = rows.meta["val"].dtype
    inner = [_linears(member.expert)[:-1] for member in layer]
    biased = any(linear.bias is not None for linears in inner for linear in linears)
    pairs = [
        build(aten.stack.default, [_matrix(build, linear, biased) for linear in linears])
        for linears in inner
    ]
    if biased:
        ones, rest = build.filled(rows, 1, 1), build.filled(rows, EVEN - 1, 0)
        rows = build(aten.cat.default, [rows, ones, rest], 1)
    last = build(aten.stack.default, [_matrix(build, m.expert.down, False) for m in layer])
    output = build(
        torch.ops.irc.experts.default, rows, index, weights,
        build(aten.stack.default, pairs), last, first.act, count,
    )  # fmt: skip
    if all(member.expert.down.bias is None for member in layer):
        return output
    biases = build(aten.stack.default, [_bias(build, m.expert.down) for m in layer])
    expert_weights = _given(build, index, weights, count)
    return build(
        aten.add.Tensor,
        output,
        build(aten.matmul.default, build.cast(expert_weights, dtype), biases),
    )


def _given(build: Build, index: Node, weights: Node, count: int) -> Node:
    """Append the weight that each token gives each expert, [tokens, experts]."""
    places = build.ordinals(count, index)
    chosen = build(aten.eq.Tensor, build(aten.unsqueeze.default, index, 2), places)
    spread = build(aten.mul.Tensor, build(aten.unsqueeze.default, weights, 2), chosen)
    return build(aten.sum.dim_IntList, spread, [1])


def _matrix(build: Build, linear: Linear, biased: bool) -> Node:
    """Append a matrix [out, in], with columns for its bias."""
    matrix = linear.matrix
    if linear.turned:
        matrix = build(aten.transpose.int, matrix, 0, 1)
    matrix = _cut(build, matrix, linear)
    if not biased:
        return matrix
    out = shape(matrix)[0]
    bias = build(aten.reshape.default, _bias(build, linear), [out, 1])
    rest = build(aten.new_zeros.default, matrix, [out, EVEN - 1])
    return build(aten.cat.default, [matrix, bias, rest], 1)


def _bias(build: Build, linear: Linear) -> Node:
    if linear.bias is None:
        return build(aten.new_zeros.default, linear.matrix, [_sizes(linear)[0]])
    return _cut(build, linear.bias, linear)


def _cut(build: Build, value: Node, linear: Linear) -> Node:
    number, parts = linear.part
    if parts == 1:
        return value
    size = shape(value)[0] // parts
    return build(aten.slice.Tensor, value, 0, number * size, (number + 1) * size)


Routed = tuple[Node, Node, Sequence[Member]]
"""Index [tokens, choices], weights of the same shape, and experts in the index's order."""


def _by_choice(build: Build, layer: Sequence[Member], rows: Node) -> Routed | None:
    """Append the routing that an index says; None where none does."""
    choices = [member.choice for member in layer if member.choice is not None]
    if len(choices) != len(layer):
        return None
    ordered = sorted(layer, key=lambda m: m.choice.expert)  # type: ignore[union-attr]  # not None
    if sorted(c.expert for c in choices) != list(range(len(layer))):
        return None
    first, choice = ordered[0], ordered[0].choice
    assert choice is not None
    once = choice.reduced or first.once
    shared = all(_weighed_alike(first, member) for member in ordered)
    extra = [d for d in range(len(shape(first.mask))) if d not in first.tokens]
    if any(len(w.dims) > len(first.tokens) for m in ordered for w in m.weights) and not shared:
        return None
    several = len(shape(choice.index)) > len(first.tokens)
    if (once or not shared) and several and not differs(choice.index):
        return None
    tokens = [choice.dims[dim] for dim in first.tokens]
    if any(dims != choice.dims for dims in (c.dims for c in choices)):
        return None
    rest = [d for d in range(len(shape(choice.index))) if d not in tokens]
    index = build(aten.permute.default, choice.index, [*tokens, *rest])
    index = build(aten.reshape.default, index, [-1, prod(shape(choice.index)[d] for d in rest)])
    index = build.cast(index, torch.int64)
    if shared:
        weights = _weights(build, first, extra, rows)
        weights = build(aten.expand.default, weights, [-1, shape(index)[1]])
    else:
        columns = [_weights(build, member, [], rows) for member in ordered]
        every = build(aten.cat.default, columns, 1)
        own = build(aten.clamp.default, index, 0, len(ordered) - 1)
        weights = build(aten.gather.default, every, 1, own)
    return index, weights, ordered


def _weighed_alike(a: Member, b: Member) -> bool:
    return len(a.weights) == len(b.weights) and all(
        same(x.base, y.base) and x.dims == y.dims and x.lead == y.lead
        for x, y in zip(a.weights, b.weights, strict=True)
    )


def _by_mask(build: Build, layer: Sequence[Member], rows: Node) -> Routed:
    """Append the routing that masks say: each token has as many choices as there are experts."""
    indices: list[Node] = []
    weights: list[Node] = []
    for number, member in enumerate(layer):
        dims = len(shape(member.mask))
        extra = [d for d in range(dims) if d not in member.tokens]
        mask = build(aten.permute.default, member.mask, [*member.tokens, *extra])
        mask = build(aten.reshape.default, mask, [-1, prod(shape(member.mask)[d] for d in extra)])
        if mask.meta["val"].dtype != torch.bool:
            mask = build(aten.ne.Scalar, mask, 0)
        weight = _weights(build, member, extra, rows)
        none = build(aten.zeros_like.default, weight)
        own = build(aten.where.self, mask, weight, none)
        weights.append(build(aten.sum.dim_IntList, own, [1], True))
        chosen = build(aten.any.dim, mask, 1, True)
        held = build.cast(chosen, torch.int64)
        indices.append(build(aten.sub.Tensor, build(aten.mul.Tensor, held, number + 1), 1))
    index = build(aten.cat.default, indices, 1)
    return index, build(aten.cat.default, weights, 1), layer


def _weights(build: Build, member: Member, extra: Sequence[int], rows: Node) -> Node:
    """Append the weights of a member's rows: [tokens, choices], or [tokens, 1]."""
    total: Node | None = None
    for weight in member.weights:
        order = [weight.dims.index(dim) for dim in (*member.tokens, *extra) if dim in weight.dims]
        value = weight.base
        for _ in range(weight.lead):
            value = build(aten.squeeze.dim, value, 0)
        for _ in range(len(shape(value)) - len(weight.dims)):
            value = build(aten.squeeze.dim, value, -1)
        choices = [shape(member.mask)[dim] for dim in extra if dim in weight.dims]
        value = build(aten.permute.default, value, order)
        value = build(aten.reshape.default, value, [-1, prod(choices)])
        total = value if total is None else build(aten.mul.Tensor, total, value)
    return total if total is not None else build.filled(rows, 1, 1)
