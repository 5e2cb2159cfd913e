"""Values that a backward pass needs, and that are written to before it: eager raises there.

Autograd counts the writes to a tensor, and raises where it comes to one that was written to after
it was kept. A trace has values instead, and would train with those that were read. So where a trace
writes to what may have been kept, the module runs once more on fake tensors with autograd, which
counts for them as it does in eager, and each value that it keeps is looked at.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.nn.utils.stateless import _reparametrize_module  # pyright: ignore[reportPrivateUsage]
from torch.utils import _pytree as pytree

from irc.errors import IrcError
from irc.frontends.torch.detached_writes import data_as_detached
from irc.frontends.torch.locations import FRAME, inner, of_frames
from irc.frontends.torch.own_backward import is_from_all, loss_name
from irc.frontends.torch.structure import output_names
from irc.frontends.torch.traced_calls import TracedCalls
from irc.frontends.torch.unrecorded import as_it_is
from irc.frontends.torch.written import gives_view, writes_to

_library: Any = torch.overrides
"""torch's own modes, whose types are unknown in part."""

RAISED = "modified by an inplace operation"
"""What torch says of such a value."""

# fmt: off
KEEP_NO_RESULT = frozenset({
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "convolution", "linear", "matmul", "mm", "bmm", "addmm", "batch_norm", "layer_norm",
    "group_norm", "instance_norm", "embedding", "add", "sub", "mul", "div", "neg", "cat", "stack",
    "clone", "to", "_to_copy", "contiguous", "zeros", "ones", "full", "empty", "arange",
    "zeros_like", "ones_like", "full_like", "empty_like", "rand", "randn", "rand_like",
    "randn_like", "where", "index", "mean", "sum", "avg_pool2d", "dropout", "pad",
})
"""Ops of whose results autograd keeps none, by name."""
# fmt: on


def refuse_stale(
    graph: GraphModule, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Refuse a module that writes to what its backward pass needs.

    Args:
        graph: its trace, with what it writes.
        module: is run, on fake tensors, where the trace writes to what may be needed.
        args: examples.
        kwargs: likewise.

    Raises:
        IrcError: ``not-differentiable``.
    """
    if not _may_be_stale(graph):
        return
    with _without_modes(), as_it_is():
        line = _line_of_stale(module, args, kwargs)
    if line is not None:
        raise IrcError(
            "not-differentiable",
            "a value that the backward pass needs is written to after it was read",
            line,
            because="eager raises: one of the variables needed for gradient computation has been "
            f"{RAISED} (through .data it does not count, and takes the gradient at other numbers)",
            help="write to a copy, x = x.clone(), or out of place, x = x * 2",
        )


def _may_be_stale(module: GraphModule) -> bool:
    """True where a trace writes to what something has read before, or to a result that is kept."""
    for child in module.modules():
        if not isinstance(child, GraphModule):
            continue
        places = {node: place for place, node in enumerate(child.graph.nodes)}
        for write in places:
            for written in write.all_input_nodes:
                if not writes_to(write, written):
                    continue
                base = _base(written)
                if child is not module and base.op == "placeholder":
                    return True
                if base.op == "call_function" and not _keeps_no_result(base):
                    return True
                if any(places[reader] < places[write] for reader in _readers(base)):
                    return True
    return False


def _base(node: Node) -> Node:
    """Return the node in whose memory another one lies."""
    while True:
        source = next((x for x in node.all_input_nodes if gives_view(node, x)), None)
        if source is None:
            return node
        node = source


def _keeps_no_result(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.name.partition("::")[2] in KEEP_NO_RESULT


def _readers(node: Node) -> Iterator[Node]:
    """Yield what reads a node or its views, other than to write there or to copy it."""
    for user in node.users:
        if gives_view(user, node):
            yield from _readers(user)
        is_only_written = writes_to(user, node) and [*user.all_input_nodes].count(node) == 1
        if not is_only_written and not gives_view(user, node) and user.op != "output":
            yield user


def _line_of_stale(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return the line that read a value which is written to afterwards; None where there is none.

    None too where the module does not run on fake tensors, and so cannot be looked at.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(x: Tensor) -> Tensor:
        return mode.from_tensor(x, static_shapes=True)

    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    try:
        state = {name: fake(value) for name, value in held.items()}
        own_args, own_kwargs = pytree.tree_map_only(Tensor, fake, (tuple(args), dict(kwargs)))
        with (
            mode,
            _reparametrize_module(module, state, tie_weights=True),
            TracedCalls((), read=(data_as_detached,)),
            torch.enable_grad(),
            torch.autograd.set_detect_anomaly(True, check_nan=False),
        ):
            results = module.forward(*own_args, **own_kwargs)
    except Exception:  # of the module on fake tensors; the trace that there is says more
        return None
    grad_fns = [
        x.grad_fn for x in _losses(results) if x.grad_fn is not None
    ]  # a parameter has none
    return next(filter(None, map(_stale, _backward(grad_fns))), None)


def _losses(results: Any) -> list[Tensor]:
    """Return the results that gradients may come from: the loss, or each where none is told."""
    named = zip(output_names(results), pytree.tree_leaves(results), strict=True)
    trained = {name: x for name, x in named if isinstance(x, Tensor) and x.requires_grad}
    if is_from_all():
        return [*trained.values()]
    if loss_name() in trained:
        return [trained[loss_name()]]
    scalars = [x for x in trained.values() if not x.ndim]
    return scalars if len(scalars) == 1 else [*trained.values()]


def _backward(last: Sequence[Any]) -> list[Any]:
    """Return the nodes of autograd that a backward pass runs."""
    seen, todo = dict.fromkeys(last), [*last]
    while todo:
        for node, _ in todo.pop().next_functions:
            if node is not None and node not in seen:
                seen[node] = None
                todo.append(node)
    return [*seen]


def _stale(node: Any) -> str | None:
    """Return the line of a node of autograd that keeps a value which was written to afterwards."""
    for name in dir(node):
        if not name.startswith("_saved_") and name != "saved_tensors":
            continue
        try:
            getattr(node, name)
        except RuntimeError as error:
            if RAISED in str(error):
                lines = FRAME.findall("".join(node.metadata.get("traceback_", ())))
                return of_frames(inner(lines) or lines)
    return None


@contextmanager
def _without_modes() -> Generator[None]:
    """Leave what asks of calls out of a block: it has asked in the trace."""
    count = torch._C._len_torch_function_stack()  # pyright: ignore[reportPrivateUsage]
    modes = [_library._pop_mode() for _ in range(count)]
    try:
        yield
    finally:
        for mode in reversed(modes):
            _library._push_mode(mode)
