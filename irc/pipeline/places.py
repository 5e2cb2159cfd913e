"""Where passes of plug-ins go in a pipeline: behind one they name, else where their level ends."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.passes import ModulePass

from irc.dialects.levels import LEVELS
from irc.errors import IrcError, did_you_mean
from irc.pipeline.levels import left_level, level, taken_levels
from irc.pipeline.memory import MEMORY
from irc.pipeline.order import OPTIONAL, ORDER
from irc.plugin import package_of

NO = "no-"
"""Before the name of a pass that is left out."""


def chosen(texts: Sequence[str]) -> tuple[list[str], frozenset[str]]:
    """Return which passes of plug-ins are asked for, and which of irc's own are left out.

    Args:
        texts: ``name``, ``name{option=1}``, or ``no-name`` of one that is only faster.

    Raises:
        IrcError: ``pass-unknown`` where no such pass can be left out.

    >>> chosen(["my-pass", "no-order"])
    (['my-pass'], frozenset({'order'}))
    """
    left_out = {text: text.removeprefix(NO) for text in texts if text.startswith(NO)}
    for text, name in left_out.items():
        if name not in OPTIONAL:
            raise IrcError(
                "pass-unknown",
                f"'{text}': no pass '{name}' can be left out",
                help=did_you_mean(name, OPTIONAL) or f"those that can: {', '.join(OPTIONAL)}",
            )
    return [text for text in texts if text not in left_out], frozenset(left_out.values())


def of_one_rank(texts: Sequence[str]) -> list[str]:
    """Return the passes that are asked for without those of irc's that a mesh alone has.

    >>> of_one_rank(["my-pass", "slice-batch{ways=2}", "no-order"])
    ['my-pass', 'no-order']
    """
    of_mesh = {row.name for row in ORDER if row.when.startswith("a mesh")}
    return [text for text in texts if text.partition("{")[0] not in of_mesh]


def insert_all(passes: list[ModulePass], plugins: Sequence[ModulePass]) -> None:
    """Put plug-ins' passes where they say, those first that others go after.

    Those that go to one place keep the order that the user gave.

    Raises:
        IrcError: ``pass-unknown`` for a place that this pipeline does not have; ``pass-level`` for
            one where the program is on a level that the pass does not take.
    """
    waiting = list(plugins)
    while waiting:
        names = {each.name for each in passes}
        ready = [i for i, p in enumerate(waiting) if getattr(p, "after", None) in (None, *names)]
        if not ready:
            raise _placeless(passes, waiting[0])
        plugin = waiting.pop(ready[0])
        passes.insert(_position(passes, plugin), plugin)


def _position(passes: Sequence[ModulePass], plugin: ModulePass) -> int:
    """Return the place behind the pass that a plug-in names, else where its level ends."""
    after, names = getattr(plugin, "after", None), [each.name for each in passes]
    if after is not None:
        place = len(names) - names[::-1].index(after)
        while place < len(passes) and _was_put(passes[place]):
            place += 1
        require_place(plugin, after, levels_at(passes, place))
        return place
    if level(plugin) == "flow+sbp" and "auto-shard" not in names:
        raise IrcError(
            "pass-unknown",
            f"pass '{plugin.name}' works on placements, and one device has none",
            help="choose a mesh, or leave the pass out",
        )
    own = LEVELS.index(level(plugin))
    below = [LEVELS.index(left_level(each)) > own for each in passes]
    if any(below):
        return below.index(True)
    # Where values lie is decided of the program that will run: nothing changes it later.
    return names.index(MEMORY[0]) if MEMORY[0] in names else len(names)


def _was_put(each: ModulePass) -> bool:
    """True for a plug-in's pass that was put behind another."""
    return getattr(each, "after", None) is not None and package_of(type(each)) != "irc"


def _placeless(passes: Sequence[ModulePass], plugin: ModulePass) -> IrcError:
    names = [each.name for each in passes]
    return IrcError(
        "pass-unknown",
        f"pass '{plugin.name}' goes after '{getattr(plugin, 'after', None)}', which this pipeline "
        "does not run",
        because=f"it runs {', '.join(names)}",
    )


def levels_at(passes: Sequence[ModulePass], position: int) -> tuple[str, ...]:
    """Return the levels at which a pass put at a position of a pipeline would find the program.

    On one device nothing leads from flow to spmd: between the passes of both it is on each.
    """
    before = [left_level(each) for each in passes[:position]]
    highest = max((LEVELS.index(name) for name in before), default=0)
    following = [LEVELS.index(level(each)) for each in passes[position:]]
    lowest = max(highest, following[0]) if following else highest
    placed = any(each.name == "auto-shard" for each in passes)
    levels = LEVELS[highest : lowest + 1]
    return levels if placed else tuple(name for name in levels if name != "flow+sbp")


def require_place(each: ModulePass, after: str, possible: Sequence[str]) -> None:
    """Refuse a pass whose ``level`` is not the one behind the pass that it goes after.

    Raises:
        IrcError: ``pass-level``.
    """
    if not any(name in taken_levels(each) for name in possible):
        raise IrcError(
            "pass-level",
            f"pass '{each.name}' works on level {' or '.join(taken_levels(each))}, and goes after "
            f"'{after}', behind which the program is on level {' or '.join(possible)}",
            help=f"change `after` or `level` in the pass; without `after` it runs where level "
            f"{level(each)} ends",
        )
