"""An optimiser object of torch for a step: the same numbers, or an error that says why not."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict
from torch.nn import functional as F

import irc
from irc.calls.step import TrainingStep
from irc.errors import IrcError
from irc.runtime.given_optimizer import kind_of
from tests.calls.lion import Lion
from tests.calls.test_step import X, Y, assert_equal_modules, eager_steps, net


def decayed(module: nn.Module) -> list[dict[str, Any]]:
    """Return two groups, as transformers are trained: biases without weight decay."""
    named = dict(module.named_parameters())
    biases = [p for n, p in named.items() if n.endswith("bias")]
    others = [p for n, p in named.items() if not n.endswith("bias")]
    return [{"params": others, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}]


MAKERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "adamw": lambda m: torch.optim.AdamW(m.parameters()),
    "adamw, numbers": lambda m: torch.optim.AdamW(
        m.parameters(), lr=torch.tensor(3e-3), betas=(0.8, 0.95), eps=1e-6, weight_decay=0.2
    ),
    "groups": lambda m: torch.optim.AdamW(decayed(m), lr=1e-2),
    "adam": lambda m: torch.optim.Adam(m.parameters(), lr=1e-2, weight_decay=0.1),
    "adam, decoupled": lambda m: torch.optim.Adam(
        m.parameters(), lr=1e-2, weight_decay=0.1, decoupled_weight_decay=True
    ),
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, weight_decay=0.1),
    "momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
    "rates, momenta, decays": lambda m: torch.optim.SGD(
        [
            {"params": [p], "lr": 0.1 * i, "momentum": 0.3 * i, "weight_decay": 0.01 * i}
            for i, p in enumerate(m.parameters())
        ],
        lr=1.0,
    ),
    "rates, betas, decays": lambda m: torch.optim.AdamW(
        [
            {"params": [p], "lr": 1e-3 * i, "betas": (0.1 * i, 0.9), "weight_decay": 0.1 * i}
            for i, p in enumerate(m.parameters(), 1)
        ],
        eps=1e-5,
    ),
    "amsgrad": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, amsgrad=True),
    "nesterov": lambda m: torch.optim.SGD(m.parameters(), 0.1, 0.9, nesterov=True),
    "maximize": lambda m: torch.optim.Adam(m.parameters(), maximize=True),
    "rmsprop": lambda m: torch.optim.RMSprop(m.parameters(), weight_decay=0.1),
    "rmsprop, all": lambda m: torch.optim.RMSprop(
        m.parameters(), 1e-3, alpha=0.9, momentum=0.5, centered=True
    ),
    "rmsprop, groups": lambda m: torch.optim.RMSprop(
        [{"params": [p], "momentum": 0.3 * i} for i, p in enumerate(m.parameters())], 1e-3
    ),
    "adagrad": lambda m: torch.optim.Adagrad(m.parameters(), 1e-1, lr_decay=0.5),
    "adamax": lambda m: torch.optim.Adamax(m.parameters(), weight_decay=0.1),
    "adadelta": lambda m: torch.optim.Adadelta(m.parameters(), 0.5, rho=0.8),
    "adafactor": lambda m: torch.optim.Adafactor(m.parameters()),
    "adafactor, numbers": lambda m: torch.optim.Adafactor(
        m.parameters(), 1.0, -0.7, (1e-3, 0.1), d=1.5, weight_decay=0.01
    ),
    "adafactor, groups": lambda m: torch.optim.Adafactor(
        [{"params": [p], "eps": (None, 0.1 * i)} for i, p in enumerate(m.parameters(), 1)], 0.1
    ),
    "adafactor, of the dtype in a group": lambda m: torch.optim.Adafactor(
        [
            {"params": [p], "eps": (None if i % 2 else 0.3, 0.1)}
            for i, p in enumerate(m.parameters())
        ],
        0.1,
    ),
    "lion": lambda m: Lion(decayed(m), 1e-3, (0.8, 0.95)),
    "no decay": lambda m: torch.optim.AdamW(m.parameters(), weight_decay=0.0),
    "of a part": lambda m: torch.optim.SGD(list(m.children())[2].parameters(), lr=0.1),
}


@pytest.mark.parametrize("name", MAKERS)
def test_the_module_moves_as_torch_moves_it(name: str) -> None:
    mine, theirs = net(), net()
    step = irc.compile_step(mine, loss=F.cross_entropy, optimizer=MAKERS[name](mine))
    losses = [float(step(X, Y)) for _ in range(3)]
    assert losses == pytest.approx(eager_steps(theirs, MAKERS[name](theirs)), rel=1e-5)
    assert_equal_modules(mine, theirs)


@pytest.mark.parametrize("name", ["amsgrad", "rmsprop, all", "adagrad", "adafactor", "lion"])
def test_states_go_on_here_and_in_torch(name: str) -> None:
    mine, again, theirs = net(), net(), net()
    step = irc.compile_step(mine, loss=F.cross_entropy, optimizer=MAKERS[name](mine))
    for _ in range(2):
        step(X, Y)
    state = step.state_dict()
    other = irc.compile_step(again, loss=F.cross_entropy, optimizer=MAKERS[name](again))
    other.load_state_dict(state)
    theirs.load_state_dict(state["model"])
    eager = MAKERS[name](theirs)
    set_optimizer_state_dict(theirs, eager, state["optimizer"])
    wanted = [float(step(X, Y)) for _ in range(2)]
    assert [float(other(X, Y)) for _ in range(2)] == wanted
    assert eager_steps(theirs, eager, 2) == pytest.approx(wanted, rel=1e-5)


class Twice(Lion):
    """Makes two steps of one."""

    def step(self, closure: Any = None) -> None:
        """Move twice."""
        super().step()
        super().step()


class Clipping(Lion):
    """Clips the gradients of each parameter, which nothing in its groups says."""

    def step(self, closure: Any = None) -> None:
        """Clip, then move."""
        for p in (p for group in self.param_groups for p in group["params"]):
            torch.nn.utils.clip_grad_norm_([p], 5.0)
        super().step()


def test_a_lion_is_known_by_what_it_does() -> None:
    other = type("Lion", (Twice,), {})
    parameters = list(net().parameters())
    optimizer = Lion(parameters, 1e-3)
    torch.optim.lr_scheduler.ConstantLR(optimizer)
    assert kind_of(optimizer) == "lion"
    assert not optimizer.state
    assert kind_of(Lion(parameters, decoupled_weight_decay=True)) == ""
    assert kind_of(Lion([{"params": parameters, "max_grad_norm": 5}])) == ""
    vars(optimizer)["clips"] = True
    assert kind_of(optimizer) == ""
    assert kind_of(Twice(parameters)) == ""
    assert kind_of(other(parameters)) == ""
    assert kind_of(type("Lion", (Clipping,), {})(parameters)) == ""
    called: list[int] = []
    optimizer = Lion(parameters)
    optimizer.register_step_pre_hook(lambda *_: called.append(1))
    assert kind_of(optimizer) == "lion"
    assert not called


def test_other_rates_are_no_other_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    module = net()
    optimizer = Lion(module.parameters())
    step = irc.compile_step(module, loss=F.cross_entropy, optimizer=optimizer)
    step(X, Y)
    monkeypatch.setattr("irc.runtime.given_optimizer.is_lion", lambda _: False)
    optimizer.param_groups[0]["lr"] = 1e-3
    step(X, Y)
    optimizer.param_groups[0]["weight_decay"] = 0.3
    with pytest.raises(IrcError, match="cannot go on as it began"):
        step(X, Y)


def test_an_adafactor_of_halves_takes_their_epsilon() -> None:
    """With gradients this small a parameter hardly moves; by the epsilon of float32 it would."""

    def loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(out, y) * 1e-3

    moved: list[nn.Module] = []
    for eps in (None, 2.0**-7, 2.0**-23):
        module = net().bfloat16()
        own = torch.optim.Adafactor(module.parameters(), 0.5, eps=(eps, 1e-3))
        irc.compile_step(module, loss=loss, optimizer=own)(X.bfloat16(), Y)
        moved.append(module)
    theirs = net().bfloat16()
    loss(theirs(X.bfloat16()), Y).backward()
    torch.optim.Adafactor(theirs.parameters(), 0.5).step()
    pairs = zip(*(m.parameters() for m in (*moved, theirs)), strict=True)
    for mine, same, far, other in pairs:
        assert torch.equal(mine, same)
        assert float((mine - other).detach().abs().max()) < 4e-3
        assert float((far - other).detach().abs().max()) > 2e-2
    with pytest.raises(IrcError, match="0 or more"):
        irc.compile_step(net(), optimizer={"kind": "adafactor", "eps": (-1.0, 1e-3)})


class Closure(torch.optim.Optimizer):
    """A step that wants to be given the loss."""

    def step(self, closure: Callable[[], float]) -> float:  # type: ignore[override]
        """Do nothing."""
        return closure()


def stepped(module: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(module.parameters())
    eager_steps(module, optimizer, 1)
    return optimizer


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda m: torch.optim.LBFGS(m.parameters()), "LBFGS"),
        (lambda m: torch.optim.SparseAdam(m.parameters()), "SparseAdam"),
        (lambda m: torch.optim.Adam(m.parameters(), differentiable=True), "Adam"),
        (lambda m: Closure(m.parameters(), {}), "Closure"),
        (lambda m: object(), "object"),
        (lambda m: torch.optim.AdamW(net().parameters()), "no parameter of the module"),
        (stepped, "has taken steps"),
    ],
)  # fmt: skip
def test_what_a_step_does_not_compute_is_refused(make: Any, says: str) -> None:
    module = net()
    with pytest.raises(IrcError, match=says) as raised:
        irc.compile_step(module, loss=F.cross_entropy, optimizer=make(module))
    assert raised.value.code == "option-value"
    assert "help: " in str(raised.value)


GROUPS = {
    "kind": "adamw",
    "lr": 1e-2,
    "no_decay": "*.bias",
    "groups": [
        {"params": "2.bias", "lr": 3e-2, "eps": 1e-4, "weight_decay": 0.2},
        {"params": ["2.*"], "lr": 1e-3, "betas": (0.5, 0.6)},
        {"params": "0.bias", "weight_decay": 0.4},
    ],
}


@pytest.mark.parametrize("micro_batches", [None, 3])
def test_groups_that_are_written_down(micro_batches: int | None) -> None:
    mine, theirs = net(), net()
    named = dict(theirs.named_parameters())
    eager = torch.optim.AdamW(
        [
            {"params": [named["0.weight"]]},
            {"params": [named["0.bias"]], "weight_decay": 0.4},
            {"params": [named["2.weight"]], "lr": 1e-3, "betas": (0.5, 0.6)},
            {"params": [named["2.bias"]], "lr": 3e-2, "eps": 1e-4, "weight_decay": 0.2},
        ],
        lr=1e-2,
    )
    step = irc.compile_step(
        mine, loss=F.cross_entropy, optimizer=GROUPS, micro_batches=micro_batches
    )
    losses = [float(step(X, Y)) for _ in range(3)]
    assert losses == pytest.approx(eager_steps(theirs, eager), rel=1e-5)
    assert_equal_modules(mine, theirs)
    rates = [group["lr"] for group in step.state_dict()["optimizer"]["param_groups"]]
    assert sorted(rates) == [0.001, 0.01, 0.01, 0.03]
    before = mine.get_parameter("2.bias").detach().clone()
    step(X, Y, lr=0.0)
    assert torch.equal(mine.get_parameter("2.bias"), before)


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ([{"lr": 0.1}], "names no parameters"),
        ("2.*", "give a list of groups"),
        ([{"params": "2.*", "nesterov": True}], "has none"),
        ([{"params": "2.*", "clip_norm": 1.0}], "no option 'clip_norm'"),
        ([{"params": "2.*", "lr": "fast"}], "is not a number"),
        ([{"params": "9.*", "lr": 0.1}], "no parameter is called '9.\\*'"),
    ],
)
def test_groups_that_cannot_be(groups: object, says: str) -> None:
    with pytest.raises(IrcError, match=says):
        irc.compile_step(net(), optimizer={"kind": "sgd", "groups": groups})


def scheduled(optimizer: torch.optim.Optimizer, number: int) -> None:
    """Change what a scheduler changes, then decay and betas, as users do between steps."""
    for group in optimizer.param_groups:
        group["lr"] = 1e-2 / (number + 1)
        if number >= 2:
            group["weight_decay"] = 0.3
            group["betas"] = (0.8, 0.9)


def rated(module: nn.Module) -> tuple[torch.optim.AdamW, TrainingStep]:
    """Return another optimiser with two groups, and a step of it."""
    first, *rest = module.parameters()
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(
        [{"params": [first]}, {"params": rest}], lr=1e-2
    )
    return optimizer, irc.compile_step(module, loss=F.cross_entropy, optimizer=optimizer)


@pytest.mark.parametrize("way", ["folder", "state"])
def test_a_scheduler_goes_on_from_a_checkpoint(way: str, tmp_path: Path) -> None:
    """It multiplies the rates that it finds in the groups, which are saved as they are then."""
    losses: dict[bool, list[float]] = {}
    for is_loaded in (False, True):
        optimizer, step = rated(net())
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.3)
        more = {"scheduler": scheduler}
        if is_loaded and way == "folder":
            step.load(tmp_path, more=more)
        elif is_loaded:
            step.load_state_dict(torch.load(tmp_path / "state.pt"))
            scheduler.load_state_dict(torch.load(tmp_path / "scheduler.pt"))
        losses[is_loaded] = []
        while step.count < 4:
            losses[is_loaded].append(float(step(X, Y)))
            scheduler.step()
            if step.count == 2 and way == "folder":
                step.save(tmp_path, more=more)
            elif step.count == 2:
                torch.save(step.state_dict(), tmp_path / "state.pt")
                torch.save(scheduler.state_dict(), tmp_path / "scheduler.pt")
        assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([8.1e-5] * 2)
    assert losses[True] == losses[False][2:]


@pytest.mark.parametrize("micro_batches", [None, 2])
def test_each_step_reads_the_groups(micro_batches: int | None) -> None:
    mine, theirs = net(), net()
    optimizer, eager = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (mine, theirs))
    step = irc.compile_step(
        mine, loss=F.cross_entropy, optimizer=optimizer, micro_batches=micro_batches
    )
    for number in range(4):
        for each in (optimizer, eager):
            scheduled(each, number)
        assert float(step(X, Y)) == pytest.approx(eager_steps(theirs, eager, 1)[0], rel=1e-5)
    assert_equal_modules(mine, theirs)
    assert len(step._versions) == 2
    assert step.state_dict()["optimizer"]["param_groups"][0]["betas"] == (0.8, 0.9)
    # Rates of their own, then equal ones again, are one further program.
    optimizer, step = rated(mine)
    eager, _ = rated(theirs)
    for number in range(3):
        for each in (optimizer, eager):
            each.param_groups[1]["lr"] = 1e-2 * (1 + number % 2)
        assert float(step(X, Y)) == pytest.approx(eager_steps(theirs, eager, 1)[0], rel=1e-5)
    assert len(step._versions) == 2
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    step(X, Y)
    scheduler.step()  # without a warning that no step was made
    optimizer.param_groups[0]["amsgrad"] = True
    with pytest.raises(IrcError, match="amsgrad"):
        step(X, Y)
