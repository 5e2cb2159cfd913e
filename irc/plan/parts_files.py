"""Folders of plans of several programs, written and read; :mod:`irc.plan.parts` says what is where.

The plan of a function is a plan folder like any other; its weights.json says where in the one file
of weights its own lie, so that a rank reads those of its stages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from irc.errors import IrcError
from irc.plan import built, json_text
from irc.plan.digests import note_weights, write_digests
from irc.plan.files import MANIFEST, WEIGHTS, check_name, read_file
from irc.plan.json_text import corrupt
from irc.plan.load import LoadedPlan, load_plan
from irc.plan.parts import PARTS, SCHEDULE, PartsPlan
from irc.plan.parts_facts import parse_facts
from irc.plan.parts_verify import KINDS, checked_parts
from irc.plan.save import check_target, published, save_plan
from irc.plan.trust import is_trusted
from irc.plan.weights import Reference, with_values, write_safetensors
from irc.training.slices import cut

FOLDER = "parts"
MAX_PARTS = 4096
"""Parts of a plan that are read: more than any model has layers."""


def is_parts(folder: str | Path) -> bool:
    """True where a folder holds a plan of several programs."""
    place = Path(folder)
    return (place / PARTS).is_file() and not (place / MANIFEST).is_file()


def save_parts(
    folder: str | Path, plan: PartsPlan, tensors: Mapping[str, Any], *, force: bool = False
) -> None:
    """Write a plan and its weights into a new folder.

    Args:
        folder: the place.
        plan: what is written, with its further files (:func:`irc.plan.parts.with_files`).
        tensors: weights, whole, by name; what no part reads is left out.
        force: replace a plan that is there.

    Raises:
        IrcError: ``output-exists``, or ``option-value`` where the place cannot be written.
    """
    target = Path(folder).absolute()
    check_target(target, force=force)
    tensors = cut(plan.sliced, with_values(tensors))
    try:
        with published(target) as place:
            (place / PARTS).write_text(plan.text, encoding="utf-8")
            (place / SCHEDULE).write_text(plan.schedule_text, encoding="utf-8")
            for name, text in plan.texts.items():
                (place / name).parent.mkdir(exist_ok=True)
                (place / name).write_bytes(text)
            for number, part in enumerate(plan.parts):
                for kind, loaded in part.items():
                    save_plan(
                        place / FOLDER / str(number) / kind,
                        loaded,
                        references=_references(loaded, tensors),
                    )
            read = {name: tensors[name] for name in plan.holders if name in tensors}
            write_safetensors(place / WEIGHTS, read)
            write_digests(place)
    except OSError as error:
        raise IrcError(
            "option-value", f"cannot write the plan to '{folder}': {error.strerror}"
        ) from error
    built.note(plan.hash)
    note_weights(target)


def _references(loaded: LoadedPlan, tensors: Mapping[str, Any]) -> dict[str, Reference]:
    named = {loaded.plan.buffers[index].name for index in loaded.plan.weights}
    return {name: Reference(f"../../../{WEIGHTS}", name) for name in sorted(named & set(tensors))}


def load_parts(folder: str | Path, *, trust: bool = False) -> PartsPlan:
    """Read and verify a folder.

    Args:
        folder: of the plan.
        trust: run its code as it is, whoever wrote it.

    Raises:
        IrcError: ``plan-missing``, ``plan-version`` or ``plan-corrupt``; ``signature-invalid``.
    """
    place = Path(folder)
    if not (place / PARTS).is_file():
        raise IrcError("plan-missing", f"no plan of several programs in '{folder}': no {PARTS}")
    content = read_file(place, PARTS, json_text.MAX_BYTES)
    trust = trust or is_trusted(place, PARTS, hashlib.sha256(content).hexdigest())
    facts = parse_facts(content, str(place / PARTS))
    if not 1 <= len(facts.parts) <= MAX_PARTS:
        raise corrupt(f"{len(facts.parts)} parts; 1 to {MAX_PARTS} are read", str(place / PARTS))
    texts: dict[str, bytes] = {}
    for name, digest in facts.files.items():
        check_name(name)
        texts[name] = read_file(place, name)
        if hashlib.sha256(texts[name]).hexdigest() != digest:
            raise corrupt(f"the content of {name} is not what {PARTS} says", str(place / name))
    parts: list[Mapping[str, LoadedPlan]] = []
    for number, hashes in enumerate(facts.parts):
        for kind in hashes:
            if kind not in KINDS:
                raise corrupt(f"{kind[:40]!r} is no function of a part", str(place / PARTS))
        parts.append(
            {kind: load_plan(place / FOLDER / str(number) / kind, trust=trust) for kind in hashes}
        )
    text = read_file(place, SCHEDULE).decode("utf-8", "replace")
    plan = checked_parts(facts, text, tuple(parts))
    if plan.text.encode() != content:
        raise corrupt("it is not written as this irc writes it", str(place / PARTS))
    return replace(plan, texts=texts, folder=place, code="trusted" if trust else "unknown")
