"""Plans of the Triton backend run as a whole, in Triton's interpreter, and equal eager torch."""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import irc
from irc.errors import IrcError
from tests.backends.triton.interpreting import run_interpreted

pytest.importorskip("triton")
ROOT = Path(__file__).parents[3]
TIMES = 3


class Counting(nn.Module):
    """A module with a state that a call moves, and an op that torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return torch.sort(x * self.calls, dim=-1).values + 1


def _models() -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    from tests.models.gpt import GPT, GPTConfig

    torch.manual_seed(0)
    layers = (nn.Linear(20, 33), nn.GELU(), nn.Linear(33, 7))
    convolution = (nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
    gpt = GPT(GPTConfig(layers=1, hidden=24, heads=3, block=8, vocab=29))
    return {
        "mlp": (nn.Sequential(*layers), (torch.randn(5, 20),)),
        "strided": (nn.Sequential(*layers), (torch.randn(20, 5).T,)),
        "long sum": (nn.Linear(9000, 3), (torch.randn(2, 9000),)),
        "gpt": (gpt, (torch.randint(0, 29, (2, 7)),)),
        "convolution": (nn.Sequential(*convolution), (torch.randn(1, 3, 6, 6),)),
        "state": (Counting(), (torch.randn(3, 5),)),
    }


def _run_all() -> None:
    """Print the largest error of each model, and which of its versions are alive."""
    import copy

    largest = {}
    for name, (module, inputs) in _models().items():
        mine, theirs = copy.deepcopy(module).eval(), module.eval()
        compiled = irc.compile(mine, backend="triton")
        worst = 0.0
        with torch.no_grad():
            for _ in range(TIMES):
                difference = compiled(*inputs) - theirs(*inputs)
                worst = max(worst, float(difference.abs().max()))
                for weight, other in zip(mine.parameters(), theirs.parameters(), strict=True):
                    weight.mul_(1.01)
                    other.mul_(1.01)
        largest[name] = worst
    print(json.dumps(largest))


@pytest.fixture(scope="module")
def errors() -> dict[str, float]:
    printed = run_interpreted(["-W", "ignore", "-m", "tests.backends.triton.test_execution"])
    return json.loads(printed.splitlines()[-1])


@pytest.mark.parametrize("name", ["mlp", "strided", "long sum", "gpt", "convolution", "state"])
def test_a_plan_runs_and_sees_weights_that_change(errors: dict[str, float], name: str) -> None:
    assert errors[name] < 2e-5


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_user_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    compiled = irc.compile(nn.Linear(3, 4), backend="triton")
    with torch.no_grad(), pytest.raises(IrcError) as caught:
        compiled(torch.ones(2, 3))
    assert caught.value.code == "device-missing"
    assert "torch.cuda.is_available() is False" in str(caught.value)


def test_gradients_are_refused() -> None:
    compiled = irc.compile(nn.Linear(3, 4), backend="triton")
    with pytest.raises(IrcError, match="runs without gradients"):
        compiled(torch.ones(2, 3))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    _run_all()
