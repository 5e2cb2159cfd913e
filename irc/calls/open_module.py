"""A PyTorch module as a plan folder whose sizes are open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from torch.export import Dim

from irc.calls.open_export import OpenExport, OpenFacts, export_open
from irc.calls.open_plans import OpenPlans
from irc.errors import IrcError
from irc.frontends.torch.capture import capture
from irc.frontends.torch.examples import positional
from irc.frontends.torch.export import as_module
from irc.frontends.torch.open_sizes import named_dims
from irc.frontends.torch.size_forms import SizeForms
from irc.pipeline import Options
from irc.program import Program


def open_module(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: Options
) -> tuple[OpenExport, Program]:
    """Compile a module to a plan for all numbers of the sizes that ``options.dynamic`` leaves open.

    Raises:
        IrcError: ``capture-failed`` where the module fixes all of them; ``size-unbound``.
    """
    arguments = (positional(args), dict(kwargs))
    captured = capture(module, *arguments, dynamic_shapes=options.dynamic, keep_open=True)
    opened = captured.open
    if opened is None or not opened.places:
        raise IrcError(
            "capture-failed",
            "the module fixes all sizes that dynamic was to leave open",
            help="leave out dynamic",
        )
    shapes = [tuple(x.shape) for x in captured.flatten(*arguments)]
    example = opened.read(shapes)
    program = captured.at(example).program
    names, forms = program.input_names, SizeForms()
    stated = {
        name: tuple(map(forms.dim, shape)) for name, shape in zip(names, opened.shapes, strict=True)
    }
    conditions = [condition for expr in opened.conditions for condition in forms.condition(expr)]
    uneven = {name: (forms.dim(expr), 1) for name, expr in opened.quotients.items()}
    chosen = _chosen_names(module, arguments, options.dynamic)
    facts = OpenFacts(
        {
            name: (
                chosen.get((place.index, place.dim), f"{place.name}_{place.dim}"),
                names[place.index],
                place.dim,
            )
            for name, place in opened.places.items()
        },
        stated,
        {**forms.quotients, **uneven},
        tuple(conditions),
    )
    plans = OpenPlans(opened, lambda values: captured.at(values).program, options)
    return export_open(plans, example, facts, options), program


def _chosen_names(
    module: Any, arguments: tuple[tuple[Any, ...], dict[str, Any]], dynamic: Any
) -> dict[tuple[int, int], str]:
    """Return the names that the user gave to dims, by input and dim."""
    if dynamic is True:
        return {}
    said: Any = dynamic
    if _is_mapping(dynamic):
        # Names alone are torch.export's only as Dims.
        said = {
            key: {dim: Dim(name) if isinstance(name, str) else name for dim, name in dims.items()}
            if _is_mapping(dims)
            else dims
            for key, dims in dynamic.items()
        }
    places = named_dims(as_module(module), *arguments, said)
    return {place: name for name, own in places.items() for place in own}


def _is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, Mapping)
