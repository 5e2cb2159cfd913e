"""Models that give a loss, and what torch's own training makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from irc.dialects.builder import entry, results
from irc.frontends.torch.capture import capture
from irc.interpret.flow import run_function
from irc.program import Program
from tests.models import cnn, gpt

TOKENS = torch.randint(0, 96, (8, 9), generator=torch.Generator().manual_seed(0))
TARGETS = torch.randint(0, 96, (8, 9), generator=torch.Generator().manual_seed(1))
TARGETS[0, 3:5] = -100


def small_gpt(layers: int = 2, **options: Any) -> nn.Module:
    """A GPT that computes its loss; tied by default."""
    torch.manual_seed(2)
    sizes = {"hidden": 48, "heads": 4, "vocab": 96, "block": 16, **options}
    return gpt.GPT(gpt.GPTConfig(layers=layers, **sizes))


class Classifier(nn.Module):
    """A CNN and its cross-entropy."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.net = cnn.CNN()

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        """Return the loss."""
        return F.cross_entropy(self.net(image), label)


class Dropping(nn.Module):
    """Two layers with dropout between."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.up, self.down = nn.Linear(7, 11), nn.Linear(11, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean square."""
        return (self.down(F.dropout(self.up(x), 0.3, self.training)) ** 2).mean()


class _Wide(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = dict(kwargs or {})
        if func is torch.Tensor.float:
            return args[0].double()
        args = [torch.float64 if a is torch.float32 else a for a in args]
        if keywords.get("dtype") is torch.float32:
            keywords["dtype"] = torch.float64
        return func(*args, **keywords)


@contextmanager
def all_double() -> Iterator[None]:
    """Let a model that upcasts to float32 compute in float64, as the interpreter does."""
    with _Wide():
        yield


def program_of(module: nn.Module, *args: Any, **kwargs: Any) -> Program:
    """Capture a module."""
    return capture(module, args, kwargs).program


def run(program: Program, *inputs: Tensor, **more: Tensor) -> dict[tuple[str, str], Tensor]:
    """Run a program in float64; results by role and name."""
    feeds = dict(zip(program.input_names, inputs, strict=False)) | more
    with torch.no_grad():
        outputs = run_function(program.module, program.bind(feeds), dtype=torch.float64)
    return dict(zip(results(entry(program.module)), outputs, strict=True))


def gradients(outputs: Mapping[tuple[str, str], Tensor]) -> dict[str, Tensor]:
    """Return the results of role gradient by name."""
    return {name: value for (role, name), value in outputs.items() if role == "gradient"}


def torch_gradients(
    module: nn.Module, loss: Callable[[nn.Module], Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss and all gradients of a module in float64."""
    module = module.double()
    value = loss(module)
    value.backward()
    named_gradients = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    return value.detach(), named_gradients
