"""``irc check``: which pass, op, placement and source line first computes something else.

The plan folder holds the program after every pass. The first is captured flow: it is run in
float32, which is eager, and in float64, which is the reference. Every later stage is run in float32
by the interpreter of its level, on all ranks of the mesh in one process, and each value is put
together from its shards, its dims in the program's order, and held against the reference under the
id that its op carries. A value is wrong where its error exceeds eager's own by more than reordered
float32 arithmetic explains; where that allows as much as the value itself, it is not judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from irc.errors import IrcError
from irc.interpret.stage_values import AGAIN, Key, Value
from irc.logs import PROGRESS

SLACK = 16.0
"""How many times eager's own error another order of float32 operations may reach."""
FLOOR = 4e-6
"""Relative error that is never a fault: some 32 units in the last place of float32."""
HALF_FLOOR = 0.125
"""The same where values are rounded to half precision, of a unit in their last place."""
UNJUDGED = 1.0
"""Where an error as large as the value is allowed, zeros would pass: nothing can be said."""


@dataclass(frozen=True)
class Fault:
    """The first wrong value of a stage."""

    stage: str
    key: Key
    value: Value
    error: float
    allowed: float

    def render(self) -> str:
        """Say where the fault is, in one paragraph."""
        where = f" placed {self.value.placement}" if self.value.placement else ""
        return (
            f"pass {self.stage}: {self.value.op} (id {self.key[0]}){where} from {self.value.loc} "
            f"has relative error {self.error:.1e}, allowed {self.allowed:.1e}"
        )


@dataclass(frozen=True)
class CheckedStage:
    """A stage whose values agree with the reference.

    Attributes:
        stage: the pass after which the program was run.
        values: how many were compared.
        largest_error: of them, relative to the reference's magnitude.
        allowed: for the value that has it.
    """

    stage: str
    values: int
    largest_error: float
    allowed: float

    def __str__(self) -> str:
        errors = f"{self.largest_error:>15.1e}{self.allowed:>15.1e}"
        return f"{self.stage:<24}{self.values:>8}{errors}"


@dataclass(frozen=True)
class Unjudged:
    """The values that are too sensitive for float32 to be compared.

    Attributes:
        values: how many they are.
        of: how many values the reference has.
        eager_error: the largest relative error of eager itself among them.
        id: of the op whose value that is.
        loc: the user's source line of it.
    """

    values: int
    of: int
    eager_error: float
    id: str
    loc: str

    def __str__(self) -> str:
        return (
            f"not judged: {self.values} of {self.of} values, of which eager is off by up to"
            f" {self.eager_error:.1e} ({self.id} from {self.loc})"
        )


@dataclass(frozen=True)
class CheckReport:
    """A plan whose stages all agree with eager; its text is a table.

    Attributes:
        stages: in their order.
        unjudged: what was not compared, if anything.
    """

    stages: tuple[CheckedStage, ...]
    unjudged: Unjudged | None = None

    def __str__(self) -> str:
        left = [] if self.unjudged is None else [self.unjudged]
        return "\n".join(map(str, [HEAD, *self.stages, *left, "every stage agrees with eager"]))


HEAD = f"{'stage':<24}{'values':>8}{'largest error':>15}{'allowed there':>15}"


def check_plan(folder: str, inputs: str | None = None, *, trust: bool = False) -> CheckReport:
    """Check a plan folder.

    Args:
        folder: what ``irc compile`` wrote.
        inputs: an ``.npz`` file with the inputs by name; random ones by default.
        trust: run ops of others, whoever made the plan.

    Returns:
        Of each stage the number of values compared, the largest error, and what is allowed where
        it is; and the values that are not judged, if any.

    Raises:
        IrcError: ``check-failed`` naming the first pass, op, placement and source line that differ.
    """
    from irc.interpret.stages import plan_stages

    PROGRESS.info("the model, eagerly")
    eager, reference, stages = plan_stages(Path(folder), inputs, trust=trust)
    own = {key: eager[key].error(value) for key, value in reference.items()}
    least = _least(eager)
    allowed = {key: max(least, SLACK * error) for key, error in own.items()}
    judged = {key: most for key, most in allowed.items() if most < UNJUDGED}
    checked: list[CheckedStage] = []
    for number, (name, run) in enumerate(stages.items(), 1):
        PROGRESS.info("after %s, stage %d of %d", name, number, len(stages))
        values = run()
        known = {key: source_of(key) for key in values if source_of(key) in judged}
        errors = {
            key: _own_rows(values[key], reference[source]).error(reference[source])
            for key, source in known.items()
        }
        worst = max(errors, key=lambda key: errors[key], default=None)
        there = (0.0, FLOOR) if worst is None else (errors[worst], judged[known[worst]])
        fault = first_fault(name, values, errors, judged)
        if fault is not None:
            raise IrcError(
                "check-failed",
                fault.render(),
                because=["stages before it agree with eager:", *map(str, checked)],
                help=f"compare ir/ before and after pass {name}, or rerun it: irc opt -p "
                + name.partition(AGAIN)[0],
            )
        checked.append(CheckedStage(name, len(errors), *there))
    return CheckReport(tuple(checked), _unjudged(own, reference, judged))


def _least(eager: Mapping[Key, Value]) -> float:
    """Return the error that is never a fault: what is made of halves may be right by chance."""
    import torch

    dtypes = {whole.dtype for value in eager.values() for whole in value.wholes}
    halves = dtypes & {torch.bfloat16, torch.float16}
    return max([FLOOR, *(HALF_FLOOR * torch.finfo(dtype).eps for dtype in halves)])


def _own_rows(value: Value, wanted: Value) -> Value:
    """Return what is moved of an argument without the rows that pad it."""
    shapes = value.wholes[0].shape, wanted.wholes[0].shape
    is_padded = shapes[0][1:] == shapes[1][1:] and shapes[0][:1] > shapes[1][:1]
    if not is_padded or wanted.op != "argument":
        return value
    return replace(value, wholes=tuple(whole[: shapes[1][0]] for whole in value.wholes))


def _unjudged(
    own: Mapping[Key, float], reference: Mapping[Key, Value], judged: Mapping[Key, float]
) -> Unjudged | None:
    """Return which values are too sensitive for float32 to be compared."""
    left = sorted((key for key in own if key not in judged), key=lambda key: -own[key])
    if not left:
        return None
    first = left[0]
    return Unjudged(len(left), len(own), own[first], first[0], reference[first].loc)


def first_fault(
    stage: str,
    values: Mapping[Key, Value],
    errors: Mapping[Key, float],
    allowed: Mapping[Key, float],
) -> Fault | None:
    """Return the first value in the stage's own order that is wrong, or None."""
    for key, error in errors.items():
        if error > (most := allowed[source_of(key)]):
            return Fault(stage, key, values[key], error, most)
    return None


def source_of(key: Key) -> Key:
    """Return under which key the reference has a value: a boxing holds what it moves.

    >>> source_of(("n4/n24.box0.0", 0)), source_of(("n24", 1))
    (('n4/n24', 0), ('n24', 1))
    """
    path, slash, name = key[0].rpartition("/")
    return path + slash + name.partition(".box")[0], key[1]
