"""What PyTorch's operators refuse: calls that raise in eager have to raise in compiled code."""

# pyright: basic
from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch

from tests.opinfo.compilers import COMPILERS, Compiler
from tests.opinfo.entries import SEED, Call, entries
from tests.opinfo.trial import FAILING, LEFT, NATIVE, Outcome
from tests.opinfo.ways import Way

DTYPES = ("float32",)
"""Each call that is to be refused has dtypes of its own."""


def names_of(way: Way) -> list[str]:
    """Return the names of the entries that say what they refuse."""
    return sorted(
        name
        for name, info in entries(way.torch_dtype).items()
        if info.error_inputs_func is not None
    )


def try_refusals(name: str, way: Way, most: int | None = None) -> Iterator[Outcome]:
    """Try an entry's refusals one by one, all of them or the first so many.

    Yields:
        ``native`` for a call that raises; ``left`` where torch's own capture answers, with any
        backend; ``failing`` where only irc does.
    """
    compiler, control = COMPILERS[way.through]
    for call in list(_calls(name, way))[:most]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if (wanted := _raised(call, None)) is None:
                continue  # on the CPU it does not
            answers = _raised(call, compiler) is None
            said = f"answers, eager says {type(wanted).__name__}: {wanted}"[:200]
            if not answers:
                yield Outcome(NATIVE)
            elif _raised(call, control) is None:
                yield Outcome(LEFT, said)
            else:
                yield Outcome(FAILING, said)


def _calls(name: str, way: Way) -> Iterator[Call]:
    info = entries(way.torch_dtype)[name]
    torch.manual_seed(SEED)
    for each in info.error_inputs("cpu"):
        sample = each.sample_input
        args = (sample.input, *sample.args)
        yield Call(info.op, args, dict(sample.kwargs), lambda result: result)


def _raised(call: Call, compiler: Compiler | None) -> Exception | None:
    """Return what a call raises, compiled or in eager; None where it answers."""
    own: Any = call.copied()
    try:
        run = own.op if compiler is None else compiler(own).call
        with torch.no_grad():
            run(*own.args, **own.kwargs)
    except Exception as error:
        return error
    return None
