"""Steps in float16: the scale of the loss, and which steps are skipped, are GradScaler's."""

# pyright: basic
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import irc
from irc.errors import IrcError
from tests.calls.test_step import X as WIDE
from tests.calls.test_step import Y, net

X = WIDE * 0.3
"""So that gradients of logits overflow first, which are in float16 also in fused kernels."""
HALF = torch.float16
RATE = 1e-3


def scaler(**numbers: Any) -> torch.amp.GradScaler:
    """One that overflows at first, and soon grows again."""
    return torch.amp.GradScaler("cpu", **{"init_scale": 2.0**23, "growth_interval": 3, **numbers})


def eagerly(
    module: nn.Module, scales: torch.amp.GradScaler, batches: list[torch.Tensor], clip: float = 0.0
) -> tuple[list[float], list[float]]:
    """Train as torch's users do; return losses and scales."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE)
    losses, scale_values = [], []
    for x in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", HALF):
            loss = F.cross_entropy(module(x), Y)
        scales.scale(loss).backward()
        if clip:
            scales.unscale_(optimizer)
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        scales.step(optimizer)
        scales.update()
        losses.append(float(loss.detach()))
        scale_values.append(scales.get_scale())
    return losses, scale_values


@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.1}, {"micro_batches": 1}])
def test_scales_and_steps_are_those_of_grad_scaler(options: dict[str, float]) -> None:
    """Also where a batch is infinite: its step moves nothing."""
    mine, theirs = net(), net()
    batches = [X] * 10
    batches[7] = X.clone()
    batches[7][2, 3] = torch.inf
    numbers = {"init_scale": 2.0**23, "growth_interval": 3}
    rest = {"schedule": "gpipe", "micro_batches": 1} if "micro_batches" in options else {}
    clip = options.get("clip_norm", 0.0)
    step = irc.compile_step(
        mine,
        loss=F.cross_entropy,
        optimizer={"lr": RATE, "clip_norm": clip},
        precision=irc.Precision(compute=HALF, scaler=numbers),
        **rest,
    )
    losses, scales = [], []
    for x in batches:
        before = [p.detach().clone() for p in mine.parameters()]
        losses.append(float(step(x, Y)))
        assert step.scaler is not None
        scales.append(step.scaler.get_scale())
        if not x.isfinite().all():
            assert all(map(torch.equal, mine.parameters(), before))
    wanted, wanted_scales = eagerly(theirs, scaler(), batches, clip)
    assert scales == wanted_scales
    assert losses == pytest.approx(wanted, abs=2e-3, nan_ok=True)
    skipped = sum(b < a for a, b in zip([2.0**23, *scales], scales, strict=False))
    assert 2 <= skipped < 8
    state = step.state_dict()["optimizer"]["state"]
    assert float(state["0.weight"]["step"]) == len(batches) - skipped
    assert step.count == len(batches)
    for own, want in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(own.detach(), want.detach(), rtol=2e-2, atol=4 * RATE)


def test_a_scaler_of_the_users_is_what_scales() -> None:
    own = scaler()
    step = irc.compile_step(
        net(), loss=F.cross_entropy, precision=irc.Precision(compute=HALF, scaler=own)
    )
    assert step.scaler is own
    step(X, Y)
    assert own.get_scale() == 2.0**22
    own.load_state_dict({**own.state_dict(), "scale": 256.0})
    for _ in range(3):
        step(X, Y)
    assert own.get_scale() == 512.0
    usual = irc.compile_step(net(), loss=F.cross_entropy, precision="float16").scaler
    assert usual is not None
    assert usual.get_scale() == 2.0**16
    off = irc.Precision(compute=HALF, scaler=scaler(enabled=False))
    assert irc.compile_step(net(), loss=F.cross_entropy, precision=off).scaler is None
    assert irc.compile_step(net(), loss=F.cross_entropy, precision="bfloat16").scaler is None


def test_halves_with_masters() -> None:
    """Parameters in float16: what rounding takes away is kept, but not where a step is skipped."""
    module = net()
    precision = irc.Precision(parameters=HALF, masters="float32", scaler={"init_scale": 2.0**23})
    step = irc.compile_step(module, loss=F.cross_entropy, precision=precision)
    step(X, Y)
    assert all(float(s["remainder"].abs().max()) == 0.0 for s in states(step).values())
    for _ in range(8):
        step(X, Y)
    assert any(float(s["remainder"].abs().max()) > 0.0 for s in states(step).values())
    assert {p.dtype for p in module.parameters()} == {HALF}


def states(step: Any) -> dict[str, Any]:
    return step.state_dict()["optimizer"]["state"]


def test_the_scale_goes_on_with_the_state(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "loss": F.cross_entropy,
        "precision": irc.Precision(compute=HALF, scaler={"init_scale": 2.0**20}),
    }
    step = irc.compile_step(net(), **options)
    for _ in range(4):
        step(X, Y)
    step.save(tmp_path)
    assert step.scaler is not None
    saved, scale = step.state_dict(), step.scaler.get_scale()
    assert torch.amp.GradScaler("cpu").state_dict().keys() == saved["scaler"].keys()
    assert scale < 2.0**20
    wanted = [float(step(X, Y)) for _ in range(2)]
    for how in ("folder", "state"):
        again = irc.compile_step(net(), **options)
        if how == "folder":
            again.load(tmp_path)
        else:
            again.load_state_dict(saved)
        assert again.scaler is not None
        assert again.scaler.state_dict() == saved["scaler"]
        assert [float(again(X, Y)) for _ in range(2)] == wanted
    with pytest.raises(IrcError, match="lacks 'growth_factor'"):
        step.load_state_dict({"scaler": {"scale": 1.0}})
    wrong = {
        "scale": "x",
        "growth_factor": torch.nan,
        "growth_interval": 2.0,
        "_growth_tracker": -1,
    }
    for name, value in [*wrong.items(), ("scale", 0.0)]:
        with pytest.raises(IrcError, match=f"state-mismatch.* has {name}=") as caught:
            step.load_state_dict({**saved, "scaler": {**saved["scaler"], name: value}})
        assert caught.value.code == "state-mismatch"
    with pytest.raises(IrcError, match="a mapping, not list"):
        step.load_state_dict({"scaler": []})


def test_a_step_without_scales_has_none_of_the_step_before() -> None:
    options = {"schedule": "gpipe", "micro_batches": 1, "precision": "float16"}
    step = irc.compile_step(net(), loss=F.cross_entropy, **options)
    step(X, Y)
    (version,) = step._versions
    assert [float(each) for each in version.executor._scales] == [2.0**16, 2.0**-16]
    version.executor([X, Y], torch.tensor(0.0, dtype=torch.float64))
    assert [float(each) for each in version.executor._scales] == [1.0, 1.0]


class Scales:
    """It has a scale, and is no scaler of torch."""

    def get_scale(self) -> float:
        return 1.0


class Enabled(Scales):
    """The same, closer to one."""

    def is_enabled(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("grad_scaler", "says"),
    [
        ({"init_scal": 2.0}, "help: did you mean 'init_scale'"),
        ({"init_scale": "large"}, "init_scale='large' is no number above 0"),
        ({"growth_factor": 0.5}, "growth factor must be > 1"),
        ({"init_scale": float("inf")}, "init_scale=inf is no number above 0 of float32"),
        ({"init_scale": 1e300}, "no number above 0 of float32"),
        ({"growth_interval": 1.5}, "no number of steps above 0"),
        ({"enabled": "no"}, "enabled='no' is no True or False"),
        ({1: 2.0}, "a loss scale has no '1'"),
        (3.0, "scaler=3.0 is no torch.amp.GradScaler"),
        (Scales(), "is no torch.amp.GradScaler"),
        (Enabled(), "is no torch.amp.GradScaler"),
    ],
)
def test_what_scales_nothing(grad_scaler: Any, says: str) -> None:
    with pytest.raises(IrcError, match=says) as caught:
        irc.compile_step(net(), precision=irc.Precision(compute=HALF, scaler=grad_scaler))
    assert caught.value.code == "option-value"
