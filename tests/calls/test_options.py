"""What the user chose holds however a module is called, and what cannot be is refused at once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import irc
from irc.errors import IrcError

WRONG = "rule wrong\n  exp(x) => sin(x)\n"
"""No equivalence: that it was applied can be seen."""


class Exp(nn.Module):
    """One function and one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale).exp()


@pytest.mark.parametrize("gradients", [False, True])
def test_rules_of_the_user_hold_with_and_without_gradients(tmp_path: Path, gradients: bool) -> None:
    rules, x = tmp_path / "wrong.rules", torch.randn(2, 3)
    rules.write_text(WRONG)
    with torch.set_grad_enabled(gradients):
        result = irc.compile(Exp(), rules=[str(rules)])(x)
    assert result.requires_grad == gradients
    torch.testing.assert_close(result.detach(), x.sin())


def test_rules_are_an_option_of_the_backend(tmp_path: Path) -> None:
    rules, x = tmp_path / "wrong.rules", torch.randn(2, 3)
    rules.write_text(WRONG)
    with torch.no_grad():
        result = torch.compile(Exp(), backend="irc", options={"rules": [str(rules)]})(x)
    torch.testing.assert_close(result, x.sin())


@pytest.mark.parametrize(
    ("chosen", "error"),
    [
        ({"backend": "tritn"}, "backend-unknown"),
        ({"cluster": "nowhere"}, "cluster-unknown"),
        ({"passes": ["fuze"]}, "pass-unknown"),
        ({"passes": "fuse"}, "option-value"),
        ({"rules": ["no.rules"]}, "file-missing"),
        ({"pins": "*.w = [tensor = S(0)]"}, "mesh-mismatch"),
    ],
)
def test_what_cannot_be_is_refused_before_the_first_call(
    chosen: Mapping[str, Any], error: str
) -> None:
    with pytest.raises(IrcError, match=rf"error\[{error}\]"):
        irc.compile(Exp(), **chosen)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    ("dynamic", "text"),
    [({"y": {0: "b"}}, "'y'"), ({"x": {5: "b"}}, "dim 5"), ([{0: "b"}, None], "2 arguments")],
)
def test_open_sizes_of_nothing_are_refused(dynamic: Any, text: str, gradients: bool) -> None:
    with torch.set_grad_enabled(gradients), pytest.raises(IrcError, match="option-value") as caught:
        irc.compile(Exp(), dynamic=dynamic)(torch.randn(2, 3))
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("chosen", "error", "advice"),
    [
        ({"mode": "max-autotune"}, "option-value", "mode='default'"),
        ({"mode": "reduce-overhead"}, "option-value", "mode='default'"),
        ({"mode": "max-autotun"}, "option-value", "'max-autotune'"),
        ({"mode": 3}, "option-value", ""),
        ({"options": {"max_autotune": True}}, "option-unknown", "use one of"),
        ({"options": {"fullgraf": True}}, "option-unknown", "'fullgraph'"),
        ({"options": ["fullgraph"]}, "option-value", ""),
        ({"options": {"fullgraph": True}, "fullgraph": True}, "option-value", ""),
        ({"options": {"strict": 1}}, "option-value", ""),
        ({"options": {"fullgraph": "False"}}, "option-value", ""),
        ({"options": {"verify_each": "exce"}}, "option-value", "'exec'"),
        ({"mode": "max-autotune-no-cudagraphs"}, "option-value", "max-autotune"),
    ],
)
def test_options_of_torch_compile_that_mean_nothing_are_refused(
    chosen: dict[str, Any], error: str, advice: str
) -> None:
    with pytest.raises(IrcError) as caught:
        irc.compile(Exp(), **chosen)
    assert caught.value.code == error and advice in caught.value.help


def test_options_of_torch_compile_that_mean_something_hold() -> None:
    def broken(x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x

    fast = irc.compile(broken, mode="default", options={"fullgraph": True})
    with pytest.raises(IrcError, match="capture-failed"):
        fast(torch.ones(3))


def test_a_mode_of_torch_compile_is_not_passed_over() -> None:
    torch._dynamo.reset()
    with pytest.raises(Exception, match="mode='max-autotune' means nothing"):
        torch.compile(Exp(), backend="irc", mode="max-autotune")(torch.ones(2, 3))
