"""irc.quantize: layers of integers in torch, and compiled."""

import pytest
import torch
from torch import nn

import irc
from irc.errors import IrcError
from irc.weight_only import QuantizedLinear, quantized


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_weights_are_off_by_half_a_step(bits: int, symmetric: bool) -> None:
    torch.manual_seed(0)
    groups = torch.randn(5, 3, 32)
    groups[1, 1] = 0.0
    groups[2, 0] = 4.0
    q, scales, zeros = quantized(groups, bits, symmetric=symmetric)
    middle = torch.full_like(scales, 1 << (bits - 1)) if zeros is None else zeros
    dequantized = (q.float() - middle[..., None]) * scales[..., None]
    # The largest weight of a symmetric group is a step's half above what q reaches; a zero
    # point is rounded too.
    assert ((dequantized - groups).abs() <= 1.01 * scales[..., None]).all()
    assert (dequantized[1, 1] == 0).all()


def test_layers_keep_their_names_and_shapes() -> None:
    net = nn.Sequential(nn.Linear(70, 20), nn.Sequential(nn.Linear(20, 8)), nn.Linear(8, 8))
    returned = irc.quantize(net, group_size=32, skip=["1.*"])
    assert returned is net
    assert isinstance(net[0], QuantizedLinear)
    assert isinstance(net[1][0], nn.Linear)
    assert net[0].packed.shape == (20, 48)  # 70 inputs, padded to 96
    assert net[0].scales.shape == (20, 3)
    assert sorted(net[0].state_dict()) == ["bias", "packed", "scales"]
    assert isinstance(irc.quantize(nn.Linear(4, 4)), QuantizedLinear)


def test_a_tied_head_leaves_the_embedding() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(50, 64), nn.Linear(64, 50, bias=False)
            self.head.weight = self.table.weight

    net = Tied()
    irc.quantize(net)
    assert net.table.weight.dtype is torch.float32
    assert isinstance(net.head, QuantizedLinear)


@pytest.mark.parametrize("rows", [1, 3, 9, 31])
@pytest.mark.parametrize(("bits", "symmetric"), [(4, True), (4, False), (8, True), (8, False)])
def test_compiled_equals_eager_in_float64(bits: int, symmetric: bool, rows: int) -> None:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(96, 48), nn.GELU(), nn.Linear(48, 37, bias=False))
    irc.quantize(net, bits=bits, group_size=32, symmetric=symmetric)
    x = torch.randn(2, rows, 96)
    with torch.no_grad():
        hidden = x.double() @ net[0].dequantized().double().T + net[0].bias.double()
        hidden = nn.functional.pad(nn.functional.gelu(hidden), (0, 16))
        expected = hidden @ net[2].dequantized().double().T
        torch.testing.assert_close(net(x).double(), expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(irc.compile(net)(x).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 12])
def test_bfloat16_rounds_where_eager_does(rows: int) -> None:
    torch.manual_seed(2)
    net = irc.quantize(nn.Linear(128, 32), bits=4).to(torch.bfloat16)
    net.scales = net.scales.float()
    x = torch.randn(rows, 128, dtype=torch.bfloat16)
    with torch.no_grad():
        expected, output = net(x), irc.compile(net)(x)
    assert output.dtype is torch.bfloat16
    # Sums in another order may round to the neighbour.
    torch.testing.assert_close(output, expected, rtol=2**-8, atol=2**-8)


def test_other_bits_and_groups_are_refused() -> None:
    for options in ({"bits": 3}, {"group_size": 48}):
        with pytest.raises(IrcError) as caught:
            irc.quantize(nn.Linear(4, 4), **options)
        assert caught.value.code == "quantize-unsupported"
