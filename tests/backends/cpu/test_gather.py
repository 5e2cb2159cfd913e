"""Indices outside their tensor are an error of the user, in any kernel and on any thread."""

import pytest
import torch
from torch import Tensor, nn

import irc
from irc.backends.cpu import emit, info_of
from irc.dialects.task import KernelOp
from irc.errors import IrcError
from irc.pipeline import Options, default_pipeline, run_passes


class Look(nn.Module):
    """An embedding, and what is computed from it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(300, 24)
        self.norm = nn.LayerNorm(24)

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.table(ids) * 2 + 1)


class Select(nn.Module):
    """A gather that the caller indexes."""

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        return torch.gather(x, 1, at).exp()


@pytest.mark.parametrize("wrong", [-1, 300, 1 << 40, -(1 << 40)])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (64, 1000)])
def test_an_index_outside_is_refused_and_later_calls_are_right(
    shape: tuple[int, int], wrong: int
) -> None:
    module = Look().eval()
    fast = irc.compile(module)
    ids = torch.randint(0, 300, shape)
    with torch.no_grad():
        want = module(ids)
        assert torch.allclose(fast(ids), want, atol=1e-5)
        bad = ids.clone()
        bad[-1, -1] = wrong
        for _ in range(2):
            with pytest.raises(IrcError, match="lies outside") as caught:
                fast(bad)
            assert caught.value.code == "index-out-of-range"
        assert torch.allclose(fast(ids), want, atol=1e-5)


@pytest.mark.parametrize("place", [0, 2_000, 31_999, 32_000, 63_999])
def test_an_index_outside_is_refused_in_any_part_of_a_divided_kernel(place: int) -> None:
    module, ids = Look().eval(), torch.randint(0, 300, (64, 1000))
    program = irc.capture(module, (ids,)).program
    run_passes(program.module, default_pipeline(Options()))
    infos = [info_of(emit(k)) for k in program.module.body.block.ops if isinstance(k, KernelOp)]
    assert any(info.checks and info.pieces > 1 for info in infos), "too small to show anything"
    fast = irc.compile(module)
    with torch.no_grad():
        fast(ids)
        ids.view(-1)[place] = 300
        with pytest.raises(IrcError, match="lies outside"):
            fast(ids)


def test_the_first_and_last_element_are_inside() -> None:
    x, fast = torch.randn(5, 9), irc.compile(Select())
    at = torch.tensor([[0, 8]] * 5)
    assert torch.allclose(fast(x, at), torch.gather(x, 1, at).exp())
    for wrong in (-1, 9):
        at[0, 0] = wrong
        with pytest.raises(IrcError, match="lies outside"):
            fast(x, at)
