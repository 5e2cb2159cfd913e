"""Python source that shards a module as a plan does, by ``parallelize_module`` alone.

Names of the user's are data: they come into the source as quoted strings, and into comments with
control characters escaped.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping

from irc.dialects.placement import AxisPlacement, Split
from irc.errors import printable
from irc.report.axes import MEANING
from irc.report.exported import Export
from irc.report.styles import Style
from irc.sharding.dtensor import to_dtensor

HEAD = '''"""Shard a module as irc planned it (plan {plan}), with PyTorch alone.

    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cuda", {sizes}, mesh_dim_names={names})
    model = parallelize(model, mesh)

Written by `irc export`.
"""
'''

FUNCTION = '''
def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard the weights in place, and hook the collectives to the modules."""
    for axis, size in MESH.items():
        if mesh[axis].size() != size:
            raise ValueError(f"the plan has {size} ranks on axis {axis}, not {mesh[axis].size()}")
    for axis, plan in PLAN.items():
        parallelize_module(model, mesh[axis], plan)
    return model
'''


def python_source(export: Export) -> str:
    """Write the module."""
    mesh = export.evidence.mesh
    sizes, names = tuple(size for _, size in mesh.axes), mesh.names
    head = HEAD.format(plan=export.evidence.loaded.hash[:16], sizes=sizes, names=_quoted(names))
    plan = _plan(export)
    placements = [_placement(export, entry) for entry in _placements(export).items()]
    body = [
        f"MESH = {{{', '.join(f'{_quote(name)}: {size}' for name, size in mesh.axes)}}}",
        "",
        *(_comment(f"{axis}: {MEANING[role]}") for axis, role in export.roles.items()),
        *_sequence_note(export),
        *plan,
        "",
        *_comments(export.losses()),
        "# How irc stores each parameter, for distribute_tensor:",
        "PLACEMENTS = {",
        *placements,
        "}",
        "",
    ]
    imports = _imports("\n".join(body))
    return "\n".join([head, *imports, "", *body, FUNCTION.rstrip()]) + "\n"


def _imports(body: str) -> list[str]:
    tensor = [name for name in ("Partial", "Replicate", "Shard") if f"{name}(" in body]
    lines = ["from torch import nn", "from torch.distributed.device_mesh import DeviceMesh"]
    if tensor:
        lines.append(f"from torch.distributed.tensor import {', '.join(tensor)}")
    styles = ("ColwiseParallel", "RowwiseParallel", "SequenceParallel")
    used = [name for name in styles if f"{name}(" in body]
    lines += [
        "from torch.distributed.tensor.parallel import (",
        *(f"    {name}," for name in (*used, "parallelize_module")),
        ")",
    ]
    if "_StridedShard(" in body:
        lines.append("from torch.distributed.tensor.placement_types import _StridedShard")
    return lines


def _plan(export: Export) -> list[str]:
    axis = export.tensor_axis
    if not axis:
        return ["PLAN: dict[str, dict] = {}  # no weight of a Linear or Embedding is split"]
    styles = export.styles[axis]
    lines = {name: _style(style) for name, style in styles.modules.items()}
    lines |= {
        name: "SequenceParallel(use_local_output=True)"
        for name in styles.norms
        if name not in styles.modules
    }
    known = {one.name.rpartition(".")[0] for one in export.parameters}
    entries = [f"        {_quote(name)}: {text}," for name, text in collapsed(lines, known).items()]
    return ["PLAN = {", f"    {_quote(axis)}: {{", *entries, "    },", "}"]


def _style(style: Style) -> str:
    takes, gives = style.default
    arguments = [
        f"{name}={_layout(placed, last)}"
        for name, placed, default, last in (
            ("input_layouts", style.takes, takes, style.last[0]),
            ("output_layouts", style.gives, gives, style.last[1]),
        )
        if placed != default
    ]
    return f"{style.name}({', '.join(arguments)})"


def _layout(placed: AxisPlacement, last: Split) -> str:
    if not isinstance(placed, Split):
        return "Replicate()"
    # Torch counts the last dim from the end, so that the style fits inputs of any rank.
    return "Shard(-1)" if placed == last else f"Shard({placed.dim})"


def collapsed(lines: Mapping[str, str], known: Iterable[str] = ()) -> dict[str, str]:
    """Write names that differ in one number with a ``*``, where all of them say the same.

    >>> collapsed({"h.0.up": "C", "h.1.up": "C", "h.0.x": "C", "h.1.x": "R"})
    {'h.*.up': 'C', 'h.0.x': 'C', 'h.1.x': 'R'}

    Args:
        lines: what is said of each name.
        known: all names; a star that one of them fits of which nothing is said is not written.
    """
    silent = {_starred(name) for name in known if name not in lines}
    groups: dict[str, list[str]] = {}
    for name in lines:
        groups.setdefault(_starred(name), []).append(name)
    starred: dict[str, str] = {}
    for star, names in groups.items():
        texts = {lines[name] for name in names}
        if len(names) > 1 and len(texts) == 1 and star not in silent:
            starred[star] = texts.pop()
        else:
            starred |= {name: lines[name] for name in names}
    return starred


def _starred(name: str) -> str:
    """Write the first number of a name as a star: torch matches names one component at a time."""
    return re.sub(r"(^|\.)[0-9]+(?=\.)", r"\1*", name, count=1)


def _placements(export: Export) -> dict[str, str]:
    mesh = export.evidence.mesh
    texts = {
        one.name: f"[{', '.join(to_dtensor(one.placement, mesh))}]"
        for one in export.parameters
        if one.placement is not None
    }
    return collapsed(texts)


def _placement(export: Export, entry: tuple[str, str]) -> str:
    name, text = entry
    return f"    {_quote(name)}: {text},"


def _sequence_note(export: Export) -> Iterable[str]:
    if export.tensor_axis and export.styles[export.tensor_axis].norms:
        yield "# Activations between modules are split along dim 1 (sequence parallelism)."


def _comments(losses: Iterable[str]) -> list[str]:
    texts = list(losses)
    if not texts:
        return ["# The plan's placements are expressed in full.", ""]
    lines = (_comment(t if t.startswith(" ") else f"- {t}") for t in texts)
    return ["# Not in the styles above:", *lines, ""]


def _comment(text: str) -> str:
    """Write a comment of as many lines as it takes."""
    plain = printable(text).replace("\n", " ")
    indent = " " * (len(plain) - len(plain.lstrip(" -"))) if plain[:1] in (" ", "-") else ""
    lines = textwrap.wrap(plain, 96, subsequent_indent=indent, break_long_words=False)
    return "\n".join(f"# {line}" for line in lines)


def _quote(text: str) -> str:
    """Write a string literal, with double quotes where the text has none.

    >>> print(_quote("plain"), _quote('say "so"'))
    "plain" 'say "so"'
    """
    literal = ascii(text)
    return f'"{literal[1:-1]}"' if literal[0] == "'" and '"' not in literal else literal


def _quoted(names: Iterable[str]) -> str:
    texts = [_quote(name) for name in names]
    return f"({', '.join(texts)}{',' * (len(texts) == 1)})"
