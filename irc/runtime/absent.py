"""Parameters that a module has no values of, since the ranks of a training step hold the parts.

They are on the meta device. What asks such a parameter for its values (a call of the module, or of
a layer in it, a copy to another device, a pickle of its ``state_dict()``) is told where they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from irc.errors import IrcError

COPIES = (torch.Tensor.detach, torch.Tensor.data.__get__)  # type: ignore[attr-defined]
"""What gives the same tensor again, which is absent as well: ``state_dict()`` calls it."""


class AbsentParameter(nn.Parameter):
    """A parameter on the meta device whose parts the ranks of a step hold.

    Attributes:
        own_name: the parameter's name in the module.
    """

    own_name: str = ""

    @classmethod
    def of(cls, value: torch.Tensor, name: str) -> AbsentParameter:
        """Return one of the shape, dtype and requires_grad of a parameter."""
        parameter = cls(torch.empty_like(value, device="meta"), requires_grad=value.requires_grad)
        parameter.own_name = name
        return parameter

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Answer what a shape and a dtype answer; refuse what reads values.

        Raises:
            IrcError: ``weights-apart``.
        """
        leaves = pytree.tree_leaves((args, dict(kwargs or {})))
        with torch._C.DisableTorchFunctionSubclass():  # pyright: ignore[reportPrivateUsage]
            tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
            own = next(x for x in tensors if isinstance(x, AbsentParameter))
            if not all(x.is_meta for x in tensors):
                raise absent_error(own)
            try:
                result = func(*args, **(kwargs or {}))
            except (NotImplementedError, RuntimeError) as error:
                if "meta" in str(error):
                    raise absent_error(own) from None
                raise
        if func in COPIES:
            result = torch.Tensor._make_subclass(cls, result, False)
            result.own_name = own.own_name
        return result

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise absent_error(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> AbsentParameter:
        return memo.setdefault(id(self), AbsentParameter.of(self, self.own_name))


def absent_error(parameter: AbsentParameter) -> IrcError:
    """Return the error for one whose values are asked for."""
    return IrcError(
        "weights-apart",
        f"the module has no values of '{parameter.own_name}'",
        because="each rank holds its part of them, in the step that irc.compile_step returned",
        help="step.evaluate(*args) calls the module on the ranks' parts; step.materialize() gives "
        "it its values, whole, until the next step; step.save and step.load take the parts",
    )
