"""Memory in huge pages: zeros, apart, aligned, and alive as long as a tensor shows it."""

# pyright: basic
import gc
import mmap

import pytest
import torch

from irc.runtime.pages import HUGE, LEAST, zero_bytes, zero_tensors


@pytest.mark.parametrize("size", [0, 1, LEAST - 1, LEAST, LEAST + 13])
def test_zeros_that_are_aligned(size: int) -> None:
    zeros = zero_bytes(size)
    assert zeros.shape == (size,)
    assert not zeros.any()
    if size >= LEAST and hasattr(mmap, "MADV_HUGEPAGE"):
        assert zeros.data_ptr() % HUGE == 0


def test_tensors_lie_apart_and_outlive_each_other() -> None:
    kinds = [((3, 5), torch.float32), ((), torch.int64), ((0, 4), torch.float64)]
    kinds += [((LEAST // 4,), torch.float32), ((7,), torch.bool), ((9,), torch.bfloat16)]
    tensors = zero_tensors(kinds)
    assert [(tuple(t.shape), t.dtype) for t in tensors] == kinds
    for number, tensor in enumerate(tensors):
        tensor.fill_(number % 2)
    last = tensors[-1]
    for number, tensor in enumerate(tensors):
        assert (tensor == number % 2).all()
        assert tensor.data_ptr() % 64 == 0 or not tensor.numel()
    del tensors, tensor
    gc.collect()
    assert (last == 1).all()


def test_zeros_lie_on_the_default_device() -> None:
    """Of a GPU's plan all memory is the GPU's, however much it is."""
    with torch.device("meta"):
        assert zero_bytes(LEAST).device.type == "meta"
