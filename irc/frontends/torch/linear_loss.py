"""Dynamo's graphs: the cross-entropy of a linear layer becomes one op before gradients are traced.

AOTAutograd gives forward and backward as two graphs, of which the first would hand all logits to
the second. So the loss is replaced before: ``F.cross_entropy(F.linear(h, w, b), target)`` with
views, shifts and upcasts between. Of a mean or a sum the forward pass makes the gradients too, of a
loss 1, and the backward pass scales them (Liger kernel, arXiv:2410.10989); of single losses it
computes the logits of each block again. The ops are those of :mod:`irc.ops.linear_loss`.

Under autocast the layer gives logits in a half type, whatever its operands are: then they are
converted first, as autocast does.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.nn import functional as F

from irc.kernels import linear_loss as streaming
from irc.ops.linear_loss import BACKWARD, BOTH, LOSS
from irc.runtime import linear_loss as reference

Tensor = torch.Tensor

# torch's own types of both leave out what ``register_fake`` and ``apply`` return.
_custom_op: Any = torch.library.custom_op
_Function: Any = torch.autograd.Function


@_custom_op(LOSS, mutates_args=())
def losses(h: Tensor, w: Tensor, index: Tensor, bias: Tensor | None = None) -> list[Tensor]:
    """Return the loss and the log-sum of each row."""
    return reference.losses(h, w, index, bias)


@_custom_op(BACKWARD, mutates_args=())
def backward(
    g: Tensor,
    h: Tensor,
    w: Tensor,
    index: Tensor,
    sums: Tensor,
    bias: Tensor | None = None,
    gs: Tensor | None = None,
) -> list[Tensor]:
    """Return the gradients of h, w and, where there is one, the bias."""
    return reference.backward(g, h, w, index, sums, bias, gs)


@_custom_op(BOTH, mutates_args=())
def both(
    g: Tensor,
    h: Tensor,
    w: Tensor,
    index: Tensor,
    bias: Tensor | None = None,
    gs: Tensor | None = None,
) -> list[Tensor]:
    """Return losses, log-sums and gradients."""
    return reference.both(g, h, w, index, bias, gs)


def _wide(h: Tensor) -> torch.dtype:
    return torch.float32 if h.dtype in (torch.float16, torch.bfloat16) else h.dtype


@losses.register_fake
def _fake_losses(h: Tensor, w: Tensor, index: Tensor, bias: Tensor | None = None) -> list[Tensor]:
    return [h.new_empty(h.shape[0], dtype=_wide(h)) for _ in range(2)]


@backward.register_fake
def _fake_backward(
    g: Tensor,
    h: Tensor,
    w: Tensor,
    index: Tensor,
    sums: Tensor,
    bias: Tensor | None = None,
    gs: Tensor | None = None,
) -> list[Tensor]:
    operands = [h, w] if bias is None else [h, w, bias]
    return [value.new_empty(value.shape) for value in operands]


@both.register_fake
def _fake_both(
    g: Tensor,
    h: Tensor,
    w: Tensor,
    index: Tensor,
    bias: Tensor | None = None,
    gs: Tensor | None = None,
) -> list[Tensor]:
    return [*_fake_losses(h, w, index, bias), *_fake_backward(g, h, w, index, g, bias)]


class _Rows(_Function):
    """The loss of each row, and its log-sum."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, w: Tensor, bias: Tensor | None, index: Tensor
    ) -> tuple[Tensor, Tensor]:
        row_losses, sums = torch.ops.irc.linear_cross_entropy(h, w, index, bias)
        ctx.save_for_backward(h, w, bias, index, sums)
        ctx.set_materialize_grads(False)
        return row_losses, sums

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, gs: Tensor | None) -> tuple[Tensor | None, ...]:
        h, w, bias, index, sums = ctx.saved_tensors
        g = torch.zeros_like(sums) if g is None else g
        operands = (g, h, w, index, sums, bias, *(() if gs is None else (gs,)))
        gradients = torch.ops.irc.linear_cross_entropy_backward(*operands)
        dh, dw, db = (*gradients, None)[:3]
        return dh, dw, db, None


class _Total(_Function):
    """The sum of the losses of rows, each times its share; its gradients are made beforehand.

    Of smoothed labels, ``smoothing`` of a row's share is that of its log-sum.
    """

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        w: Tensor,
        bias: Tensor | None,
        index: Tensor,
        share: Tensor,
        smoothing: float,
    ) -> Tensor:
        own = share * (1 - smoothing)
        operands = (own, h, w, index, bias, *((share * smoothing,) if smoothing else ()))
        row_losses, sums, *gradients = torch.ops.irc.linear_cross_entropy_both(*operands)
        ctx.save_for_backward(*(*gradients, None)[:3])
        each = row_losses * own
        if smoothing:
            each = each + sums * (share * smoothing)
        # The loss of a row that does not count may be infinite.
        return torch.where(share != 0, each, 0).sum()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [None if d is None else d * g.to(d.dtype) for d in ctx.saved_tensors]
        return (*scaled, None, None, None)


