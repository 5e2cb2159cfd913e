"""The plan of a function of a stage, from that of an equal stage: names alone differ."""

from __future__ import annotations

from dataclasses import replace

from irc.plan.files import MANIFEST, parse_manifest
from irc.plan.load import LoadedPlan
from irc.plan.save import make_plan
from irc.plan.schema import Action, Buffer, Call, Kernels, Plan, Start
from irc.programs.equal_stages import Renaming


def renamed_plan(loaded: LoadedPlan, names: Renaming) -> LoadedPlan:
    """Return the plan of the same function in a stage that calls values and ops otherwise.

    Everything that is worked out stays: kernels, memory, times. Buffers, actions and the kept
    texts get the other names, so that the plan is the one that the other stage would be given.

    Args:
        loaded: of the stage that was planned.
        names: from its names to those of the other.
    """
    if not loaded.manifest:  # it was priced, and has no files
        return LoadedPlan(_renamed(loaded.plan, names), {}, b"")
    ir = {name: names.apply_to_text(text) for name, text in _texts(loaded, "ir/").items()}
    kernels = _texts(loaded, "kernels/")
    torch_version = parse_manifest(loaded.manifest, MANIFEST).torch
    return make_plan(
        _renamed(loaded.plan, names), ir=ir, kernels=kernels, torch_version=torch_version
    )


def _texts(loaded: LoadedPlan, first: str) -> dict[str, str]:
    """Return the files of one folder of a plan, by their names in it."""
    return {
        name.removeprefix(first): text.decode()
        for name, text in loaded.texts.items()
        if name.startswith(first)
    }


def _renamed(plan: Plan, names: Renaming) -> Plan:
    return replace(
        plan,
        buffers=tuple(_buffer(each, names) for each in plan.buffers),
        prepared=tuple(_action(each, names) for each in plan.prepared),
        actions=tuple(_action(each, names) for each in plan.actions),
    )


def _buffer(buffer: Buffer, names: Renaming) -> Buffer:
    op, sign, result = buffer.source.partition("#")
    return replace(buffer, name=names.value(buffer.name), source=f"{names.op(op)}{sign}{result}")


def _action(action: Action, names: Renaming) -> Action:
    match action:
        case Kernels():
            return replace(action, calls=tuple(_call(each, names) for each in action.calls))
        case Start() if "bucket" in action.attrs:
            attrs = {**action.attrs, "bucket": names.op(action.attrs["bucket"])}
            return replace(action, id=names.op(action.id), attrs=attrs)
        case _:
            return replace(action, id=names.op(action.id))


def _call(call: Call, names: Renaming) -> Call:
    return replace(call, id=names.op(call.id))
