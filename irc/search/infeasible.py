"""Why nothing has a plan: what each configuration lacks, and a budget that would do."""

from __future__ import annotations

from irc.errors import IrcError
from irc.search.bounds import least_bytes
from irc.search.configurations import Configuration, staged_mesh
from irc.search.judge import OF_MEMORY, Judged
from irc.search.least_budget import pins_in_conflict, working_budget
from irc.search.trials import TimeIsUp, Trials


def lacks_room(trials: Trials, devices: int) -> bool:
    """Whether nothing fits on so many devices, whatever its plan; then it is noted why."""
    whole = Configuration(staged_mesh(1, devices, 1))
    try:
        trials.check_room(whole)
    except IrcError as error:
        if error.code not in OF_MEMORY:
            return False
        trials.judged[whole] = Judged(whole, error=error)
        return True
    return False


def nothing_fits(trials: Trials, ended: str) -> IrcError:
    """Return the error that says why nothing that was tried has a plan.

    Args:
        trials: what was tried.
        ended: why the search ended early; empty where it did not.
    """
    tried = [(each.configuration, each.error) for each in trials.judged.values() if each.error]
    because = [f"{own}: {error.message}" for own, error in tried]
    help_ = "use more devices, or a batch that they share equally"
    if not tried and trials.limits.micro_batches is not None:
        samples = trials.judge.outline().samples
        because.append(
            f"the step is to have {trials.limits.micro_batches} micro-batches, and nothing cuts "
            f"a batch of {samples} samples into so many"
        )
    groups, working = list[str](), ""
    if not ended and trials.is_short():
        try:
            groups, working = _of_memory(trials)
        except TimeIsUp:
            ended = trials.time_limit
    if ended:
        because.append(f"it ended at {ended}")
    devices = trials.devices
    return IrcError(
        "plan-infeasible",
        f"nothing that was tried has a plan on {devices} device{'s' if devices > 1 else ''}",
        because=[*because, *groups],
        help=f"{working}; or {help_}" if working else help_,
    )


def _of_memory(trials: Trials) -> tuple[list[str], str]:
    """Return the groups of constraints in conflict, and what says which budget works.

    Raises:
        TimeIsUp: the time limit is over.
        IrcError: what is wrong with the model.
    """
    devices = trials.devices
    works = working_budget(trials, devices)
    own = Configuration(staged_mesh(1, devices, 1)) if works is None else works.configuration
    budget, bound = trials.judge.budget_bytes(own), least_bytes(trials.judge.outline(), own)
    groups = [f"group memory: memory_bytes={budget}; no plan of {own} holds less than {bound}"]
    if works is None:
        return groups, ""
    groups += [f"group {pin}" for pin in pins_in_conflict(trials, own)]
    return groups, f"{works.num_bytes} bytes do for {own}, the least of those tried; less may do"