def linear_cross_entropy(
    h: Tensor,
    w: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int,
    reduction: str,
    dtype: torch.dtype,
    smoothing: float = 0.0,
) -> Tensor:
    """Return ``F.cross_entropy(F.linear(h, w, bias), target)``.

    Args:
        h: hidden rows [n, d].
        w: the weight [v, d].
        bias: [v], or None.
        target: classes [n].
        ignore_index: of rows that do not count.
        reduction: ``mean``, ``sum`` or ``none``.
        dtype: of the result.
        smoothing: the part of a label that all classes share.
    """
    counted = target != ignore_index
    index = torch.where(counted, target, 0)
    share = counted.to(_wide(h))
    if reduction == "none":
        row_losses, sums = _Rows.apply(h, w, bias, index)
        if smoothing:
            row_losses = (1 - smoothing) * row_losses + smoothing * (
                sums - _mean_logits(h, w, bias)
            )
        return torch.where(counted, row_losses, 0).to(dtype)
    count = share.sum() if reduction == "mean" else None
    if count is not None:
        share = torch.where(counted, 1 / count, 0)
    total = _Total.apply(h, w, bias, index, share, smoothing)
    if smoothing:
        means = torch.where(counted, _mean_logits(h, w, bias) * share, 0)
        total = total - smoothing * means.sum()
    if count is not None:
        # Without a row that counts, the mean is 0 / 0, and all gradients are zeros.
        total = total + 0 * (1 / count)
    return total.to(dtype)


def _mean_logits(h: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """Return the mean of each row's logits, [n]: what its row of h gives with the mean weight."""
    wide = _wide(h)
    # No matmul, which autocast would round.
    means = (h.to(wide) * w.to(wide).mean(0)).sum(1)
    return means if bias is None else means + bias.to(wide).mean()


class _MissError(Exception):
    """A loss keeps its logits; the text says why."""


def stream_losses(gm: GraphModule) -> tuple[GraphModule, list[str]]:
    """Return a graph whose losses of linear layers need no logits; the same where there are none.

    Args:
        gm: of torch functions, as Dynamo gives it, with ``example_value`` of each node.

    Returns:
        The graph, and of each loss that keeps its logits why.
    """
    matches: list[tuple[Node, _Match]] = []
    reasons: list[str] = []
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target is F.cross_entropy:
            try:
                matches.append((node, _match(node)))
            except _MissError as miss:
                reasons.append(f"{node.name}: {miss}")
    if not matches:
        return gm, reasons
    memo: dict[Node, Node] = {}
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, memo))
    for old, new in memo.items():
        if hasattr(old, "_dynamo_source"):  # a copy loses it: its name in the user's terms
            vars(new)["_dynamo_source"] = vars(old)["_dynamo_source"]
    for _, match in matches:
        match.rewrite(graph, memo)
    graph.eliminate_dead_code()
    return GraphModule(gm, graph), reasons


class _Match:
    """A loss and what it is computed of."""

    def __init__(
        self, node: Node, linear: Node, chain: list[Node], options: dict[str, Any]
    ) -> None:
        self.node, self.linear, self.chain, self.options = node, linear, chain, options

    def rewrite(self, graph: torch.fx.Graph, memo: dict[Node, Node]) -> None:
        """Put the op in the place of the loss."""
        node = memo[self.node]
        h, w, *bias = (memo.get(a, a) for a in _arguments(self.linear, ("input", "weight", "bias")))
        width = _value(self.linear.args[0]).shape[-1]
        with graph.inserting_before(node):
            for step in self.chain:
                if step.target is operator.getitem:
                    h = graph.call_function(operator.getitem, (h, step.args[1]))
                elif _value(step).shape[:-1] != _value(step.args[0]).shape[:-1]:
                    shape = (*_value(step).shape[:-1], width)
                    h = graph.call_function(torch.reshape, (h, shape))
            h, w, *bias = (self._rounded(graph, value) for value in (h, w, *bias))
            arguments = (h, w, *(bias or [None]), memo[self.options.pop("target")])
            call = graph.call_function(linear_cross_entropy, arguments, self.options)
            call.meta.update(node.meta)
        node.replace_all_uses_with(call)
        graph.erase_node(node)

    def _rounded(self, graph: torch.fx.Graph, value: Any) -> Any:
        """Convert an operand to the dtype of the logits, as autocast does."""
        dtype = _value(self.linear).dtype
        same = all(_value(a).dtype == dtype for a in _given(self.linear))
        return value if same or value is None else graph.call_method("to", (value, dtype))


