"""The meaning of every flow op in torch: one function per op, by name.

Interpreters of all levels run these, and so does a plan for the ops that it leaves to a library.
The functions are in the modules of :mod:`irc.runtime.flow_ops`, by kind, each with its table.
Nothing here needs xdsl; torch is imported on the first call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from irc.ops import names
from irc.runtime import vjp
from irc.runtime.flow_ops import (
    elementwise,
    extern,
    indexing,
    products,
    random_numbers,
    reductions,
    windows,
)
from irc.runtime.flow_ops.signature import Attrs, Kernel, Results
from irc.runtime.index_bounds import INDEXED, bounded

if TYPE_CHECKING:
    import torch


def run(
    name: str, attrs: Attrs, inputs: Sequence[torch.Tensor], results: Results
) -> list[torch.Tensor]:
    """Run a flow op.

    Args:
        name: the op, ``flow.contract``.
        attrs: its attributes as Python values.
        inputs: operands; those of a float op may have any float dtype (float64 for checking).
        results: shape and dtype of each result, as the op states them.

    Raises:
        IrcError: ``index-out-of-range``.
    """
    returned: torch.Tensor | list[torch.Tensor] | tuple[torch.Tensor, ...]
    if name in INDEXED:
        returned = bounded(name, attrs, inputs, lambda: LIBRARY[name](attrs, list(inputs), results))
    else:
        returned = LIBRARY[name](attrs, list(inputs), results)
    return list(returned) if isinstance(returned, tuple | list) else [returned]


def prepared(
    name: str, attrs: Attrs, results: Results, fixed: Collection[int] = ()
) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
    """Return what runs a flow op with fixed attributes: :func:`run`, which looks once.

    Args:
        name: the op.
        attrs: its attributes.
        results: shape and dtype of each result.
        fixed: operands that are weights: each the same tensor in every call.
    """
    if name == names.EXTERN and (call := extern.prepared(attrs, results, fixed)) is not None:
        return call
    return lambda inputs: run(name, attrs, inputs, results)


def _extern(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    if attrs["target"] == vjp.TARGET:
        return vjp.run(json.loads(attrs["arguments"]), inputs, run)
    return extern.run(attrs, inputs, results)


LIBRARY: Mapping[str, Kernel] = {
    **elementwise.KERNELS,
    **indexing.KERNELS,
    **products.KERNELS,
    **reductions.KERNELS,
    **windows.KERNELS,
    **random_numbers.KERNELS,
    names.EXTERN: _extern,
}
"""What each flow op does."""
