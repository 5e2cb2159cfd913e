"""Memory in huge pages: zeros, apart, aligned, and alive as long as a tensor shows it."""

# pyright: basic
import gc
import mmap

import pytest
import torch

from irc.runtime.pages import HUGE, LEAST, zero_bytes, zero_tensors


@pytest.mark.parametrize("size", [0, 1, LEAST - 1, LEAST, LEAST + 13])
def test_zeros_that_are_aligned(size: int) -> None:
    found = zero_bytes(size)
    assert found.shape == (size,)
    assert not found.any()
    if size >= LEAST and hasattr(mmap, "MADV_HUGEPAGE"):
        assert found.data_ptr() % HUGE == 0


def test_tensors_lie_apart_and_outlive_each_other() -> None:
    kinds = [((3, 5), torch.float32), ((), torch.int64), ((0, 4), torch.float64)]
    kinds += [((LEAST // 4,), torch.float32), ((7,), torch.bool), ((9,), torch.bfloat16)]
    made = zero_tensors(kinds)
    assert [(tuple(t.shape), t.dtype) for t in made] == kinds
    for number, tensor in enumerate(made):
        tensor.fill_(number % 2)
    last = made[-1]
    for number, tensor in enumerate(made):
        assert (tensor == number % 2).all()
        assert tensor.data_ptr() % 64 == 0 or not tensor.numel()
    del made, tensor
    gc.collect()
    assert (last == 1).all()


def test_zeros_lie_on_the_default_device() -> None:
    """Of a GPU's plan all memory is the GPU's, however much it is."""
    with torch.device("meta"):
        assert zero_bytes(LEAST).device.type == "meta"
