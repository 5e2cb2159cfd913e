"""Training with optimisers that are not compiled, run by each process: ``FOLDER MESH CASE ..``.

A case is ``OPTIMIZER/LAYOUT``, or ``states/..`` for what goes on from a saved state. It prints, as
JSON for each case, how far losses, parameters and states are from eager PyTorch's after some steps.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import irc
from irc.errors import IrcError
from irc.runtime.eager_kinds import EagerOptimizerWarning
from tests.calls.lion import Lion as LionOfOthers

CLUSTER = "demo-gpus"
PINS = {
    "data": "* = [data = B]",
    "zero1": "* = [data = B]; optimizer.* = [data = S(0)]",
    "zero3": '"0.weight" = [data = S(0)]; "3.weight" = [data = S(1)]',
    "tensor": '"0.weight" = [tensor = S(0)]; "3.weight" = [tensor = S(1)]',
    "searched": "",
}
FACTORED = "; ".join(
    f"optimizer.{name}.* = [data = S({dim})]"
    for name, dim in {"row_var": 0, "col_var": 1, "variance": 0}.items()
)
"""What splits the states of an Adafactor: a matrix has one row of means of its columns."""


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023 (arXiv:2302.06675), as users write one."""

    elementwise = True

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, beta: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move by signs."""
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                mean = state.get("exp_avg", torch.zeros_like(p))
                p.sub_(torch.sign(mean * group["beta"] + p.grad * 0.1), alpha=group["lr"])
                # Another tensor in each step, as some do.
                state["exp_avg"] = mean * 0.99 + p.grad * 0.01


class Normed(torch.optim.Optimizer):
    """By the norm of all gradients together, and of each: nothing that a part would tell."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr})
        self.every = [p for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move by what is left of a gradient."""
        total = sum(float(p.grad.square().sum()) for p in self.every if p.grad is not None) ** 0.5
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad / (total + p.grad.norm()), alpha=group["lr"])
                self.state[p]["norm"] = p.grad.norm()
                self.state[p]["seen"] = self.state[p].get("seen", 0) + 1


class Failing(Lion):
    """Raises an error in its second step on the last rank."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Fail there."""
        if self.state and torch.distributed.get_rank():
            raise ValueError("no step here")
        super().step()


def groups(m: nn.Module) -> list[dict[str, Any]]:
    """Return two groups with other rates."""
    first, *rest = m.parameters()
    return [{"params": [first], "lr": 3e-2}, {"params": rest}]


def frozen(m: nn.Module) -> torch.optim.Optimizer:
    """Return one that begins with states of parameters that stay."""
    for p in (p for p in m.parameters() if p.ndim == 1):
        p.requires_grad_(False)
    return torch.optim.Adagrad(m.parameters(), 0.1, initial_accumulator_value=0.5)


MAKERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "radam": lambda m: torch.optim.RAdam(groups(m), lr=1e-2, weight_decay=0.1),
    "rprop": lambda m: torch.optim.Rprop(m.parameters()),
    "dampening": lambda m: torch.optim.SGD(m.parameters(), 0.1, 0.9, dampening=0.5),
    "adagrad": lambda m: torch.optim.Adagrad(m.parameters(), 0.1, initial_accumulator_value=0.5),
    "frozen": frozen,
    "lion": lambda m: Lion(groups(m)),
    "adafactor": lambda m: torch.optim.Adafactor(m.parameters(), 1e-2),
    "signs": lambda m: LionOfOthers(groups(m), 1e-2, weight_decay=0.1),
    "muon": lambda m: torch.optim.Muon([p for p in m.parameters() if p.ndim == 2], 1e-2),
    "normed": lambda m: Normed(m.parameters()),
}


class Mixed(nn.Module):
    """A layer of a matrix that is made of the weight alone, which is prepared for several calls."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(14, 14))

    def forward(self, x: Tensor) -> Tensor:
        """Mix columns."""
        return x @ torch.softmax(self.weight, 0)


def net() -> nn.Module:
    """Three layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 14), nn.GELU(), Mixed(), nn.Linear(14, 6)).double()


def batches(steps: int) -> list[tuple[Tensor, Tensor]]:
    """Return batches of samples and labels, the same on every rank."""
    draw = torch.Generator().manual_seed(7)
    return [
        (torch.randn(8, 8, generator=draw).double(), torch.randint(0, 6, (8,), generator=draw))
        for _ in range(steps)
    ]


def make(
    optimizer: str, mesh: str, layout: str, **more: Any
) -> tuple[Any, torch.optim.Optimizer, list[str]]:
    """Return a step, its optimiser, and what warnings say."""
    module = net()
    pins = PINS[layout]
    if (optimizer, layout) == ("adafactor", "zero1"):
        pins = f"* = [data = B]; {FACTORED}"
    own = Failing(module.parameters()) if optimizer == "failing" else MAKERS[optimizer](module)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", EagerOptimizerWarning)
        step = irc.compile_step(
            module, loss=F.cross_entropy, optimizer=own, mesh=mesh, cluster=CLUSTER,
            pins=pins, **more,
        )  # fmt: skip
    return step, own, [str(each.message) for each in said]


