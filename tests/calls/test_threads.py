"""Threads that compile at the same time leave modules as they were."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import irc


@pytest.mark.filterwarnings("ignore::irc.calls.recompiles.RecompileWarning")
@pytest.mark.filterwarnings("ignore::irc.calls.left.LeftToTorchWarning")
@pytest.mark.parametrize("grad", [False, True])
def test_threads_that_compile_at_once(*, grad: bool) -> None:
    """Numbers are eager's, modules of others are called as they are, torch's methods come back.

    A call that meets another thread's trace may be left to torch, which is said.
    """
    call, attribute = nn.Module.__call__, nn.Module.__getattr__

    def work(failures: list[BaseException]) -> None:
        module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        compiled = irc.compile(module)
        try:
            with torch.set_grad_enabled(grad):
                for size in (1, 2, 3):
                    x = torch.randn(size, 4)
                    torch.testing.assert_close(compiled(x), module(x))
        except BaseException as error:
            failures.append(error)

    failures = list[BaseException]()
    threads = [threading.Thread(target=work, args=(failures,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert (nn.Module.__call__, nn.Module.__getattr__) == (call, attribute)
