"""lower-externs writes transposed convolutions of every geometry as ordinary ones, exactly."""

# pyright: basic
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from xdsl.context import Context

import irc
import irc.onnx
from irc.calls.compiled import dispatcher_of
from irc.dialects.builder import arguments, entry
from irc.dialects.flow import ExternOp
from irc.dialects.windows import ConvolutionOp
from irc.frontends.torch.capture import capture
from irc.interpret.levels import execute
from irc.kernels.transposed import phase_of
from irc.passes.lower_externs import LowerExternsPass


def lowered(module: nn.Module, x: torch.Tensor) -> tuple[Any, torch.Tensor]:
    """The program after the pass, and what it gives."""
    program = capture(module, (x,)).program.module
    LowerExternsPass().apply(Context(), program)
    program.verify()
    names = dict(module.named_parameters())
    inputs = [
        x if role == "input" else names[name].detach()
        for role, name, _ in arguments(entry(program))
    ]
    return program, execute(program, inputs)[0]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("taps", "stride", "dilation", "padding", "extra"),
    [
        (1, 1, 1, 0, 0), (3, 1, 2, 1, 0), (4, 2, 1, 1, 0), (2, 2, 1, 0, 1), (3, 2, 2, 3, 1),
        (2, 3, 2, 1, 2), (1, 3, 1, 0, 1), (4, 3, 3, 5, 2), (5, 4, 2, 2, 3), (3, 2, 1, 6, 0),
    ],
)  # fmt: skip
def test_one_dim(
    taps: int, stride: int, dilation: int, padding: int, extra: int, groups: int
) -> None:
    torch.manual_seed(0)
    options: Any = {"stride": stride, "dilation": dilation, "padding": padding, "groups": groups}
    module = nn.ConvTranspose1d(4, 6, taps, output_padding=extra, **options).double()
    x = torch.randn(2, 4, 11).double()
    program, output = lowered(module, x)
    assert not any(isinstance(op, ExternOp) for op in program.walk())
    torch.testing.assert_close(output, module(x))


def test_no_product_with_zero_is_made() -> None:
    """Each tap of a weight is in one phase."""
    for taps, stride, dilation in ((3, 2, 1), (5, 3, 2), (4, 4, 2), (2, 5, 1)):
        phases = [phase_of(p, 1, stride, dilation, taps) for p in range(stride)]
        assert sorted(tap for phase in phases for tap in phase.taps) == list(range(taps))


def test_phases_of_one_geometry_are_one_convolution() -> None:
    program, _ = lowered(
        nn.ConvTranspose2d(3, 4, 2, stride=2).double(), torch.randn(1, 3, 5, 5).double()
    )
    assert sum(isinstance(op, ConvolutionOp) for op in program.walk()) == 1


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.ConvTranspose1d(16, 35, 4, stride=2, padding=1), (2, 16, 37)),
        (nn.ConvTranspose2d(16, 32, 3, stride=2, padding=1, output_padding=1), (2, 16, 9, 7)),
        (nn.ConvTranspose2d(12, 24, (2, 3), stride=(2, 1), groups=12), (1, 12, 6, 5)),
        (nn.ConvTranspose3d(8, 9, 3, stride=2), (1, 8, 4, 3, 5)),
    ],
)
def test_kernels(module: nn.Module, shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    x = torch.randn(shape)
    with torch.no_grad():
        fast = irc.compile(module)
        output = fast(x)
        dispatcher: Any = dispatcher_of(fast)
        (version,) = dispatcher.versions
        assert not [a.op for a in version._executor.plan.actions if hasattr(a, "op")]
        wanted = module.double()(x.double())
        module.float()
    assert float((output - wanted).abs().max() / wanted.abs().max()) < 2e-6


def test_gradients_of_convolutions() -> None:
    """The gradient for an image is a transposed convolution, whose weight no plan has packed."""
    torch.manual_seed(2)
    module, x = nn.Conv2d(5, 8, 3, stride=2, padding=1), torch.randn(2, 5, 9, 8)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    irc.compile(module)(mine).square().sum().backward()
    nn.functional.conv2d(theirs, module.weight, module.bias, 2, 1).square().sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-4)


def test_onnx_crops_its_ends_apart() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((1, 3, 5, 6), (3, 4, 3, 2)))
    bias = rng.standard_normal(4).astype(np.float32)
    node = helper.make_node(
        "ConvTranspose", ["x", "w", "b"], ["y"], strides=[2, 3], pads=[1, 0, 0, 2],
        output_padding=[1, 1],
    )  # fmt: skip
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 11, 16])],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(bias, "b")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    (output,) = irc.onnx.InferenceSession(model).run(None, {"x": x})
    full = torch.nn.functional.conv_transpose2d(
        torch.from_numpy(x), torch.from_numpy(w), torch.from_numpy(bias), (2, 3), (0, 0), (1, 1)
    )
    torch.testing.assert_close(torch.from_numpy(output), full[:, :, 1:12, :16])