def eagerly(optimizer: str, steps: int) -> dict[str, Any]:
    """Return losses, parameters and states of one process; the rate falls after each step."""
    module = net()
    own = MAKERS[optimizer](module)
    schedule = torch.optim.lr_scheduler.ExponentialLR(own, 0.9)
    losses: list[float] = []
    for x, y in batches(steps):
        own.zero_grad()
        loss = F.cross_entropy(module(x), y)
        loss.backward()
        own.step()
        schedule.step()
        losses.append(float(loss.detach()))
    names = {id(p): n for n, p in module.named_parameters()}
    states = {names[id(p)]: dict(s) for p, s in own.state.items()}
    return {"losses": losses, "model": module.state_dict(), "states": states}


def apart(losses: list[float], state: dict[str, Any], want: dict[str, Any]) -> dict[str, Any]:
    """Return the largest differences."""
    assert state["model"].keys() == want["model"].keys()
    own = state["optimizer"]["state"]
    assert {n: set(s) for n, s in own.items()} == {n: set(s) for n, s in want["states"].items()}
    return {
        "losses": max(abs(a - b) for a, b in zip(losses, want["losses"], strict=True)),
        "model": max(far(v, want["model"][n]) for n, v in state["model"].items()),
        "states": max(
            (far(v, want["states"][n][k]) for n, s in own.items() for k, v in s.items()),
            default=0.0,
        ),
    }


def far(a: Any, b: Any) -> float:
    """Return the largest difference of two tensors or numbers."""
    return float((torch.as_tensor(a).double() - torch.as_tensor(b).double()).abs().max())


def case(optimizer: str, layout: str, mesh: str, **more: Any) -> dict[str, Any]:
    """Train under a scheduler."""
    step, own, said = make(optimizer, mesh, layout, **more)
    schedule = torch.optim.lr_scheduler.ExponentialLR(own, 0.9)
    losses: list[float] = []
    for batch in batches(3):
        losses.append(float(step(*batch)))
        schedule.step()
    step.check()
    sizes = step.memory_bytes()
    return apart(losses, step.state_dict(), eagerly(optimizer, 3)) | {"said": said, "bytes": sizes}


def states(optimizer: str, layout: str, mesh: str, folder: str) -> dict[str, Any]:
    """Save after two steps of four; go on by each of the ways there are."""
    step, own, _ = make(optimizer, mesh, layout)
    schedule = torch.optim.lr_scheduler.ExponentialLR(own, 0.9)
    dataset = batches(4)
    losses: list[float] = []
    for batch in dataset[:2]:
        losses.append(float(step(*batch)))
        schedule.step()
    whole = step.state_dict()
    place = f"{folder}/{optimizer}-{layout}"
    step.save(place, more={"schedule": schedule})
    differences: dict[str, Any] = {}
    want = eagerly(optimizer, 4)
    for how in ("checkpoint", "whole", "checkpoint, prepared"):
        again, other, _ = make(optimizer, mesh, layout)
        later = torch.optim.lr_scheduler.ExponentialLR(other, 0.9)
        if "prepared" in how:
            again.prepare(*dataset[0])
        if how == "whole":
            again.load_state_dict(whole)
            later.load_state_dict(schedule.state_dict())
        else:
            again.load(place, more={"schedule": later})
        more: list[float] = []
        for batch in dataset[2:]:
            more.append(float(again(*batch)))
            later.step()
        differences[how] = apart([*losses, *more], again.state_dict(), want)
    return differences


def failing(layout: str, mesh: str) -> str:
    """Return what is raised in the second step, and by one after it; loads, and steps again."""
    step, own, _ = make("failing", mesh, layout)
    first, second = batches(2)
    step(*first)
    state, said = step.state_dict(), list[str]()
    for _ in range(2):
        try:
            step(*second)
        except IrcError as error:
            said.append(str(error))
    step.load_state_dict(state)
    own.state.clear()  # it fails where it has states
    step(*second)
    return "\n".join(said)


if __name__ == "__main__":
    result: dict[str, Any] = {}
    for text in sys.argv[3:]:
        what, *names = text.split("/")
        if what == "failing":
            result[text] = failing(names[0], sys.argv[2])
        elif what == "states":
            result[text] = states(names[0], names[1], sys.argv[2], sys.argv[1])
        else:
            more = {"micro_batches": 2} if "micro" in names else {}
            result[text] = case(what, names[0], sys.argv[2], **more)
    print(json.dumps(result))
