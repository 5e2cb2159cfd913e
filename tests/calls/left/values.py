"""Python code and sizes that depend on the values of tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.calls.left.case import Call, numbers


def branch() -> Call:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = self.layer(x)
            if h.sum() > 0:
                return h * 2
            return h.relu() - 1

    return Call(Branch(), (numbers(3, 4),))


def loop() -> Call:
    def halve(x: Tensor) -> Tensor:
        while x.norm() > 0.5:
            x = x * 0.7
        return x

    return Call(halve, (numbers(3, 4),))


def claim() -> Call:
    def checked(x: Tensor) -> Tensor:
        assert x.isfinite().all()
        return x * 2

    return Call(checked, (numbers(3, 4),))


def hook_that_branches() -> Call:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[0].register_forward_hook(lambda _, __, out: out * (2 if out.sum() > 0 else 3))
    return Call(model, (numbers(3, 4),))


def item() -> Call:
    return Call(lambda x: x * x.abs().max().item(), (numbers(3, 4),))


def item_as_result() -> Call:
    return Call(lambda x: (x.sum().item(), x * 2), (numbers(3, 4),))


def list_as_result() -> Call:
    return Call(lambda x: x.relu().tolist(), (numbers(3, 4),))


def item_in_a_loop() -> Call:
    def scaled(x: Tensor) -> Tensor:
        for _ in range(3):
            x = x * x.mean().item()
        return x

    return Call(scaled, (numbers(3, 4),))


def nonzero() -> Call:
    return Call(lambda x: (x * 2 > 0).nonzero(), (numbers(3, 4),))


def where_of_one() -> Call:
    return Call(lambda x: torch.where(x > 0), (numbers(3, 4),))


def masked_select() -> Call:
    return Call(lambda x: torch.masked_select(x, x > 0) * 2, (numbers(3, 4),))


def boolean_index() -> Call:
    return Call(lambda x: x[x > 0] + 1, (numbers(3, 4),))


def unique() -> Call:
    return Call(lambda x: torch.unique(x.round()), (numbers(3, 4),))


def bincount() -> Call:
    return Call(lambda x: torch.bincount(x) * 2, (torch.tensor([1, 3, 3, 0]),))


def repeat_interleave() -> Call:
    times = torch.tensor([2, 0, 3])
    return Call(lambda x, n: x.repeat_interleave(n, 0) * 2, (numbers(3, 4), times))


def size_of_a_value() -> Call:
    counts = torch.tensor([2, 3])
    return Call(lambda x, n: torch.arange(int(n.sum())) + x.sum(), (numbers(3, 4), counts))


def packed_lstm() -> Call:
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.lstm = nn.LSTM(4, 5, batch_first=True)

        def forward(self, x: Tensor, lengths: Tensor) -> Any:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            out, state = self.lstm(packed)
            return pad_packed_sequence(out, batch_first=True)[0], state

    return Call(Packed(), (numbers(3, 6, 4), torch.tensor([6, 3, 2])))


def ctc() -> Call:
    def loss(x: Tensor, targets: Tensor, lengths: Tensor, wanted: Tensor) -> Tensor:
        return F.ctc_loss(x.log_softmax(-1), targets, lengths, wanted)

    targets = torch.tensor([[1, 2, 3], [5, 4, 1]])
    args = (numbers(8, 2, 6), targets, torch.tensor([8, 7]), torch.tensor([3, 2]))
    return Call(loss, args)


def transformer_with_a_mask() -> Call:
    torch.manual_seed(0)
    model = nn.Transformer(16, 2, 1, 1, 32, batch_first=True).eval()
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    return Call(model, (numbers(2, 5, 16), numbers(2, 4, 16)), {"tgt_mask": mask})


def experts_by_index() -> Call:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.gate = nn.Linear(4, 3)
            self.experts = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

        def forward(self, x: Tensor) -> Tensor:
            chosen, out = self.gate(x).argmax(-1), torch.zeros_like(x)
            for i, expert in enumerate(self.experts):
                own = (chosen == i).nonzero().squeeze(-1)
                out[own] = expert(x[own])
            return out

    return Call(Experts(), (numbers(5, 4),))


def numpy_between() -> Call:
    import numpy as np

    def through(x: Tensor) -> Tensor:
        return torch.from_numpy(np.tanh((x * 2).detach().numpy())) + 1

    return Call(through, (numbers(3, 4),))
