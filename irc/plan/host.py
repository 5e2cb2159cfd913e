"""A plan whose values decide how often its parts run: a host program, and a plan for each region.

    FOLDER/host.json            sizes, regions, digests
    FOLDER/host.mlir            the host program: loops, branches, calls of regions (level flow)
    FOLDER/weights.safetensors  every weight once
    FOLDER/native/              the program without torch (:mod:`irc.plan.native_host`)
    FOLDER/regions/region_0/    a plan; its weights.json says where in that file its weights are

The text of a region's ops stands in the host program too: it is what the plan of the region is held
against, and what runs at sizes for which that plan was not made.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from irc.errors import IrcError
from irc.plan import built, json_text
from irc.plan.digests import note_weights, write_digests
from irc.plan.files import MANIFEST, WEIGHTS, read_file
from irc.plan.in_notebook import InNotebook
from irc.plan.json_text import corrupt
from irc.plan.load import Code, LoadedPlan, load_plan
from irc.plan.open_sizes import HostSize, QuotientSize, SizeCondition
from irc.plan.save import check_target, published, save_plan
from irc.plan.trust import is_trusted
from irc.plan.version import FORMAT, check_format
from irc.plan.weights import Reference, write_safetensors

HOST = "host.json"
PROGRAM = "host.mlir"
REGIONS = "regions"
NAME = re.compile(r"region_[0-9]{1,6}")


@dataclass(frozen=True)
class HostRegion:
    """A region.

    Attributes:
        hash: of its plan; empty where it has none.
        reason: why it has none, and its ops run one by one.
    """

    hash: str = ""
    reason: str = ""


@dataclass(frozen=True)
class HostFacts:
    """The content of host.json.

    Attributes:
        program: SHA-256 of host.mlir.
        irc: the version that wrote it.
        regions: by name.
        inputs: names of the inputs in order.
        outputs: names of the outputs in order.
        symbols: sizes of inputs that are open.
        quotients: sizes that follow from others.
        conditions: what the sizes of inputs have to meet.
    """

    program: str
    irc: str
    regions: Mapping[str, HostRegion]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    symbols: tuple[HostSize, ...] = ()
    quotients: tuple[QuotientSize, ...] = ()
    conditions: tuple[SizeCondition, ...] = ()
    format: int = FORMAT


@dataclass(frozen=True)
class HostPlan(InNotebook):
    """A host program and the plans of its regions.

    Attributes:
        facts: the content of host.json.
        text: the host program.
        regions: plans by name; regions without one are left out.
        folder: where it lies.
        weights: by name, of one that is not read from a folder.
        code: whose it is, as of :class:`irc.plan.load.LoadedPlan`.
    """

    facts: HostFacts
    text: str
    regions: Mapping[str, LoadedPlan]
    folder: Path | None = None
    weights: Mapping[str, Any] = field(default_factory=dict[str, Any])
    code: Code = "own"

    @cached_property
    def hash(self) -> str:
        """The hash of everything but the values of weights."""
        return hashlib.sha256(_facts_text(self.facts).encode()).hexdigest()


def host_plan(
    facts: HostFacts, text: str, regions: Mapping[str, LoadedPlan], weights: Mapping[str, Any]
) -> HostPlan:
    """Put a plan together in memory; digests and the version are filled in."""
    version: str = import_module("irc").__version__
    digest = hashlib.sha256(text.encode()).hexdigest()
    filled = HostFacts(
        digest, version, facts.regions, facts.inputs, facts.outputs, facts.symbols,
        facts.quotients, facts.conditions,
    )  # fmt: skip
    return HostPlan(filled, text, regions, weights=weights)


def save_host(
    folder: str | Path,
    plan: HostPlan,
    *,
    force: bool = False,
    also: Callable[[Path], None] | None = None,
) -> None:
    """Write a plan and its weights into a new folder.

    Args:
        folder: the place.
        plan: the host program.
        force: replace a plan that is there.
        also: writes what else is to lie beside them.

    Raises:
        IrcError: ``output-exists``, or ``option-value`` where the place cannot be written.
    """
    target = Path(folder).absolute()
    check_target(target, force=force)
    try:
        with published(target) as place:
            (place / PROGRAM).write_text(plan.text, encoding="utf-8")
            (place / HOST).write_text(_facts_text(plan.facts), encoding="utf-8")
            for name, region in plan.regions.items():
                named = [region.plan.buffers[index].name for index in region.plan.weights]
                references = {
                    weight: Reference(f"../../{WEIGHTS}", weight)
                    for weight in sorted(set(named) & set(plan.weights))
                }
                save_plan(place / REGIONS / name, region, references=references)
            write_safetensors(place / WEIGHTS, plan.weights)
            write_digests(place)
            if also is not None:
                also(place)
    except OSError as error:
        raise IrcError(
            "option-value", f"cannot write the plan to '{folder}': {error.strerror}"
        ) from error
    built.note(plan.hash)
    note_weights(target)


def is_host(folder: str | Path) -> bool:
    """True where a folder holds a host program, and is no plan by itself."""
    place = Path(folder)
    return (place / HOST).is_file() and not (place / MANIFEST).is_file()


def load_host(folder: str | Path, *, trust: bool = False) -> HostPlan:
    """Read and verify a folder.

    Args:
        folder: of the host program.
        trust: run its code as it is, whoever wrote it.

    Raises:
        IrcError: ``plan-missing``, ``plan-version`` or ``plan-corrupt``; ``signature-invalid``.
    """
    place = Path(folder)
    if not (place / HOST).is_file():
        raise IrcError("plan-missing", f"no plan in '{folder}': it has no {HOST}")
    content = read_file(place, HOST, json_text.MAX_BYTES)
    trust = trust or is_trusted(place, HOST, hashlib.sha256(content).hexdigest())
    data = json_text.parse_object(content, str(place / HOST))
    check_format(data.get("format"), str(place / HOST))
    facts: HostFacts = json_text.decode(HostFacts, data, str(place / HOST))
    text = read_file(place, PROGRAM)
    if hashlib.sha256(text).hexdigest() != facts.program:
        raise corrupt(f"the content of {PROGRAM} is not what {HOST} says", str(place / PROGRAM))
    regions: dict[str, LoadedPlan] = {}
    for name, region in facts.regions.items():
        if not NAME.fullmatch(name):
            raise corrupt(f"{name[:80]!r} is not the name of a region", str(place / HOST))
        if not region.hash:
            continue
        regions[name] = load_plan(place / REGIONS / name, trust=trust)
        if regions[name].hash != region.hash:
            raise corrupt(f"region {name} is not the one that {HOST} says", str(place))
    if any(each.input >= len(facts.inputs) for each in facts.symbols):
        raise corrupt("a size stands in an input that there is not", str(place / HOST))
    return HostPlan(
        facts,
        text.decode("utf-8", "replace"),
        regions,
        place,
        code="trusted" if trust else "unknown",
    )


def _facts_text(facts: HostFacts) -> str:
    return json_text.dump({"format": facts.format, **json_text.encode(facts)})
