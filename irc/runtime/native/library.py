"""Steps of a native program that torch runs, on the program's own memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from irc.errors import IrcError
from irc.plan.native import Library, View
from irc.runtime.native.memory import Bases, raw_view


def check_torch(steps: Sequence[Library]) -> None:
    """Refuse steps that need torch where there is none; ops of ONNX need ml_dtypes, too.

    Raises:
        IrcError: ``package-missing``, naming the ops.
    """
    onnx = [step for step in steps if step.called.startswith("onnx::")]
    for package, those in (("torch", steps), ("ml_dtypes", onnx)):
        if those and not _is_there(package):
            names = sorted({step.called for step in those})
            raise IrcError(
                "package-missing",
                f"the program has {len(those)} steps that {package} runs: {', '.join(names[:12])}",
                because=[f"{step.called} at {step.loc}" for step in those[:4]],
                help=f"pip install {package}",
            )


def _is_there(package: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(package) is not None
    except ImportError:  # what stands in the way of imports says no in its own way
        return False


def tensor(address: int, view: View) -> Any:
    """Return a tensor in memory, which must live as long as it does."""
    import torch

    from irc.runtime.dtypes import dtypes

    dtype = dtypes()[view.dtype]
    if 0 in view.shape:
        return torch.empty(view.shape, dtype=dtype)
    raw = raw_view(address, view)
    if raw.dtype.kind == "V":
        raise IrcError("op-unsupported", f"torch is given no numbers of dtype {view.dtype}")
    signed = raw.view(f"i{raw.dtype.itemsize}")
    return torch.from_numpy(signed).view(dtype)  # pyright: ignore[reportUnknownMemberType]


def library_step(step: Library) -> Callable[[Bases], None]:
    """Return what runs a step, given the addresses of the bases."""
    from irc.runtime import library
    from irc.runtime.into import writer

    results = [(view.shape, view.dtype) for view in step.outputs]
    write = None if step.in_place else writer(step.op, step.attrs)

    def run(bases: Bases) -> None:
        import torch

        with torch.no_grad():
            inputs = [tensor(bases[view.base], view) for view in step.inputs]
            outputs = [tensor(bases[view.base], view) for view in step.outputs]
            if step.in_place:
                cache, index, source = inputs
                cache.scatter_(step.attrs["dim"], index, source)
            elif write is not None:
                write(inputs, outputs)
            else:
                values = library.run(step.op, step.attrs, inputs, results)
                for out, value, wanted in zip(outputs, values, step.wanted, strict=True):
                    if wanted:
                        out.copy_(value)

    return run
