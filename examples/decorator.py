"""The decorator: a module class, an instance and a function, compiled for this machine's CPU.

Run it with ``python examples/decorator.py``; it prints the error against eager and the
time of a call.
"""

import time

import torch
from torch import Tensor, nn

import irc


@irc.compile
class Block(nn.Module):
    """A feed-forward block; the decorator keeps its parameters and their names."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return x plus the block applied to it; [.., width] in and out."""
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


@irc.compile
def softmax_of_scores(q: Tensor, k: Tensor) -> Tensor:
    """Return attention weights; q [s, d], k [t, d] to [s, t]."""
    return torch.softmax(q @ k.T / q.shape[-1] ** 0.5, dim=-1)


def main() -> None:
    """Compile three things and show what they give."""
    torch.manual_seed(0)
    x = torch.randn(256, 384)
    block = Block(384).eval()
    with torch.no_grad():
        error = (block(x) - irc.original(block)(x)).abs().max()
        print(f"class:    {', '.join(n for n, _ in block.named_parameters())}")
        print(f"          max error against eager {error:.1e}")

        tower = nn.Sequential(nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 10)).eval()
        compiled = irc.compile(tower)
        error = (compiled(x) - tower(x)).abs().max()
        print(f"instance: max error against eager {error:.1e}")

        error = (softmax_of_scores(x, x) - torch.softmax(x @ x.T / 384**0.5, dim=-1)).abs().max()
        print(f"function: max error against eager {error:.1e}")

        start = time.perf_counter()
        for _ in range(20):
            block(x)
        print(f"one call of the block takes {(time.perf_counter() - start) / 20 * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
