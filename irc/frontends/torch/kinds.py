"""Which tensors a program has: dense ones of the element types that irc knows."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from irc.runtime.dtypes import dtype_names

PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)
"""Classes of tensors that are nothing but tensors."""


def peculiar(value: torch.Tensor) -> str | None:
    """Return what is no tensor of a program, in words; None for one that is.

    >>> peculiar(torch.ones(2)), peculiar(torch.eye(2).to_sparse())
    (None, 'a sparse_coo tensor')
    """
    if value.is_nested:
        return "a nested tensor"
    if value.layout is not torch.strided:
        return f"a {str(value.layout).removeprefix('torch.')} tensor"
    if value.dtype not in dtype_names():
        return f"a tensor of {value.dtype}"
    return None


def acts_by_itself(cls: type[torch.Tensor]) -> bool:
    """True for a class of tensors that says what torch's functions do with them."""
    if cls in PLAIN or hasattr(cls, "__tensor_flatten__"):
        return False
    own: Any = cls.__torch_function__
    plain: Any = torch.Tensor.__torch_function__
    return getattr(own, "__func__", own) not in (
        plain.__func__,
        torch._C._disabled_torch_function_impl,
    )


def peculiar_argument(value: Any, device: str = "") -> str | None:
    """Return what is no tensor that a compiled call takes, in words; None for all else.

    A subclass may do more than its memory says: only a trace through its own code knows.

    Args:
        value: an argument.
        device: the kind of device that tensors have to lie on; by default any.
    """
    if not isinstance(value, torch.Tensor):
        return None
    if (what := peculiar(value)) is not None:
        return what
    if device and value.device.type != device:
        return f"a tensor on {value.device}"
    return None if type(value) in PLAIN else f"a tensor of class {type(value).__name__}"
