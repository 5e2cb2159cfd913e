"""``torch.compile(backend="irc")``: Dynamo's graphs to plans, backward through AOTAutograd.

Dynamo keeps what it cannot trace in Python (graph breaks) and guards what it specialised on; each
graph between breaks comes here. Sizes that Dynamo leaves open stay open where
they can (:mod:`irc.calls.open_graph`); else there is a plan per size.

A graph with open sizes is a :mod:`~irc.torch_backend.specialising` one, one that names places in
memory a :mod:`~irc.torch_backend.moving` one. Each graph to compile goes
through :mod:`~irc.torch_backend.tracing`, and by way of AOTAutograd where it has a backward
(:mod:`~irc.torch_backend.aot`); what runs it is a :mod:`~irc.torch_backend.compiled` one.

Outputs that share memory with inputs or each other do so as in eager mode, and dims lie in memory
in eager's order. Random numbers come from irc's own counter; where it starts is drawn from torch's
generator at each call, so that ``torch.manual_seed`` makes runs repeatable.
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import GraphModule

from irc.choices import checked, names_option
from irc.constraints.pins import pins_option
from irc.errors import IrcError, did_you_mean
from irc.frontends.torch.overlapping_writes import overlapping_write
from irc.frontends.torch.settings import is_elsewhere
from irc.pipeline import Options
from irc.torch_backend.angles import order_angles
from irc.torch_backend.compiled import Flat
from irc.torch_backend.counts import counters
from irc.torch_backend.moving import MovingGraph, names_places
from irc.torch_backend.shared_memory import apart
from irc.torch_backend.specialising import SpecialisingGraph, has_open_sizes
from irc.torch_backend.tracing import compile_around, compile_graph

KNOWN = ("target", "verify_each", "passes", "rules", "pins", "cluster", "fullgraph")
"""Options, as :func:`irc.compile` or :class:`~irc.pipeline.Options` takes them."""


def compile_fx(gm: GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Flat:
    """Compile a graph of Dynamo: what ``torch.compile(backend="irc")`` calls.

    Args:
        gm: torch functions over placeholders.
        example_inputs: a value for each placeholder.
        kwargs: what the user gave as ``options=`` and ``mode=``.

    Raises:
        IrcError: an option is unknown, or cannot be met; with ``fullgraph``, also where irc leaves
            a graph to torch.
    """
    options = _options(kwargs)
    counters["graphs"] += 1
    if is_elsewhere() and options.backend == "cpu":  # Dynamo guards the default device
        counters["graphs run by torch"] += 1
        return gm.forward
    run = compile_around(gm, example_inputs, lambda part, given: _compiled(part, given, options))
    return apart(gm, run or _compiled(gm, example_inputs, options))


def _compiled(gm: GraphModule, example_inputs: Sequence[Any], options: Options) -> Flat:
    order_angles(gm)
    if overlapping_write(gm.graph.nodes) is not None:
        counters["graphs run by torch"] += 1
        return gm.forward
    if names_places(gm):
        return MovingGraph(gm, lambda graph, given: compile_graph(graph, given, options))
    if has_open_sizes(gm, example_inputs):
        return SpecialisingGraph(gm, options)
    return compile_graph(gm, example_inputs, options)


def _options(given: dict[str, Any]) -> Options:
    chosen = {**(given.get("options") or {})}
    for name in (*chosen, *(k for k in given if k not in ("options", "mode"))):
        if name not in KNOWN:
            raise IrcError(
                "option-unknown",
                f"backend 'irc' has no option '{name}'",
                help=did_you_mean(name, KNOWN),
            )
    for name in ("passes", "rules"):
        chosen[name] = names_option(name, chosen.get(name, ()))
    return checked(Options(**{**chosen, "pins": pins_option(chosen.get("pins", ""))}))
