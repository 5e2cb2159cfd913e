"""A folder of several plans of one model: one folder each, and one file of weights for all.

    FOLDER/entries.json         the names of the plans, in order
    FOLDER/weights.safetensors  every weight once
    FOLDER/NAME/                a plan; its weights.json says where in that file its weights are

Each plan stands for itself: ``irc run``, ``irc explain plan`` and ``irc.load`` take FOLDER/NAME.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from irc.errors import IrcError
from irc.plan import json_text
from irc.plan.digests import note_weights, write_digests
from irc.plan.files import WEIGHTS
from irc.plan.load import LoadedPlan
from irc.plan.save import check_target, published, save_plan
from irc.plan.weights import Reference, write_safetensors

ENTRIES = "entries.json"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def save_plans(
    folder: str | Path,
    plans: Mapping[str, LoadedPlan],
    *,
    tensors: Mapping[str, Any],
    names: Mapping[str, Mapping[str, str]],
    force: bool = False,
) -> None:
    """Write plans and their weights into a new folder.

    Args:
        folder: where to.
        plans: by name, which is the name of the plan's folder.
        tensors: weights, whole.
        names: for each plan, the name in ``tensors`` of each of its weights.
        force: replace a folder of plans that is there already.

    Raises:
        IrcError: ``output-exists``; ``option-value`` for a name that is none of a folder.
    """
    for name in plans:
        check_name(name)
    target = Path(folder).absolute()
    check_target(target, force=force, marker=ENTRIES)
    with published(target) as place:
        for name, plan in plans.items():
            known = {plan.plan.buffers[index].name for index in plan.plan.weights}
            references = {
                weight: Reference(f"../{WEIGHTS}", names[name][weight])
                for weight in sorted(known & set(names[name]))
            }
            save_plan(place / name, plan, references=references)
        write_safetensors(place / WEIGHTS, tensors)
        write_digests(place)
        (place / ENTRIES).write_text(json_text.dump({"entries": list(plans)}), encoding="utf-8")
    note_weights(target)


def check_name(name: str) -> None:
    """Refuse a name that cannot be a folder's.

    Raises:
        IrcError: ``option-value``.
    """
    if not NAME.fullmatch(name):
        raise IrcError(
            "option-value",
            f"'{name}' is no name of an entry",
            help="letters, digits, - and _, beginning with a letter",
        )


def entry_names(folder: str | Path) -> list[str]:
    """Return the names of the plans in a folder; an empty list where it holds none.

    Raises:
        IrcError: ``plan-corrupt``.
    """
    path = Path(folder) / ENTRIES
    if not path.is_file():
        return []
    document = json_text.decode(
        Mapping[str, tuple[str, ...]], json_text.parse(path.read_bytes(), str(path)), str(path)
    )
    listed = list(document.get("entries", ()))
    for name in listed:
        check_name(name)
    return listed
