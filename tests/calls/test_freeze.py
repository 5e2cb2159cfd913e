"""Frozen modules: the same results in less memory; what needs the weights is told."""

# pyright: basic
from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import irc
from irc.errors import IrcError


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 96), nn.LayerNorm(96), nn.ReLU(), nn.Linear(96, 64), nn.BatchNorm1d(64)
    ).eval()


def test_results_stay_and_weights_go() -> None:
    plain: Any
    plain, x, one = net(), torch.randn(9, 64), torch.randn(32, 64)
    fast = irc.compile(plain)
    wanted = [fast(x), fast(one)]
    weight = weakref.ref(plain[0].weight.untyped_storage())
    assert irc.freeze(fast) is fast
    gc.collect()
    assert weight() is None
    assert fast[0].weight.is_meta and fast[0].weight.shape == (96, 64)
    assert not fast[1].weight.is_meta
    for _ in range(2):
        torch.testing.assert_close([fast(x), fast(one)], wanted, rtol=0, atol=0)
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        irc.original(fast)(x)


def test_other_calls_are_refused() -> None:
    fast = irc.compile(net())
    x = torch.randn(9, 64)
    wanted = fast(x)
    irc.freeze(fast)
    for other in (torch.randn(3, 64), x.double()):
        with pytest.raises(IrcError, match=r"weights-released[\s\S]*called in a way") as error:
            fast(other)
        assert error.value.code == "weights-released"
    with torch.enable_grad(), pytest.raises(IrcError, match="gradients are on"):
        fast(x)
    fast.train()
    with pytest.raises(IrcError, match="training"):
        fast(x)
    fast.eval()
    torch.testing.assert_close(fast(x), wanted, rtol=0, atol=0)
    # Arguments that cannot go the short way go the long one.
    torch.testing.assert_close(fast(x.t().contiguous().t()), wanted, rtol=0, atol=0)


class Tied(nn.Module):
    """A table that is looked up, and multiplied by."""

    def __init__(self, *between: nn.Module) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 64)
        self.between = nn.Sequential(*between)
        self.head = nn.Linear(64, 50, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Look up, multiply."""
        return self.head(self.between(self.table(tokens)))


def test_tied_weights_that_a_call_reads_stay() -> None:
    fast, tokens = irc.compile(Tied().eval()), torch.arange(9)
    wanted = fast(tokens)
    irc.freeze(fast)
    assert not fast.table.weight.is_meta
    torch.testing.assert_close(fast(tokens), wanted, rtol=0, atol=0)


def test_a_write_to_what_is_left_is_refused_where_it_was_packed() -> None:
    fast, tokens = irc.compile(Tied(nn.Linear(64, 64)).eval()), torch.arange(9)
    wanted = fast(tokens)
    irc.freeze(fast)
    assert fast.between[0].weight.is_meta and not fast.table.weight.is_meta
    torch.testing.assert_close(fast(tokens), wanted, rtol=0, atol=0)
    fast.table.weight.add_(1)
    with pytest.raises(IrcError, match="written to") as error:
        fast(tokens)
    assert error.value.code == "weights-released"


def test_a_loaded_plan_keeps_packed_weights_alone(tmp_path: Path) -> None:
    plain, x = net(), torch.randn(9, 64)
    irc.export_plan(plain, (x,), out=tmp_path / "plan")
    run: Any = irc.load(tmp_path / "plan")
    before = run.unread()
    assert "0.weight" in before
    for _ in range(2):
        (output,) = run(x)
        torch.testing.assert_close(output, plain(x))
    assert not run.unread()
    held = {run.plan.buffers[index].name for index in run._weights if index in run.plan.weights}
    assert not held & before


def test_what_cannot_be_frozen() -> None:
    with pytest.raises(IrcError, match="not made by"):
        irc.freeze(net())
    with pytest.raises(IrcError, match="has been called"):
        irc.freeze(irc.compile(net()))
    with pytest.raises(IrcError, match="has been called"):
        irc.freeze(irc.compile(lambda x: x + 1))


PROGRAM = """
import sys, gc, torch, irc
from pathlib import Path
from torch import nn
torch.set_grad_enabled(False)
layers = [layer for _ in range(6) for layer in (nn.Linear(1536, 1536), nn.ReLU())]
x = torch.randn(64, 1536)
def held():
    gc.collect()
    (line,) = (s for s in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in s)
    return int(line.split()[1]) / 1024
fast = irc.compile(nn.Sequential(*layers).eval())
wanted = fast(x)
before = held()
irc.freeze(fast)
after = held()
assert torch.equal(fast(x), wanted)
print(before - after)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_the_memory_of_packed_weights_is_given_back() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    weights = 6 * 1536 * 1536 * 4 / 2**20  # 54 MiB
    assert float(ended.stdout) > 0.9 * weights, ended.stdout
