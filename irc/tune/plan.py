"""Times the kernels and library ops of a plan on this machine, where they run: inside the plan.

A kernel alone, called again and again, finds its data in the cache; inside the plan it finds there
what the ops before it left. So the plan runs as a whole, recorded (:mod:`irc.runtime.recorder`).
One rank is timed, its peers taken to be waiting, and the simulator shares the cores; as many more
as there are cores for compute meanwhile (:mod:`irc.tune.beside`).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from irc.cluster.host import num_cores
from irc.cost.measured import Typed, kernel_key, library_key, load_times, save_times
from irc.logs import PROGRESS, tell_share
from irc.plan.load import LoadedPlan
from irc.plan.schema import Call, Copy, Kernels, Library, Plan, Step
from irc.runtime.actions import POSITIONAL
from irc.runtime.code import runnable
from irc.runtime.processes import threads_per_process
from irc.runtime.recorder import HostClock, Recorder
from irc.runtime.segments import load_segments
from irc.simulate.actions import Cores
from irc.simulate.plan import Contention, predict, stated_seconds
from irc.trace.form import KERNEL
from irc.trace.rows import DID, Recorded
from irc.tune.alone import rank_alone
from irc.tune.beside import ranks_beside
from irc.tune.others import UNKNOWN, Others, others_since

ROUNDS = 9


@dataclass(frozen=True)
class Measured:
    """One kernel or library op of a plan.

    Attributes:
        name: of the kernel or op.
        calls: how often a call of the plan runs it.
        seconds: median of one, over the calls of the plan that were disturbed least.
        stated_s: what the plan states for one; None where it states nothing.
    """

    name: str
    calls: int
    seconds: float
    stated_s: float | None


@dataclass(frozen=True)
class Tuned:
    """What `tune_plan` found.

    Attributes:
        rows: kernels and library ops, the most expensive first.
        path: the table that they were added to; None where other programs computed meanwhile.
        stated_s: seconds of a call as the plan states it.
        predicted_s: the same with the measured times.
        others: what other programs computed meanwhile.
    """

    rows: tuple[Measured, ...]
    path: str | None
    stated_s: float
    predicted_s: float
    others: Others = UNKNOWN

    def __str__(self) -> str:
        lines = [f"{'':<28}{'calls':>6}{'measured':>14}{'stated':>14}"]
        for row in self.rows:
            stated = "-" if row.stated_s is None else f"{row.stated_s * 1e6:.1f} us"
            lines.append(f"{row.name:<28}{row.calls:>6}{row.seconds * 1e6:>11.1f} us{stated:>14}")
        lines.append(
            f"a call: {self.stated_s * 1e3:.3g} ms as stated, {self.predicted_s * 1e3:.3g} ms with"
            " what was measured"
        )
        if self.path is not None:
            lines.append(f"written to {self.path}; plans compiled for this-host from now on use it")
        return "\n".join(lines)


def tune_plan(
    loaded: LoadedPlan,
    *,
    rounds: int = ROUNDS,
    seed: int = 0,
    anyway: bool = False,
    imports: Sequence[str] = (),
) -> Tuned:
    """Time a plan's kernels and library ops, and add them to this machine's table.

    What is measured while other programs compute is not added.

    Args:
        loaded: a plan with kernels that run here.
        rounds: how often the plan is run.
        seed: of its random inputs.
        anyway: add it all the same.
        imports: files and modules that the plan's ops are of, for the ranks that compute beside it.

    Raises:
        IrcError: the plan does not run here, or the cache folder is not private.
    """
    plan = loaded.plan
    threads = threads_per_process(plan.device_mesh.num_ranks)
    since = others_since()
    samples = _samples(loaded, threads, rounds, seed, imports)
    others = since()
    keys = _keys(loaded, threads)
    by_key: dict[str, list[float]] = defaultdict(list)
    for key, seconds in zip(keys, samples, strict=True):
        if key is not None:
            by_key[key].append(seconds)
    medians = {key: median(seconds) for key, seconds in by_key.items()}
    path = save_times(load_times().with_(medians)) if anyway or not others.busy else None
    steps = _timed_steps(plan)
    return Tuned(
        _rows(plan, steps, keys, medians),
        path,
        _predicted(plan, stated_seconds, threads),
        _predicted(plan, _with_measured(steps, keys, medians), threads),
        others,
    )


def _predicted(plan: Plan, seconds: Callable[[Step], float], threads: int) -> float:
    return predict(plan, seconds, Contention(Cores(num_cores() / threads), threads=threads)).seconds


def _with_measured(
    steps: Sequence[Step], keys: Sequence[str | None], medians: Mapping[str, float]
) -> Callable[[Step], float]:
    known = {
        id(step): medians[key] for step, key in zip(steps, keys, strict=True) if key is not None
    }
    return lambda step: known.get(id(step), stated_seconds(step))


def _rows(
    plan: Plan, steps: Sequence[Step], keys: Sequence[str | None], medians: Mapping[str, float]
) -> tuple[Measured, ...]:
    of_key: dict[str, list[Step]] = defaultdict(list)
    for step, key in zip(steps, keys, strict=True):
        if key is not None:
            of_key[key].append(step)
    rows = [
        Measured(_name(plan, same[0]), len(same), medians[key], getattr(same[0], "seconds", None))
        for key, same in of_key.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.calls * row.seconds))


def _name(plan: Plan, step: Step) -> str:
    return plan.kernels[step.kernel].name if isinstance(step, Call) else getattr(step, "op", "")


def _timed_steps(plan: Plan) -> list[Step]:
    """Return what is timed: launches one by one, and library ops, in the order of the plan."""
    return [step for step in _recorded_steps(plan) if not isinstance(step, Copy)]


def _recorded_steps(plan: Plan) -> list[Step]:
    """Return what a recorder notes as kernels: what is timed, and copies."""
    noted: list[Step] = []
    for action in plan.actions:
        if isinstance(action, Kernels):
            noted += action.calls
        elif isinstance(action, Library | Copy):
            noted.append(action)
    return noted


def _keys(loaded: LoadedPlan, threads: int) -> list[str | None]:
    plan = loaded.plan
    texts = loaded.kernel_sources()
    kernels = [kernel_key(texts[k.name], k.name, threads) for k in plan.kernels]

    def key(step: Step) -> str | None:
        if isinstance(step, Call):
            return kernels[step.kernel]
        if not isinstance(step, Library) or step.op in POSITIONAL:
            return None
        inputs, outputs = ([_typed(plan, i) for i in side] for side in (step.inputs, step.outputs))
        return library_key(step.op, step.attrs, inputs, outputs, threads)

    return [key(step) for step in _timed_steps(plan)]


def _typed(plan: Plan, index: int) -> Typed:
    buffer = plan.buffers[index]
    return buffer.shape, buffer.dtype


def _samples(
    loaded: LoadedPlan, threads: int, rounds: int, seed: int, imports: Sequence[str]
) -> list[float]:
    """Return the seconds of each timed step, in the order of the plan."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        PROGRESS.info("weights and kernels")
        recorder = Recorder(0, loaded.plan.device_mesh, HostClock())
        run = rank_alone(loaded, 0, threads, seed=seed, recorder=recorder)
        run()
        taken: list[list[float]] = []
        with ranks_beside(loaded, threads, imports):
            for number in range(1, max(rounds, 1) + 1):
                tell_share("timing call", number, max(rounds, 1))
                taken.append(_timed(loaded.plan, recorder.record(run)))
            overhead_s = _call_s(loaded, threads)
    finally:
        torch.set_num_threads(before)
    # The calls that were disturbed least, as a run reports its best call: parts of one call, so
    # that they add up to it.
    kept = sorted(taken, key=sum)[: max(1, len(taken) // 3)]
    return [max(median(column) - overhead_s, 0.0) for column in zip(*kept, strict=True)]


def _timed(plan: Plan, recorded: Recorded) -> list[float]:
    """Return the seconds of what is timed, in the order of the plan."""
    rows = (row for row in recorded.rows if (row.form, row.kind) == (DID, KERNEL))
    # Copies are recorded as well; a library op may bear their name.
    noted = zip(_recorded_steps(plan), rows, strict=True)
    return [row.end_s - row.begin_s for step, row in noted if not isinstance(step, Copy)]


def _call_s(loaded: LoadedPlan, threads: int) -> float:
    """Return what a native call from Python costs, which the plan pays once for many launches."""
    if not loaded.plan.kernels:
        return 0.0
    (empty,) = load_segments(runnable(loaded), [[]], threads)
    taken: list[float] = []
    for _ in range(50):
        start = time.perf_counter()
        empty.run(0)
        taken.append(time.perf_counter() - start)
    return min(taken)
