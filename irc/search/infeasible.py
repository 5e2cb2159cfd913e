"""Why nothing has a plan: what each configuration lacks, and the least memory that would do."""

from __future__ import annotations

from collections.abc import Sequence

from irc.errors import IrcError
from irc.search.configurations import FULL, NOTHING, Configuration
from irc.search.trials import OF_MEMORY, Trials


def nothing_fits(trials: Trials, ended: str) -> IrcError:
    """Return the error that says why nothing that was tried has a plan.

    Args:
        trials: what was tried.
        ended: why the search ended early; empty where it did not.
    """
    tried = [(each.configuration, each.error) for each in trials.judged.values() if each.error]
    because = [f"{own}: {error.message}" for own, error in tried]
    short = [own for own, error in tried if error.code in OF_MEMORY]
    help_ = "use more devices, or a batch that they share equally"
    if not tried and trials.limits.micro_batches is not None:
        samples = trials.judge.outline().samples
        because.append(
            f"the step is to have {trials.limits.micro_batches} micro-batches, and nothing cuts "
            f"a batch of {samples} samples into so many"
        )
    if ended:
        because.append(f"it ended at {ended}")
    elif short and (error := _explained(trials, short)) is not None:
        because += [note for note in error.because if note.startswith("group")]
        budgets = {own: smallest_budget(each) for own, each in tried}
        budgets[_simplest(short)] = smallest_budget(error)
        known = [(least, own) for own, least in budgets.items() if least is not None]
        if known:
            least, own = min(known, key=lambda each: (each[0], *_order(each[1])))
            help_ = f"{least} bytes do for {own}; or {help_}"
    devices = trials.devices
    return IrcError(
        "plan-infeasible",
        f"nothing that was tried has a plan on {devices} device{'s' if devices > 1 else ''}",
        because=because,
        help=help_,
    )


def _simplest(short: Sequence[Configuration]) -> Configuration:
    """Return the configuration that is explained: of one program, with the most recompute."""
    return min(short, key=_order)


def _order(own: Configuration) -> tuple[bool, int]:
    return own.is_staged, {FULL: 0, NOTHING: 2}.get(own.recompute, 1)


def _explained(trials: Trials, short: Sequence[Configuration]) -> IrcError | None:
    """Return what is in conflict, and the smallest budget, of the simplest configuration."""
    try:
        trials.judge.judge(_simplest(short), brief=False)
    except IrcError as error:
        return error
    return None


def smallest_budget(error: IrcError) -> int | None:
    """Return the bytes that an error of memory says would do; None where it says none."""
    _, marker, rest = error.help.partition("memory_bytes=")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    return int(digits) if marker and digits else None
