"""The content of parts.json: what a plan of several programs consists of, with the hashes of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module

from irc.plan import json_text
from irc.plan.schema import AxisCut
from irc.plan.version import FORMAT, check_format
from irc.training.slices import Sliced


@dataclass(frozen=True)
class ChannelFacts:
    """A value that goes from a part to another.

    Attributes:
        name: of the value.
        producer: the part that makes it, counted from the first stage.
        consumer: the part that reads it.
        register: by which name the producer hands it on.
        shape: of the whole value.
        dtype: irc's short name.
        before: how the producer's mesh holds it; empty: whole on each rank.
        after: how the consumer's is to.
        over: parts between the two that micro-batches leave out whose value goes so.
    """

    name: str
    producer: int
    consumer: int
    register: str
    shape: tuple[int, ...]
    dtype: str
    before: tuple[AxisCut, ...] = ()
    after: tuple[AxisCut, ...] = ()
    over: tuple[int, ...] = ()


@dataclass(frozen=True)
class PartsFacts:
    """The content of parts.json.

    Attributes:
        mesh: of the whole run; its axis ``pipe`` counts the ranks of the schedule.
        schedule: SHA-256 of schedule.txt.
        parts: of each part, in the order of a micro-batch, the hash of each function's plan.
        channels: between them.
        shared: weights that several parts have, with those parts: their gradients are added up.
        inputs: names of the inputs of a step in order.
        cut: which of them are cut into micro-batches along their first dim.
        loss: name of the result that is the loss.
        fixed: by which names a user fixed what each part computes, empty where that was chosen.
        slices: weights that ranks hold in slices: an output layer of its vocabulary, a projection
            of what its parts are for.
        samples: of the whole batch, where micro-batches do not share it equally; else 0.
        offload: where values of registers lie while no function uses them: ``disk``, or ``host``,
            the memory of a GPU's host; empty: in their slots.
        moved: by part, the registers whose values go there; empty without offload.
        ahead: for how many actions of its rank a message has a slot before it is read and after it
            was made, and a move likewise (:func:`irc.schedule.tape_writer.tapes_of`).
        files: SHA-256 of each further file that is beside the parts, by name.
        irc: the version that wrote it.
    """

    mesh: str
    schedule: str
    parts: tuple[Mapping[str, str], ...]
    channels: tuple[ChannelFacts, ...]
    shared: Mapping[str, tuple[int, ...]]
    inputs: tuple[str, ...]
    cut: tuple[str, ...]
    loss: str
    fixed: tuple[str, ...]
    slices: Mapping[str, Sliced] = field(default_factory=dict[str, Sliced])
    samples: int = 0
    offload: str = ""
    moved: tuple[tuple[str, ...], ...] = ()
    ahead: int = 1
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    irc: str = ""
    format: int = FORMAT


def parse_facts(text: bytes, where: str) -> PartsFacts:
    """Read parts.json.

    Raises:
        IrcError: ``plan-corrupt`` or ``plan-version``.
    """
    data = json_text.parse_object(text, where)
    check_format(data.pop("format", None), where)
    facts: PartsFacts = json_text.decode(PartsFacts, data, where)
    return facts


def schedule_digest(text: str) -> str:
    """Return what parts.json says of schedule.txt."""
    return hashlib.sha256(text.encode()).hexdigest()


def irc_version() -> str:
    """Return the version that writes a plan."""
    version: str = import_module("irc").__version__
    return version
