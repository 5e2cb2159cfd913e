"""What the user fixes: placements of entry arguments, by glob on their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from xdsl.context import Context
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError

from irc.dialects.builder import arguments, entry
from irc.dialects.flow import tensor
from irc.dialects.placement import B, Mesh, Placement, Split
from irc.dialects.types import PlacementAttr, parse_placement
from irc.errors import IrcError, did_you_mean
from irc.sharding.boxing import even_shape


def parse_pins(text: str) -> dict[str, Placement]:
    """Read ``GLOB = [axis = S(0), ...]; GLOB = ...``.

    >>> str(parse_pins("*.weight = [tensor = S(1)]")["*.weight"])
    '[tensor = S(1)]'

    Raises:
        IrcError: ``placement-syntax``.
    """
    pins: dict[str, Placement] = {}
    for part in filter(None, (p.strip() for p in text.split(";"))):
        glob, _, placement = part.partition("=")
        try:
            parser = Parser(Context(), placement.strip(), "<pins>")
            pins[glob.strip()] = parse_placement(parser)
            if rest := parser.parse_optional_identifier():
                raise ValueError(f"'{rest}' follows the placement")
        except (ParseError, ValueError) as error:
            because = str(error).strip().splitlines()[-1] if str(error).strip() else "it ends early"
            raise IrcError(
                "placement-syntax",
                f"cannot read the pin '{part}'",
                because=because,
                help="write it as: NAME = [data = S(0), tensor = B]",
            ) from None
    return pins


def module_pins(module: ModuleOp) -> dict[str, Placement]:
    """Return the pins that the module's attribute ``irc.pins`` holds."""
    attr = module.attributes.get("irc.pins")
    if not isinstance(attr, DictionaryAttr):
        return {}
    return {k: v.data for k, v in attr.data.items() if isinstance(v, PlacementAttr)}


def resolve_pins(
    module: ModuleOp, mesh: Mesh, pins: Mapping[str, Placement]
) -> dict[str, Placement]:
    """Return the placement of each pinned argument; of several globs the last that matches holds.

    Raises:
        IrcError: a glob matches nothing, or its placement does not fit the mesh or the argument.
    """
    shapes = {name: tensor(value).static_shape() for _, name, value in arguments(entry(module))}
    found: dict[str, Placement] = {}
    for glob, placement in pins.items():
        names = [name for name in shapes if fnmatchcase(name, glob)]
        if not names:
            raise IrcError(
                "input-mismatch", f"pin '{glob}' names no argument", help=did_you_mean(glob, shapes)
            )
        _check_mesh(glob, placement, mesh)
        for name in names:
            _check_shape(name, shapes[name], placement, mesh)
            found[name] = _without_single(placement, mesh)
    return found


def _without_single(placement: Placement, mesh: Mesh) -> Placement:
    """Return the same shards with B on axes of one rank, as the search writes it."""
    kept = [(axis, p if mesh.size(axis) > 1 else B) for axis, p in placement.axes]
    order = sorted(kept, key=lambda item: item[1].order if isinstance(item[1], Split) else 0)
    numbered = dict(Placement.in_mesh_order(tuple(order)).axes)
    return Placement(tuple((axis, numbered[axis]) for axis in mesh.names))


def _check_mesh(glob: str, placement: Placement, mesh: Mesh) -> None:
    if placement.names != mesh.names:
        raise IrcError(
            "mesh-mismatch",
            f"pin '{glob}' places on axes {', '.join(placement.names)}; the mesh is {mesh}",
            help=f"say something about each of: {', '.join(mesh.names)}",
        )
    if partial := placement.partial_axes():
        raise IrcError(
            "placement-syntax",
            f"pin '{glob}' makes an argument partial on {', '.join(partial)}",
            because="what a rank loads is a slice, or the whole",
            help="use S(dim) or B",
        )


def _check_shape(name: str, shape: Sequence[int], placement: Placement, mesh: Mesh) -> None:
    if even_shape(tuple(shape), placement, mesh) is None:
        raise IrcError(
            "mesh-axis-indivisible",
            f"argument '{name}' of shape {list(shape)} does not split evenly as {placement}"
            f" on {mesh}",
            help="split another dim, or choose an axis size that divides this one",
        )
