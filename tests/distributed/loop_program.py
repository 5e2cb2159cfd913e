"""Training loops as users write them: ``MESH[/LAYOUT] DTYPE FOLDER CASE [CASE ..]``.

Each trains one model compiled for the mesh and one as it is, side by side, and prints as JSON how
far they are from each other.
"""

# pyright: basic
from __future__ import annotations

import copy
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import irc
from irc.calls.compiled import refresh, statistics
from irc.errors import IrcError
from tests.training.models import TARGETS, TOKENS, Classifier, small_gpt

CLUSTER = "demo-gpus"
STEPS = 20
DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Regression(nn.Module):
    """Two layers; with targets the loss, else what is predicted."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(24, 64), nn.Linear(64, 12)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Return the loss or the logits."""
        logits = self.down(F.gelu(self.up(x)))
        return logits if y is None else F.cross_entropy(logits, y)


class TwoHeads(nn.Module):
    """A trunk and two results, of which a loss may read one."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.a, self.b = nn.Linear(24, 32), nn.Linear(32, 8), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Return both, and one that is no number to differentiate."""
        h = torch.tanh(self.trunk(x))
        a = self.a(h)
        return {"a": a, "b": self.b(h), "best": a.argmax(-1)}


def batches(count: int, rows: int = 8, dtype: torch.dtype = torch.float32) -> list[tuple[Any, ...]]:
    """Return samples and labels, the same on every rank."""
    draw = torch.Generator().manual_seed(7)
    return [
        (
            torch.randn(rows, 24, generator=draw).to(dtype),
            torch.randint(0, 12, (rows,), generator=draw),
        )
        for _ in range(count)
    ]


def both(make: Callable[[], nn.Module], run: Run, **options: Any) -> tuple[Any, Any]:
    """Return a module that is compiled for the mesh, and its eager twin."""
    torch.manual_seed(0)
    theirs = make().to(run.dtype).train()
    settings = {"mesh": run.mesh, "layout": run.layout, "cluster": CLUSTER, **options}
    return irc.compile(copy.deepcopy(theirs), **settings), theirs


