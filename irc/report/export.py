"""``irc export``: a plan's placements in the words of other systems, to be used without irc.

parallelize-module   Python: a dictionary for torch.distributed.tensor.parallel
torchtitan           TOML: the section [parallelism]; of a plan in stages, all that a trainer needs
megatron             arguments of Megatron-LM; of a plan in stages only
json                 every placement, as DTensor and OneFlow write it
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from irc.errors import IrcError, did_you_mean
from irc.plan.parts_files import is_parts
from irc.report.axes import MEANING
from irc.report.evidence import Evidence
from irc.report.exported import Export, dtensor_of
from irc.report.styles import Style
from irc.report.weights import entry_arguments


def export_plan(folder: str | Path, form: str) -> str:
    """Write a plan for another system.

    Args:
        folder: the plan.
        form: ``parallelize-module``, ``torchtitan``, ``megatron`` or ``json``.

    Raises:
        IrcError: for a folder that is no plan, or a plan for one device.
    """
    if form not in (known := (*FORMS, "megatron")):
        raise IrcError(
            "option-value", f"there is no format '{form}'", help=did_you_mean(form, known)
        )
    if is_parts(folder):
        return _in_stages(folder, form)
    evidence = Evidence.of(folder)
    if form == "megatron":
        raise IrcError(
            "option-value",
            "Megatron-LM is given arguments for a plan in stages, and this plan has none",
            help="irc compile --mesh pipe=2,data=2 --train adamw; irc plan -o FILE.args writes "
            "those of a search",
        )
    if not evidence.mesh.axes:
        raise IrcError(
            "option-value",
            "the plan is for one device: it has no placements to export",
            help="compile it with --mesh",
        )
    return FORMS[form](Export(evidence))


def _in_stages(folder: str | Path, form: str) -> str:
    from irc.plan.parts_files import load_parts
    from irc.report.pipeline_settings import pipeline_settings

    if form == "torchtitan" or form == "megatron":
        return pipeline_settings(load_parts(folder), form)
    raise IrcError(
        "option-value",
        f"a plan in stages is not written as {form}",
        because="the placements of a stage are those of a program of its own",
        help="irc export --format torchtitan, or megatron",
    )


def _python(export: Export) -> str:
    from irc.report.parallelize import python_source

    return python_source(export)


def _toml(export: Export) -> str:
    from irc.report.torchtitan import parallelism_section

    return parallelism_section(export)


def _json(export: Export) -> str:
    evidence = export.evidence
    return (
        json.dumps(
            {
                "plan": evidence.loaded.hash,
                "mesh": dict(evidence.mesh.axes),
                "cluster": evidence.cluster,
                "axes": {a: {"role": r, "meaning": MEANING[r]} for a, r in export.roles.items()},
                "arguments": {
                    one.name: {
                        "role": one.role,
                        "shape": list(one.shape),
                        "dtype": one.dtype,
                        "placements": list(dtensor_of(one, evidence)),
                        "bytes_per_rank": one.bytes_per_rank,
                    }
                    for one in entry_arguments(evidence)
                },
                "modules": {
                    axis: {name: _style(style) for name, style in styles.modules.items()}
                    for axis, styles in export.styles.items()
                },
                "not_expressible": export.losses(),
            },
            indent=1,
        )
        + "\n"
    )


def _style(style: Style) -> dict[str, str]:
    return {"style": style.name, "input": str(style.takes), "output": str(style.gives)}


FORMS: Mapping[str, Callable[[Export], str]] = {
    "parallelize-module": _python,
    "torchtitan": _toml,
    "json": _json,
}
