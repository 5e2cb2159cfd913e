"""`check`: capture, run the flow program, compare with the module itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from irc.dialects.text import dump, load
from irc.frontends.torch.capture import Captured, capture
from irc.interpret.flow import run_function


def run(captured: Captured, args: Any, kwargs: Any = None) -> tuple[Any, dict[str, torch.Tensor]]:
    """Return what the module would return, and the new states."""
    program = captured.program
    inputs = dict(zip(program.input_names, captured.flatten(args, kwargs), strict=True))
    with torch.no_grad():
        outputs = run_function(program.module, program.bind(inputs))
    count = len(program.output_names)
    return captured.unflatten(outputs[:count]), dict(
        zip(captured.states, outputs[count:], strict=True)
    )


@pytest.fixture
def check() -> Callable[..., Captured]:
    """Return a function that captures, verifies, prints, parses, runs and compares."""

    def compare(
        module: Any, *args: Any, tolerance: float = 1e-5, externs: int = 0, **kwargs: Any
    ) -> Captured:
        captured = capture(module, args, kwargs)
        captured.program.module.verify()
        text = dump(captured.program.module)
        captured.program.module = load(text)
        assert dump(captured.program.module) == text
        assert "unknown" not in text
        assert sum(captured.externs.values()) == externs, captured.externs
        outputs, _ = run(captured, args, kwargs)
        with torch.no_grad():
            wanted = module(*args, **kwargs)
        leaves, spec = pytree.tree_flatten(wanted)
        mine, mine_spec = pytree.tree_flatten(outputs)
        assert mine_spec == spec
        for got, want in zip(mine, leaves, strict=True):
            if isinstance(want, torch.Tensor):
                torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
            else:
                assert (type(got), got) == (type(want), want)
        return captured

    return compare