class Run:
    """What the words of the command say."""

    def __init__(self, mesh: str, dtype: str) -> None:
        self.mesh, _, self.layout = mesh.partition("/")
        self.dtype = DTYPES[dtype]


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    """Two groups; eps larger than torch's, so that what is zero but for rounding hardly moves."""
    groups = [
        {"params": [p for p in module.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in module.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=5e-3, eps=1e-3)


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    """Momentum."""
    return torch.optim.SGD(module.parameters(), lr=1e-2, momentum=0.9)


def far(a: Tensor, b: Tensor) -> float:
    """Return the norm of a difference, relative to what it should be."""
    return float((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-6))


def full(tensor: Any) -> Tensor:
    """Return a DTensor whole."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def gradients(mine: nn.Module, theirs: nn.Module) -> float:
    """Return the largest error of a gradient; each lies as its parameter.

    One that is zero but for rounding counts by the largest of all.
    """
    worst = 0.0
    least = 1e-2 * max(float(q.grad.norm()) for q in theirs.parameters() if q.grad is not None)
    for (name, p), q in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        assert (p.grad is None) is (q.grad is None), name
        if q.grad is not None:
            assert getattr(p.grad, "placements", ()) == getattr(p, "placements", ()), name
            error = float((full(p.grad) - q.grad).norm()) / max(float(q.grad.norm()), least)
            worst = max(worst, error)
    return worst


def train(
    mine: nn.Module,
    theirs: nn.Module,
    dataset: Sequence[tuple[Any, ...]],
    *,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = adamw,
    loss: Callable[..., Tensor] = lambda module, *batch: module(*batch),
    clip: float | None = None,
    to_none: bool = True,
) -> dict[str, float]:
    """Train both in one loop, with a schedule of rates; return the largest errors."""
    largest = {"losses": 0.0}
    sides = [(module, optimizer(module)) for module in (mine, theirs)]
    rates = [torch.optim.lr_scheduler.StepLR(opt, 5, 0.5) for _, opt in sides]
    for number, batch in enumerate(dataset):
        values = [loss(module, *batch) for module, _ in sides]
        for value in values:
            value.backward()
        if number == 0:
            largest["gradients"] = gradients(mine, theirs)
        for (module, opt), rate in zip(sides, rates, strict=True):
            if clip is not None:
                nn.utils.clip_grad_norm_(module.parameters(), clip)
            opt.step()
            opt.zero_grad(set_to_none=to_none)
            rate.step()
        largest["losses"] = max(largest["losses"], abs(values[0].item() - values[1].item()))
    wanted = theirs.state_dict()
    for name, value in irc.whole(mine).state_dict().items():
        error = far(value, wanted[name])
        largest["parameters"] = max(largest.get("parameters", 0.0), error)
    return largest


def mlp(run: Run) -> dict[str, Any]:
    """Groups, clipping, a schedule; evaluation of the same parts in between."""
    mine, theirs = both(Regression, run)
    dataset = batches(STEPS, dtype=run.dtype)
    largest = train(mine, theirs, dataset[:10], clip=0.5)
    x, _ = dataset[0]
    for module in (mine, theirs):
        module.eval()
    with torch.no_grad():
        largest["evaluated"] = far(mine(x), theirs(x))
    for module in (mine, theirs):
        module.train()
    more = train(mine, theirs, dataset[10:], optimizer=sgd, to_none=False)
    return {name: max(value, more.get(name, 0.0)) for name, value in largest.items()}


def outer_loss(run: Run) -> dict[str, Any]:
    """The loss is computed outside, of logits that every rank has whole."""
    mine, theirs = both(Regression, run)
    return train(
        mine,
        theirs,
        batches(STEPS, dtype=run.dtype),
        loss=lambda module, x, y: F.cross_entropy(module(x), y),
    )


def gpt(run: Run) -> dict[str, Any]:
    """Tied weights; layers that are functions of the program."""
    mine, theirs = both(small_gpt, run)
    return train(mine, theirs, [(TOKENS, TARGETS)] * STEPS, clip=0.5)


def convolutions(run: Run) -> dict[str, Any]:
    """Batch normalisation: its statistics are those of the whole batch."""
    mine, theirs = both(Classifier, run)
    draw = torch.Generator().manual_seed(3)
    dataset = [
        (
            torch.randn(8, 3, 16, 16, generator=draw).to(run.dtype),
            torch.randint(0, 7, (8,), generator=draw),
        )
        for _ in range(STEPS)
    ]
    return train(mine, theirs, dataset, optimizer=sgd)


def frozen(run: Run) -> dict[str, Any]:
    """What requires no gradient has none, and stays."""

    def make() -> nn.Module:
        module = small_gpt(tied=False)
        for name, parameter in module.named_parameters():
            parameter.requires_grad_("norm" in name or name.startswith("layers.1."))
        return module

    mine, theirs = both(make, run)
    return train(mine, theirs, [(TOKENS, TARGETS)] * STEPS)


def two_results(run: Run) -> dict[str, Any]:
    """Both results, one, and a gradient of the input; what nothing depends on has no gradient."""
    mine, theirs = both(TwoHeads, run)
    dataset = [(x,) for x, _ in batches(STEPS, dtype=run.dtype)]

    def loss(module: nn.Module, x: Tensor) -> Tensor:
        results = module(x)
        assert not results["best"].requires_grad
        return results["a"].square().mean() + results["b"].mean()

    largest = train(mine, theirs, dataset, loss=loss, optimizer=sgd)
    for name in ("a", "b"):
        one = train(mine, theirs, dataset[:2], loss=lambda m, x, n=name: m(x)[n].square().mean())
        largest = {key: max(value, one[key]) for key, value in largest.items()}
    inputs = []
    for module in (mine, theirs):
        x = dataset[0][0].clone().requires_grad_()
        loss(module, x).backward()
        assert x.grad is not None
        inputs.append(x.grad)
        module.zero_grad()
    largest["inputs"] = far(inputs[0], inputs[1])
    return largest


def accumulated(run: Run) -> dict[str, Any]:
    """Four batches in a step, of which three leave gradients as partial sums."""
    mine, theirs = both(Regression, run)
    dataset = batches(12, dtype=run.dtype)
    largest = {"losses": 0.0, "gradients": 0.0}
    sides = [(module, adamw(module)) for module in (mine, theirs)]
    for start in range(0, len(dataset), 4):
        for x, y in dataset[start : start + 3]:
            with mine.no_sync():
                (mine(x, y) / 4).backward()
            (theirs(x, y) / 4).backward()
        x, y = dataset[start + 3]
        for module in (mine, theirs):
            (module(x, y) / 4).backward()
        largest["gradients"] = max(largest["gradients"], gradients(mine, theirs))
        for _, opt in sides:
            opt.step()
            opt.zero_grad()
    largest["losses"] = abs(float(mine(*dataset[0]).detach()) - float(theirs(*dataset[0]).detach()))
    # A sum that was made already, then one that is left, and one that adds both up.
    for number, (x, y) in enumerate(dataset[:3]):
        with mine.no_sync() if number == 1 else nullcontext():
            mine(x, y).backward()
        theirs(x, y).backward()
    largest["gradients"] = max(largest["gradients"], gradients(mine, theirs))
    return largest


def sizes(run: Run) -> dict[str, Any]:
    """A short last batch, and one that no axis divides: parameters stay where they are.

    Where the layout divides samples, that is refused by name, and nothing is lost by it.
    """
    mine, theirs = both(Regression, run)
    whole, short = batches(3, dtype=run.dtype), batches(2, rows=4, dtype=run.dtype)
    (odd,) = batches(1, rows=5, dtype=run.dtype)
    dataset = [whole[0], short[0], whole[1], short[1]]
    if run.layout in ("", "tp", "tp+sp"):
        return train(mine, theirs, [*dataset, odd])
    largest = train(mine, theirs, dataset)
    with pytest.raises(IrcError, match=r"ndivisible|could not compile the plan"):
        mine(*odd)
    more = train(mine, theirs, whole[2:])
    return {name: max(value, more[name]) for name, value in largest.items()}


def hooked(run: Run) -> dict[str, Any]:
    """Hooks on parameters and on the module, before the first call and after; averaged weights."""
    mine, theirs = both(Regression, run)
    seen, called = [], []
    for module in (mine, theirs):
        module.register_full_backward_hook(lambda m, _, g: called.append((m is mine, float(g[0]))))
        module.register_full_backward_pre_hook(lambda _, g: (g[0] * 0.5,))
        module.up.weight.register_hook(lambda g: g * 2)
        module.down.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p))
    averages = [torch.optim.swa_utils.AveragedModel(m) for m in (mine, theirs)]
    largest = train(mine, theirs, batches(3, dtype=run.dtype))
    for average, module in zip(averages, (mine, theirs), strict=True):
        average.update_parameters(module)
    assert len(seen) == 6, seen
    assert sorted(called) == [(False, 0.5)] * 3 + [(True, 0.5)] * 3, called
    x, _ = batches(1, dtype=run.dtype)[0]
    with torch.no_grad():
        largest["averaged"] = far(averages[0].eval()(x), averages[1].eval()(x))
    for module in (mine, theirs):
        module.up.weight.data.mul_(2.0)
    refresh(mine)
    largest["refreshed"] = far(mine(x).detach(), theirs(x).detach())
    assert statistics(mine).compilations == 2  # with targets, and without
    return largest


def saved(run: Run) -> dict[str, Any]:
    """A state goes out and in, as DTensors, whole, and through torch's distributed checkpoint."""
    dcp: Any = importlib.import_module("torch.distributed.checkpoint")

    dataset = batches(4, dtype=run.dtype)
    mine, theirs = both(Regression, run)
    largest = train(mine, theirs, dataset)
    state = {name: value.clone() for name, value in mine.state_dict().items()}
    # Where every rank has all of them, they stay what they were.
    assert all(hasattr(v, "full_tensor") is (run.layout != "ddp") for v in state.values())
    dcp.save({"model": state}, checkpoint_id=sys.argv[3])
    errors = []
    x, _ = dataset[0]
    for source in ("parts", "whole", "checkpoint"):
        other, _ = both(Regression, run)
        other(*dataset[1]).backward()
        other.zero_grad()
        if source == "parts":
            other.load_state_dict(state)
        elif source == "whole":
            other.load_state_dict(theirs.state_dict())
        else:
            blank = {name: torch.zeros_like(value) for name, value in other.state_dict().items()}
            dcp.load({"model": blank}, checkpoint_id=sys.argv[3])
            other.load_state_dict(blank)
        with torch.no_grad():
            errors.append(far(other(x), theirs(x)))
        plain = irc.whole(other)
        assert type(plain) is Regression
        with torch.no_grad():
            errors.append(far(plain(x), theirs(x)))
    largest["loaded"] = max(errors)
    return largest


class Dropping(nn.Module):
    """Dropout between layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(24, 64), nn.Linear(64, 12)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss."""
        h = F.dropout(F.relu(self.up(x)), 0.3, self.training)
        return F.cross_entropy(F.dropout(self.down(h), 0.2, self.training), y)


def dropout(run: Run) -> dict[str, Any]:
    """The same numbers however parameters and samples are split; others in each step."""
    losses: list[list[float]] = []
    batch = batches(1, dtype=run.dtype)[0]
    splits = ["* = [%s = B]", "*.weight = [%s = S(0)]"]
    axis = run.mesh.partition("=")[0]
    for pins in splits:
        mine, _ = both(Dropping, run, pins=pins % axis)
        opt = sgd(mine)
        torch.manual_seed(5 + int(torch.distributed.get_rank()))
        losses.append([])
        for _ in range(4):
            value = mine(*batch)
            value.backward()
            opt.step()
            opt.zero_grad()
            losses[-1].append(value.item())
    assert len(set(losses[0])) == 4
    return {"losses": max(abs(a - b) for a, b in zip(*losses, strict=True))}


def refusals(run: Run) -> dict[str, Any]:
    """Return the code of each error, by what was asked."""

    def said(call: Callable[[], Any]) -> str:
        try:
            call()
        except IrcError as error:
            return error.code
        except RuntimeError as error:
            return f"torch: {str(error)[:40]}"
        return ""

    x, y = batches(1, dtype=run.dtype)[0]
    mine, _ = both(Regression, run)
    piped = irc.compile(Regression(), mesh=f"pipe={torch.distributed.get_world_size()}")
    late = irc.compile(Regression().eval(), mesh=run.mesh)
    own = x + torch.distributed.get_rank()

    def twice() -> None:
        value = mine(x, y)
        with torch.no_grad():
            mine.up.weight.mul_(2.0)
        value.backward()

    def penalty() -> None:
        (gradient,) = torch.autograd.grad(mine(x, y), [mine.up.weight], create_graph=True)
        gradient.square().sum().backward()

    return {
        "penalty": said(penalty),
        "pipe": said(lambda: piped(x, y)),
        "evaluating": said(lambda: late(x, y)),
        "another batch": said(lambda: mine(own, y)),
        "written between": said(twice),
    }


CASES: dict[str, Callable[[Run], dict[str, Any]]] = {
    function.__name__: function
    for function in (
        *(mlp, outer_loss, gpt, convolutions, frozen, two_results, accumulated, sizes, hooked),
        *(saved, dropout, refusals),
    )
}

if __name__ == "__main__":
    words = Run(*sys.argv[1:3])
    Path(sys.argv[3]).mkdir(exist_ok=True)
    print(json.dumps({name: CASES[name](words) for name in sys.argv[4:]}))
