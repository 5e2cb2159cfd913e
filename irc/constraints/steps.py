"""Constraints on a step of training: its micro-batches, and what backward computes again by layer.

``recompute layers.{0-15} = full`` and ``micro-batches = 8`` (``grammar/sharding.lark``) hold beside
what an option says of all layers, and in its place.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from irc.constraints.pins import (
    INLINE,
    Pins,
    constraint_text,
    constraint_tree,
    parse_constraints,
    pins_option,
    place,
)
from irc.dialects.globs import matches_glob
from irc.errors import IrcError, did_you_mean
from irc.training.layer_policies import EVERY, FIRST, LayerPolicy, parse_policies, policies_text
from irc.training.policies import policy_names
from irc.training.stage_names import named_by

COUNTED = (EVERY, FIRST)
STEP = ("recompute", "micro_batches")
"""What ``grammar/sharding.lark`` calls constraints on a step."""


@dataclass(frozen=True)
class StepPins:
    """What constraints say of a step.

    Attributes:
        micro_batches: of a step; None where nothing is said.
        recompute: by layers; of several that name one layer the last holds.
        where: the file and line of each of these, for messages.
    """

    micro_batches: int | None = None
    recompute: tuple[LayerPolicy, ...] = ()
    where: tuple[str, ...] = ()


def parse_steps(text: str, source: str = INLINE) -> StepPins:
    """Read the constraints on a step among all constraints.

    >>> own = parse_steps("recompute l.*, m = every second matmul; micro-batches = 4")
    >>> own.micro_batches, [f"{each.word}: {each.policy}" for each in own.recompute]
    (4, ['l.*: every-second-matmul', 'm: every-second-matmul'])

    Raises:
        IrcError: ``constraint-syntax``, with the line.
    """
    if re.search(r"\b(recompute|micro-batches)\b", text) is None:
        return StepPins()  # as nearly always; the parser of the grammar takes 40 ms to make
    count, policies, where = None, list[LayerPolicy](), list[str]()
    for node in constraint_tree(text, source).children:
        here = place(node, text, source)
        if node.data == "micro_batches":
            number = int(node.children[0])
            if number < 1 or count not in (None, number):
                raise IrcError(
                    "constraint-syntax",
                    f"a step has 1 micro-batch or more, not {number}"
                    if number < 1
                    else f"a step has {count} micro-batches and {number}",
                    where=here,
                )
            count = number
        elif node.data == "recompute":
            own = _policies(node, here)
            policies += own
            where += [here] * len(own)
    return StepPins(count, tuple(policies), tuple(where))


def _policies(node: Any, where: str) -> list[LayerPolicy]:
    names = [child for child in node.children if hasattr(child, "data")]
    policy = "-".join(str(child) for child in node.children if not hasattr(child, "data"))
    if policy not in (known := policy_names()):
        said = policy.replace("-", " ")
        raise IrcError(
            "constraint-syntax",
            f"there is no policy of recompute '{said}'",
            where=where,
            help=did_you_mean(policy, known) or f"one of {', '.join(known)}",
        )
    policies: list[LayerPolicy] = []
    for name in names:
        word = str(name.children[0]).strip('"')
        if name.data in COUNTED:
            if int(word) < 1:
                raise IrcError(
                    "constraint-syntax", f"{name.data} {word} layers are none", where=where
                )
            word = f"{name.data} {word}"
        policies.append(LayerPolicy(word, policy))
    return policies


def has_others(pins: Pins, kinds: Collection[str]) -> bool:
    """Return whether there are constraints of other kinds.

    Args:
        pins: the constraints.
        kinds: what ``grammar/sharding.lark`` calls these: ``recompute``, ``micro_batches``, ...
    """
    nodes: list[Any] = constraint_tree(*constraint_text(pins)).children if pins else []
    return any(node.data not in kinds for node in nodes)


def names_ops(pins: Pins) -> bool:
    """Return whether constraints name ops of the program as it was captured, or what they are for.

    Others are about arguments, stages and the step.
    """
    if has_others(pins, (*STEP, "stage", "statement")):
        return True
    return any(each.kind != "argument" for each in parse_constraints(*constraint_text(pins)))


def pinned_count(micro_batches: int | None, pins: Pins) -> int | None:
    """Return the micro-batches of a step, where an option or constraints say.

    Raises:
        IrcError: ``option-value`` where both do, and differ; what reading constraints raises.
    """
    stated = parse_steps(*constraint_text(pins)).micro_batches
    if stated is None or micro_batches in (None, stated):
        return micro_batches if stated is None else stated
    raise IrcError(
        "option-value",
        f"micro_batches={micro_batches}, and the constraints say micro-batches = {stated}",
        help="leave one of them out",
    )


def called_pins(pins: Pins) -> str:
    """Return the constraints on a call, as :func:`irc.constraints.pins.pins_option` does.

    Raises:
        IrcError: ``option-value`` for one on a step of training; what reading constraints raises.
    """
    own = parse_steps(*constraint_text(pins)) if pins else StepPins()
    if own.micro_batches is not None or own.recompute:
        said = f"micro-batches = {own.micro_batches}"
        if own.recompute:
            said = f"recompute {own.recompute[0].word} = {own.recompute[0].policy}"
        raise IrcError(
            "option-value",
            f"'{said}' is of a step of training, and this is a call",
            where=own.where[0] if own.where else "",
            help="plan a step (irc plan --train, optimizer='adamw', irc.compile_step), or leave "
            "it out",
        )
    return pins_option(pins)


def pins_on(pins: Pins, names: Collection[str]) -> str:
    """Return the text of constraints without those on arguments that a program does not have.

    A step has arguments (the optimiser's states, targets) that the forward pass alone has not. What
    names nothing at all was refused when the step was planned.

    Args:
        pins: the constraints of a step.
        names: of the arguments that there are.
    """
    text, source = constraint_text(pins)
    nodes: list[Any] = constraint_tree(text, source).children if text.strip() else []
    for node in nodes:
        begin, end = node.meta.start_pos, node.meta.end_pos
        for one in parse_constraints(text[begin:end], source):
            globs = (one.glob, *one.others) if one.kind == "argument" else ()
            if not all(any(matches_glob(glob, name) for name in names) for glob in globs):
                blank = "".join("\n" if sign == "\n" else " " for sign in text[begin:end])
                text = text[:begin] + blank + text[end:]
    return text


def pinned_recompute(policy: str, pins: Pins, names: Iterable[str]) -> str:
    """Return what backward computes again: of all layers, and of those that constraints name.

    Args:
        policy: of all layers; what it says of single ones is overridden.
        pins: the constraints.
        names: of all parameters.

    Raises:
        IrcError: ``input-mismatch`` for a layer that is not there; ``option-value`` beside a policy
            that is searched for.
    """
    own = parse_steps(*constraint_text(pins))
    if not own.recompute:
        return policy
    known = list(names)
    for each, where in zip(own.recompute, own.where, strict=True):
        is_counted = each.word.partition(" ")[0] in COUNTED
        if not is_counted and not named_by(each.word, known):
            modules = sorted({name.rpartition(".")[0] or name for name in known})
            raise IrcError(
                "input-mismatch",
                f"recompute '{each.word}' names no layer that has parameters",
                where=where,
                help=did_you_mean(each.word, modules) or f"there are {', '.join(modules[:6])}, ..",
            )
    base, layers = parse_policies(policy)
    if base == "auto":
        raise IrcError(
            "option-value",
            "recompute='auto' is searched for, and constraints fix that of single layers",
            help=f"choose one for the others: {', '.join(policy_names())}",
        )
    return policies_text(base, (*layers, *own.recompute))


def based_on(policy: str, own: str) -> str:
    """Return a policy of all layers with what another text says of single ones.

    >>> based_on("full", "none; l.0 = selective")
    'full; l.0 = selective'
    """
    base, layers = parse_policies(policy)
    return policies_text(base, (*layers, *parse_policies(own)[1]))
