"""Conjugates and negatives that torch makes when somebody reads them, as results of a program."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import irc

FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "of an argument": lambda x: (x.conj(),),
    "of a value": lambda x: ((x * 2).conj(),),
    "of a product": lambda x: ((x @ x.mT).conj(),),
    "beside it": lambda x: (lambda v: (v, v.conj(), v.conj().mT, v.conj().conj()))(x * 2),
    "its imaginary part": lambda x: (x.conj().imag, (x * 2).conj().imag, x.imag),
    "as memory": lambda x: ((x * 2).conj().as_strided((2, 2), (1, 3)),),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("lay", [lambda x: x, lambda x: x.conj(), lambda x: x.mT])
def test_lazy_views(name: str, gradients: bool, lay: Any) -> None:
    torch._dynamo.reset()
    f = FUNCTIONS[name]
    x = lay(torch.randn(4, 4, dtype=torch.complex128)).detach().requires_grad_(gradients)
    with torch.set_grad_enabled(gradients):
        results, wanted = irc.compile(f)(x), f(x)
    for one, two in zip(results, wanted, strict=True):
        torch.testing.assert_close(
            one.resolve_conj().resolve_neg(), two.resolve_conj().resolve_neg()
        )
        assert (one.is_conj(), one.is_neg()) == (two.is_conj(), two.is_neg())
