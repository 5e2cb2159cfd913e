"""Where a tensor's elements lie: kernels are given addresses, and nothing else stops them there.

A tensor of the meta device, of a FakeTensorMode, or whose storage was resized has a shape and a
dtype as any other, and no elements: a kernel that is given its address ends the process.
"""

from __future__ import annotations

import torch

from irc.errors import IrcError


def address_of(tensor: torch.Tensor, what: str) -> int:
    """Return the address of a tensor's first element; of an empty one it may be 0.

    Args:
        tensor: on the device where it is to be read.
        what: calls it that, for a message.

    Raises:
        IrcError: ``no-memory`` where it has elements and nowhere to keep them.
    """
    address = tensor.data_ptr()
    if not address and tensor.numel():
        raise no_memory(tensor, what)
    return address


def check_elements(tensor: torch.Tensor, what: str) -> None:
    """Refuse a tensor whose memory does not hold all of its elements.

    Raises:
        IrcError: ``no-memory``.
    """
    if tensor.numel() and (tensor.is_meta or not _holds_all(tensor)):
        raise no_memory(tensor, what)


def _holds_all(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided:
        return True  # its elements are in tensors of their own
    if tensor.is_contiguous():
        last = tensor.storage_offset() + tensor.numel() - 1
    else:
        last = tensor.storage_offset() + sum(
            (size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)
        )
    storage = tensor.untyped_storage()
    is_here = storage.device.type == tensor.device.type  # a fake tensor's storage is on meta
    return is_here and storage.nbytes() >= (last + 1) * tensor.element_size()


def no_memory(tensor: torch.Tensor, what: str) -> IrcError:
    """Return the error for a tensor without elements."""
    advice = "give it values: module.to_empty(device='cpu'), then load_state_dict"
    if tensor.is_meta:
        because = "it is on the meta device, where tensors have a shape and no values"
        advice = (
            "a training step on a mesh holds parameters in parts and leaves the module's there: "
            "load_state_dict(step.state_dict()['model'], assign=True) gives it their values"
        )
    elif tensor.untyped_storage().device.type != tensor.device.type:
        because = "it is a fake tensor, which has a shape and no values"
    else:
        held = tensor.untyped_storage().nbytes()
        because = f"its storage was resized to {held} bytes"
    return IrcError(
        "no-memory",
        f"{what} ({list(tensor.shape)} {tensor.dtype}) has no memory that holds its elements",
        because=because,
        help=advice,
    )
