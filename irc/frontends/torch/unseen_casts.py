"""Calls whose kernels make calls that autocast casts, where those of fake tensors make none.

Under autocast such a call gives a half type, and its trace says float32: ``linalg.pinv`` ends in a
product, and of what an LSTM's kernel calls oneDNN's layer is cast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from irc.errors import IrcError
from irc.process_wide import ProcessWide

CALLS = frozenset({"linalg_pinv", "lstm", "_transformer_encoder_layer_fwd"})
"""Such functions of torch."""


def unseen_cast(
    function: Callable[..., Any], _args: Sequence[Any], _kwargs: Mapping[str, Any]
) -> IrcError | None:
    """Return an error for a call under autocast that is one of these; None for others."""
    if (name := _name(function)) not in CALLS or not torch.is_autocast_enabled("cpu"):
        return None
    return IrcError(
        "op-unsupported",
        f"autocast casts what the kernel of '{name}' calls, which torch's traces do not show",
        help="call it outside of autocast, on operands of the dtype that it is to compute in",
    )


def _show() -> Callable[[], None]:
    """Let encoder layers under autocast make the calls of eager, also under a mode that sees them.

    A mode of torch functions, which a trace has, keeps them from the one kernel that eager runs.
    """
    own: Callable[[Iterable[Any]], bool] = torch.overrides.has_torch_function

    def has_torch_function(tensors: Iterable[Any]) -> bool:
        tensors = tuple(tensors)
        if not torch.is_autocast_enabled("cpu"):
            return own(tensors)
        return any(map(_overrides, tensors))

    torch.overrides.has_torch_function = has_torch_function

    def put_back() -> None:
        torch.overrides.has_torch_function = own

    return put_back


shown_to_modes = ProcessWide(_show)
"""While it is entered, traces see the kernels of encoder layers under autocast."""


def _overrides(tensor: object) -> bool:
    """True for a tensor of a class that runs torch's functions itself."""
    cls = type(tensor)
    disabled: object = vars(torch.nn.Parameter)["__torch_function__"]
    run: object = getattr(cls, "__torch_function__", disabled)
    return cls is not torch.Tensor and run is not disabled


def has_unseen_cast(nodes: Iterable[Node]) -> bool:
    """True for a graph of Dynamo with such a call that is under autocast, in part or as a whole."""
    names = {_name(node.target) for node in nodes if node.op.startswith("call")}
    if names.isdisjoint(CALLS):
        return False
    return "_enter_autocast" in names or torch.is_autocast_enabled("cpu")


def _name(function: object) -> str:
    return getattr(function, "__name__", "")
