"""What :func:`irc.explain` takes: all that irc compiles for a caller in this process."""

from __future__ import annotations

from typing import Any

from irc.calls.compiled import is_compiled
from irc.calls.compiled import module_report as of_compiled
from irc.calls.entries import Entries
from irc.calls.step import TrainingStep
from irc.errors import IrcError
from irc.pipeline import Options
from irc.report.calls import ModuleReport
from irc.torch_backend.frames import is_by_torch, recorded_of

SUPPORTED = (
    "it takes what irc.compile, irc.compile_step, irc.compile_entries or "
    'torch.compile(.., backend="irc") has returned, or the folder of a plan'
)
UNCALLED_STEP = "not called yet: a step is compiled at its first batch"
UNSEEN = (
    "torch has compiled no graph for it yet: it is compiled at its first call, and runs what was "
    "compiled for another torch.compile of the same function with the same options"
)


def explained(compiled: Any) -> ModuleReport:
    """Return what was compiled so far of what a function of irc, or torch.compile, has returned.

    Raises:
        IrcError: ``input-mismatch`` for anything else, saying what is supported.
    """
    match compiled:
        case TrainingStep():
            name = f"step of {type(compiled.module).__name__}"
            backend = compiled.options.backend
            return ModuleReport.of(name, compiled.record, backend=backend, uncalled=UNCALLED_STEP)
        case Entries():
            names = ", ".join(compiled)
            return ModuleReport.of(f"entries {names}", compiled.record, backend=Options().backend)
        case _:
            return of_compiled(compiled) if is_compiled(compiled) else _by_torch(compiled)


def _by_torch(compiled: Any) -> ModuleReport:
    target = getattr(compiled, "__func__", compiled)  # of a method
    if not is_by_torch(target):
        raise _not_compiled(compiled)
    try:
        name, record = recorded_of(target)
    except LookupError as other:
        raise IrcError(
            "input-mismatch",
            f"irc.explain was given what torch.compile returns for the backend '{other}'",
            because=SUPPORTED,
            help='fast = torch.compile(model, backend="irc"); fast(x); print(irc.explain(fast))',
        ) from None
    return ModuleReport.of(name, record, backend=Options().backend, uncalled=UNSEEN)


def _not_compiled(value: Any) -> IrcError:
    return IrcError(
        "input-mismatch",
        f"irc.explain was given {type(value).__name__}, which irc has not compiled",
        because=SUPPORTED,
        help="fast = irc.compile(model); fast(x); print(irc.explain(fast))",
    )
