"""``irc.compile``: the same module to its callers, before and after whatever they do to it."""

from __future__ import annotations

import copy
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import irc
import irc.calls.compiled
import irc.calls.dispatcher
from irc.calls.compiled import dispatcher_of
from irc.calls.dispatcher import Dispatcher
from irc.calls.recompiles import RecompileWarning
from irc.errors import IrcError


class Net(nn.Module):
    """A linear layer, a buffer that counts calls, dropout."""

    count: Tensor

    def __init__(self, width: int = 7) -> None:
        super().__init__()
        self.up = nn.Linear(width, 9)
        self.down = nn.Linear(9, 3)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        """Two layers; each call is counted."""
        self.count.add_(1)
        y = self.down(torch.relu(self.drop(self.up(x))))
        return y if scale is None else y * scale


class TwoTimes(nn.Module):
    """Doubles."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        return x * 2


def eager(net: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return copy.deepcopy(irc.original(net))(*args, **kwargs)


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return irc.compile(Net().eval())


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def versions(module: nn.Module) -> Dispatcher:
    dispatcher = dispatcher_of(module)
    assert dispatcher is not None
    return dispatcher


@torch.no_grad()
def test_a_decorated_class_is_the_class() -> None:
    decorated = irc.compile(Net)
    net = decorated(5).eval()
    assert isinstance(net, Net)
    assert isinstance(net, decorated)
    assert (decorated.__name__, decorated.__module__) == ("Net", __name__)
    assert [n for n, _ in net.named_parameters()] == [n for n, _ in Net(5).named_parameters()]
    net.load_state_dict(Net(5).state_dict())
    x = torch.randn(4, 5)
    close(net(x), eager(net, x))
    assert type(irc.original(net)) is Net


@torch.no_grad()
def test_an_instance_keeps_its_parameters(net: Net) -> None:
    plain = irc.original(net)
    assert isinstance(net, Net)
    assert net is not plain
    for (name, mine), (other, theirs) in zip(
        net.named_parameters(), plain.named_parameters(), strict=True
    ):
        assert name == other
        assert mine is theirs


@torch.no_grad()
def test_options_come_with_or_without_parentheses() -> None:
    @irc.compile(cluster="this-host")
    def double(x: Tensor) -> Tensor:
        """Twice."""
        return x * 2

    assert (double.__name__, double.__doc__) == ("double", "Twice.")
    assert torch.equal(double(torch.ones(3)), torch.full((3,), 2.0))
    assert torch.equal(irc.original(double)(torch.ones(3)), torch.full((3,), 2.0))


def test_disabled_is_untouched() -> None:
    net = Net()
    assert irc.compile(net, disable=True) is net
    assert irc.compile(Net, disable=True) is Net
    with pytest.raises(IrcError, match=r"not made by irc\.compile"):
        irc.original(net)


def test_only_modules_and_functions_compile() -> None:
    with pytest.raises(IrcError, match="not int") as caught:
        irc.compile(3)
    assert caught.value.code == "input-mismatch"


@torch.no_grad()
def test_weights_changed_in_place_are_seen(net: Net) -> None:
    x = torch.randn(4, 7)
    before = net(x)
    net.up.weight.mul_(2)
    net.up.weight.data.add_(1)
    close(net(x), eager(net, x))
    assert not torch.equal(before, net(x))
    net.load_state_dict(Net().state_dict())
    close(net(x), eager(net, x))
    assert not versions(net).recompiles


@torch.no_grad()
def test_strided_weights_changed_in_place_are_seen() -> None:
    """The plan wants contiguous memory: its copy follows the weight, and a state goes back."""
    module = Net().eval()
    module.up.weight = nn.Parameter(torch.randn(7, 9).T)
    module.count = torch.zeros(6)[::2]
    net, x = irc.compile(module), torch.randn(4, 7)
    for _ in range(3):
        close(net(x), eager(net, x))
        module.up.weight.mul_(-2)
    assert module.count.tolist() == [3, 3, 3]


@torch.no_grad()
def test_another_parameter_or_layer_is_compiled_again(net: Net) -> None:
    x = torch.randn(4, 7)
    net(x)
    net.up.bias = nn.Parameter(torch.randn(9))
    close(net(x), eager(net, x))
    net.down = nn.Linear(9, 2)
    close(net(x), eager(net, x))
    assert versions(net).recompiles == [
        "'up.bias' is another tensor than at compile time",
        "'down' is another layer than at compile time",
    ]


@torch.no_grad()
def test_modes_are_versions(net: Net) -> None:
    x = torch.randn(64, 7)
    close(net(x), eager(net, x))
    net.train()
    first, second = net(x), net(x)
    assert not torch.equal(first, second)
    net.eval()
    close(net(x), eager(net, x))
    assert len(versions(net).versions) == 2
    assert versions(net).recompiles == ["'training' is True, compiled for False"]


@torch.no_grad()
@pytest.mark.parametrize(
    ("second", "says"),
    [
        (torch.ones(5, 7), "'x' has shape [5, 7], compiled for [4, 7]"),
        (torch.ones(2, 4, 7), "'x' has shape [2, 4, 7], compiled for [4, 7]"),
        (
            torch.ones(4, 7, dtype=torch.int64),
            "'x' has dtype torch.int64, compiled for torch.float32",
        ),
    ],
)
def test_another_kind_of_call_says_why(second: Tensor, says: str) -> None:
    run = irc.compile(TwoTimes())
    for x in (torch.ones(4, 7), second, second, torch.ones(4, 7)):
        assert torch.equal(run(x), x * 2)
    assert len(versions(run).versions) == 2
    assert versions(run).recompiles == [says]


@torch.no_grad()
def test_a_size_that_varies_freely_is_told_and_then_runs_eagerly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(irc.calls.dispatcher, "MAX_VERSIONS", 3)
    double = irc.compile(lambda x: x * 2)
    for rows in (1, 2):
        double(torch.randn(rows, 7))
    with pytest.warns(RecompileWarning, match=r"'x' has another size .*: dim 0 was 2, is 3"):
        double(torch.randn(3, 7))
    x = torch.randn(4, 7)
    with pytest.warns(RecompileWarning, match="none of 3 versions") as caught:
        assert torch.equal(double(x), x * 2)
    assert "[4, 7], compiled for [3, 7]" in str(caught[0].message)
    double(torch.randn(5, 7))
    double(torch.randn(1, 7))
    counts = irc.calls.compiled.statistics(double)
    assert (counts.compilations, len(counts.reasons), counts.eager_calls) == (3, 2, 2)


@torch.no_grad()
def test_keyword_arguments(net: Net) -> None:
    x, scale = torch.randn(4, 7), torch.randn(3)
    expected = eager(net, x, scale)
    close(net(x, scale), expected)
    close(net(x, scale=scale), expected)
    close(net(scale=scale, x=x), expected)
    close(net(x=x, scale=scale), expected)


@dataclass
class Answer:
    """What a model of a library returns."""

    logits: Tensor
    hidden: tuple[Tensor, ...]
    words: str = "none"


torch.export.register_dataclass(Answer, serialized_type_name="tests.test_api.Answer")


@torch.no_grad()
def test_structures_come_back_as_they_are() -> None:
    @irc.compile
    def answer(x: Tensor, more: dict[str, list[Tensor]]) -> tuple[Answer, dict[str, Any]]:
        (y,) = more["y"]
        return Answer(x + y, (x * 2, y)), {"same": x, "n": 3, "none": None}

    x, y = torch.randn(3), torch.randn(3)
    answered, rest = answer(x, {"y": [y]})
    assert isinstance(answered, Answer)
    close(answered.logits, x + y)
    close(answered.hidden[0], x * 2)
    assert torch.equal(answered.hidden[1], y)
    assert answered.words == "none"
    assert torch.equal(rest["same"], x)
    assert (rest["n"], rest["none"]) == (3, None)


@torch.no_grad()
def test_writes_are_visible(net: Net) -> None:
    for calls in range(1, 4):
        net(torch.randn(4, 7))
        assert net.count.tolist() == [calls] * 3

    @irc.compile
    def write(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        y[1] = 7
        return x + y

    x, y = torch.arange(3.0), torch.zeros(3)
    assert write(x, y).tolist() == [0, 9, 4]
    assert (x.tolist(), y.tolist()) == ([0, 2, 4], [0, 7, 0])


def test_gradients_are_eagers(net: Net) -> None:
    plain = copy.deepcopy(irc.original(net))
    x, other = torch.randn(4, 7, requires_grad=True), torch.zeros(0)
    other = x.detach().clone().requires_grad_()
    net(x).square().sum().backward()
    plain(other).square().sum().backward()
    assert x.grad is not None
    assert other.grad is not None
    close(x.grad, other.grad)
    for mine, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        close(mine.grad, theirs.grad)
    with torch.no_grad():
        close(net(x), eager(net, x))


@torch.no_grad()
def test_a_copy_is_compiled_by_itself(net: Net) -> None:
    x = torch.randn(4, 7)
    before = net(x)
    twin = copy.deepcopy(net)
    twin.up.weight.mul_(3)
    close(twin(x), eager(twin, x))
    assert not torch.equal(twin(x), before)
    close(net(x), before)
    assert dispatcher_of(twin) is not dispatcher_of(net)


@torch.no_grad()
def test_inside_another_compiler_it_is_what_it_was(net: Net) -> None:
    x = torch.randn(4, 7)
    torch._dynamo.reset()
    output = torch.compile(lambda x: net(x) + 1, backend="eager", fullgraph=True)(x)
    close(output, eager(net, x) + 1)
    assert dispatcher_of(net) is None

    outer = irc.compile(nn.Sequential(net, nn.ReLU()))
    close(outer(x), torch.relu(eager(net, x)))
    torch._dynamo.reset()


def test_threads_share_a_module(net: Net) -> None:
    x = [torch.randn(4, 7) for _ in range(4)]
    with torch.no_grad():
        expected = [eager(net, each) for each in x]
    wrong: list[int] = []

    def work(index: int) -> None:
        with torch.no_grad():
            outputs = [net(x[index]) for _ in range(20)]
        right = [torch.allclose(f, expected[index], rtol=1e-5, atol=1e-5) for f in outputs]
        wrong.extend([index] * right.count(False))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(versions(net).versions) == 1


@torch.no_grad()
def test_a_mesh_needs_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delitem(os.environ, name, raising=False)
    net = irc.compile(Net().eval(), mesh="data=2,tensor=2")
    with pytest.raises(IrcError) as caught:
        net(torch.randn(4, 7))
    assert caught.value.code == "world-size"
    assert "torchrun" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"mesh": "data"}, "mesh-syntax"),
        ({"mesh": "data=0"}, "mesh-syntax"),
        ({"cluster": "8xH10"}, "cluster-unknown"),
        ({"passes": ("no-such-pass",)}, "pass-unknown"),
        ({"passes": "no-such-pass"}, "option-value"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], code: str) -> None:
    with torch.no_grad(), pytest.raises(IrcError) as caught:
        irc.compile(lambda x: x + 1, **options)(torch.ones(3))
    assert caught.value.code == code


@torch.no_grad()
def test_a_plan_loads_and_runs(tmp_path: Path) -> None:
    net, x = Net().eval(), torch.randn(4, 7)
    summary = irc.export_plan(net, (x,), out=tmp_path / "plan")
    assert "one device" in summary
    (output,) = irc.load(tmp_path / "plan")(x)
    close(output, copy.deepcopy(net)(x))
    with pytest.raises(IrcError, match="--force") as caught:
        irc.export_plan(net, (x,), out=tmp_path / "plan")
    assert caught.value.code == "output-exists"
    irc.export_plan(net, (x,), out=tmp_path / "plan", force=True)
