"""Constraints from the dictionaries of torch.distributed.tensor, and from AutoParallel's solution.

================================================  =============================================
a mapping                                         becomes
================================================  =============================================
``{"l.*.up": ColwiseParallel(), ...}``            ``use "l.*.up" = column-parallel``
``{"tp": {"l.*.up": ColwiseParallel(), ...}}``    the same ``over tp``
``{"l.*.up.weight": [Replicate(), Shard(0)]}``    ``"l.*.up.weight" = (B, S(0))``
``{node: spec}``, as AutoParallel returns it       the same, of nodes that are parameters, buffers
================================================  =============================================

A parallel style says two things: how a module uses its weight, which is what becomes a constraint,
and how tensors lie at its borders (``input_layouts``, ``PrepareModuleInput``), which irc finds by
itself: what it does there computes the same. Objects are told by the names of their classes, so
that torch is not imported here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from irc.errors import IrcError, did_you_mean

STYLES = {
    "ColwiseParallel": "column-parallel",
    "RowwiseParallel": "row-parallel",
    "SequenceParallel": "sequence-parallel",
}
"""torch's styles, and what irc calls the same use of a weight."""

BORDERS = ("PrepareModuleInput", "PrepareModuleOutput", "PrepareModuleInputOutput")
"""Styles that say nothing but how tensors lie at the borders of a module."""

HELD = ("ParamAOTInput", "BufferAOTInput")
"""Descriptors of the inputs of a graph that are the model's own tensors."""


def statements(pins: Mapping[Any, Any]) -> Iterator[str]:
    """Return the constraints that a mapping stands for, as text.

    Args:
        pins: by name or glob, text, a :class:`~irc.dialects.placement.Placement`, a list of DTensor
            placements in the order of the mesh, what has one (a DTensor, its spec), or a parallel
            style; by mesh axis, such a mapping of styles; by node of a graph, what AutoParallel
            returns.

    Raises:
        IrcError: ``dtensor-placement`` for what irc cannot say.
    """
    count = 0
    for key, value in pins.items():
        name = key if isinstance(key, str) else _held(key)
        if name is None:
            continue  # what an op gives: irc plans it again
        count += 1
        if isinstance(value, Mapping):
            for module, style in cast("Mapping[Any, Any]", value).items():
                yield from _line(str(module), style, f" over {name}")
        else:
            yield from _line(name, value, "")
    if pins and not count:
        raise _refused(
            "a mapping of nodes among which is no parameter or buffer",
            "give what AutoParallel's optimize_placement() returns",
        )


def _line(name: str, value: Any, over: str) -> Iterator[str]:
    kind = type(value).__name__
    if kind in BORDERS:
        return
    if kind in STYLES:
        yield f'use "{name}" = {STYLES[kind]}{over}'
        return
    placed = _placements(value)
    if over and placed is None:
        raise _refused(
            f"{kind} for '{name}'{over}",
            did_you_mean(kind, STYLES) or f"use one of: {', '.join(STYLES)}",
        )
    if over:
        raise _refused(f"placements of '{name}'{over}", "give placements by name, for all axes")
    if placed is None:
        if type(value).__module__.partition(".")[0] == "torch":
            raise _refused(f"{kind} for '{name}'", f"use one of: {', '.join(STYLES)}")
        yield f'"{name}" = {value}'
        return
    yield f'"{name}" = ({", ".join(_written(name, placed))})'


def _held(key: Any) -> str | None:
    """Return which of the model's tensors a node of a graph is; None for any other value."""
    meta = getattr(key, "meta", None)
    if not isinstance(meta, Mapping):
        raise _refused(f"a key {key!r}", "give names of parameters or modules, or nodes of a graph")
    described = cast("Mapping[str, Any]", meta).get("desc")
    if type(described).__name__ not in HELD:
        return None
    return str(cast("Any", described).target)


def _placements(value: Any) -> Sequence[Any] | None:
    """Return the DTensor placements that a value is or has; None where it is something else."""
    placements: Any = value
    for name in ("output_specs", "placements"):
        if not isinstance(placements, str | list | tuple):
            placements = getattr(placements, name, placements)
    if not isinstance(placements, list | tuple):
        return None
    return cast("Sequence[Any]", placements)


def _written(name: str, placed: Sequence[Any]) -> Iterator[str]:
    for place, each in enumerate(placed):
        kind, dim = type(each).__name__, _dim(each)
        if kind == "Replicate":
            yield "B"
        elif kind == "Partial" and getattr(each, "reduce_op", "") in ("sum", "max", "min"):
            yield f"P({each.reduce_op})"
        elif dim is None:
            raise _refused(
                f"{each!r} of '{name}'",
                "write Replicate(), Shard(dim) or Partial() of sum, max or min",
            )
        else:
            yield f"S({dim}{_order(name, placed, place, dim)})"


def _order(name: str, placed: Sequence[Any], place: int, dim: int) -> str:
    """Return which of the axes that split one dim this is, by when it applies; "" for the only one.

    They apply in the order of the mesh, but for one whose split factor counts those to its right.
    """
    axes = [n for n, each in enumerate(placed) if _dim(each) == dim]
    strided = [n for n in axes if getattr(placed[n], "split_factor", 1) != 1]
    if not strided:
        return f", {axes.index(place)}" if len(axes) > 1 else ""
    if len(axes) == 2 and strided == axes[:1]:
        return f", {1 - axes.index(place)}"
    raise _refused(
        f"{placed[strided[0]]!r} of '{name}', which {len(axes)} axes split along dim {dim}",
        f'write the order in which they apply: "{name}" = (S({dim}, 1), S({dim}, 2), S({dim}, 0))',
    )


def _dim(placed: Any) -> int | None:
    return int(placed.dim) if type(placed).__name__ in ("Shard", "_StridedShard") else None


def _refused(what: str, help: str) -> IrcError:  # noqa: A002 - as IrcError names it
    return IrcError("dtensor-placement", f"irc has no constraint for {what}", help=help)
