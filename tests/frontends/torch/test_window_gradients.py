"""Gradients of transposed convolutions whose output is padded, against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from irc.torch_backend import compile_fx


@pytest.mark.parametrize(
    ("stride", "padding", "extra", "dilation", "groups"),
    [
        ((3, 2), (1, 2), (2, 1), (4, 4), 2),
        ((3, 2), (1, 2), (2, 3), (4, 4), 2),  # as much as a stride: more windows fit
        ((1, 2), (0, 0), (0, 3), (1, 4), 1),  # more than was taken off: some of it is not reached
        ((2, 2), (1, 1), (1, 1), (1, 1), 1),
    ],
)
def test_padded_outputs_of_transposed_convolutions(
    stride: tuple[int, int], padding: tuple[int, int], extra: tuple[int, int],
    dilation: tuple[int, int], groups: int,
) -> None:  # fmt: skip
    torch._dynamo.reset()
    operands = [torch.randn(shape, requires_grad=True)
                for shape in ((2, 2, 4, 4), (2, 2, 4, 5), (2 * groups,))]  # fmt: skip

    def program(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return functional.conv_transpose2d(x, w, b, stride, padding, extra, groups, dilation)

    wanted = program(*operands)
    g = torch.randn_like(wanted)
    output = torch.compile(program, backend=compile_fx)(*operands)
    torch.testing.assert_close(output, wanted)
    for mine, own in zip(
        torch.autograd.grad(output, operands, g), torch.autograd.grad(wanted, operands, g),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(mine, own, rtol=1e-4, atol=1e-4)