RESHAPES = frozenset({"view", "reshape", "flatten", "contiguous", "float", "to", "type"})
"""Methods that change no value of float32 and less."""


def _match(node: Node) -> _Match:
    names = (
        "input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction",
        "label_smoothing",
    )  # fmt: skip
    default = {
        "weight": None, "size_average": None, "ignore_index": -100, "reduce": None,
        "reduction": "mean", "label_smoothing": 0.0,
    }  # fmt: skip
    arguments: dict[str, Any] = {
        **default,
        **dict(zip(names, node.args, strict=False)),
        **node.kwargs,
    }
    plain = ("weight", "size_average", "reduce")
    if any(arguments[name] is not None for name in plain):
        raise _MissError("weights of classes need all logits")
    if not isinstance(arguments["label_smoothing"], int | float):
        raise _MissError("how far its labels are smoothed is known when it runs")
    x, target = arguments["input"], arguments["target"]
    if _value(x).ndim != 2 or _value(target).ndim != 1 or not isinstance(target, Node):
        raise _MissError("its logits are no rows of classes")
    chain: list[Node] = []
    while not _is_linear(x):
        chain.insert(0, x)
        x = _before(x)
    if len(x.users) != 1:
        raise _MissError("others read its logits too")
    _check(x, chain)
    options = {
        "target": target,
        "ignore_index": arguments["ignore_index"],
        "reduction": arguments["reduction"],
        "dtype": _value(node).dtype,
        "smoothing": float(arguments["label_smoothing"]),
    }
    return _Match(node, x, chain, options)


def _is_linear(node: Any) -> bool:
    return isinstance(node, Node) and node.op == "call_function" and node.target is F.linear


def _before(node: Any) -> Any:
    """Return the logits before an op that only rearranges rows or widens.

    Raises:
        _MissError: for another.
    """
    if not isinstance(node, Node) or len(node.users) != 1:
        raise _MissError("others read its logits too")
    source = node.args[0] if node.args else None
    method = node.op == "call_method" and node.target in RESHAPES
    function = node.op == "call_function" and node.target in (torch.reshape, torch.flatten)
    if _value(source).shape[-1:] != _value(node).shape[-1:]:
        raise _MissError("its logits are no linear layer's, with their rows rearranged")
    if node.target is operator.getitem:
        if _keeps_classes(node.args[1], _value(source).ndim):
            return source
    elif method or function:
        return source
    raise _MissError(f"its logits pass through {node.target}")


def _keeps_classes(index: Any, ndim: int) -> bool:
    """True for slices of rows: the last dim is taken whole."""
    items: list[Any] = [*index] if isinstance(index, tuple) else [index]
    if not all(isinstance(item, slice) or item is Ellipsis for item in items):
        return False
    if any(isinstance(n, Node) for s in items if isinstance(s, slice) for n in _bounds(s)):
        return False
    reaches = Ellipsis in items or len(items) == ndim
    return not reaches or items[-1] is Ellipsis or items[-1] == slice(None)


def _bounds(rows: Any) -> tuple[Any, Any, Any]:
    return rows.start, rows.stop, rows.step


def _check(linear: Node, chain: list[Node]) -> None:
    """Refuse dtypes that differ, sizes that are open, and what saves too little.

    Raises:
        _MissError: with the reason.
    """
    operands = [_value(a) for a in _given(linear)]
    results = [_value(node) for node in (linear, *chain)]
    sizes: list[Any] = [size for value in (*operands, *results) for size in value.shape]
    if not all(isinstance(size, int) for size in sizes):
        raise _MissError("a size of its logits is open")
    dtype = results[0].dtype
    if not all(value.dtype.is_floating_point for value in operands):
        raise _MissError("rows and weight are no floats")
    known = (dtype, _wide(results[0]))
    if any(value.dtype not in known for value in results):
        raise _MissError("its logits are rounded before the loss")
    classes, width = operands[1].shape
    rows = results[-1].shape[0]
    saved = streaming.saved_bytes(rows, classes, width, dtype.itemsize)
    if saved < streaming.MIN_BYTES or saved <= 0:
        raise _MissError(f"blocks of rows would save {saved} bytes of logits")


def _given(linear: Node) -> list[Any]:
    """Return input, weight and, where there is one, the bias of a linear layer."""
    arguments = _arguments(linear, ("input", "weight", "bias"))
    return [argument for argument in arguments if argument is not None]


def _arguments(node: Node, names: tuple[str, ...]) -> list[Any]:
    by_name = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    return [by_name.get(name) for name in names]


def _value(node: Any) -> Tensor:
    """Return the fake tensor of a node.

    Raises:
        _MissError: it has none.
    """
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    if not isinstance(value, Tensor):
        raise _MissError("it is not known what its logits are")
    return value
