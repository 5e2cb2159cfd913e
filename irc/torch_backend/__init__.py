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
generator at each call, so that ``torch.manual_seed`` makes runs repeatable. Where derivatives go
forward, torch runs graphs as they are (:mod:`~irc.torch_backend.tangents`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch.fx import GraphModule

from irc.calls.trial import noted
from irc.choices import backend_options, checked, mode_option, names_option, strict_option
from irc.constraints.pins import pins_option
from irc.frontends.torch.overlapping_writes import overlapping_write
from irc.frontends.torch.settings import default_device, is_elsewhere
from irc.frontends.torch.written_out import write_out
from irc.pipeline import Options
from irc.record import Recompile, Record
from irc.torch_backend.angles import order_angles
from irc.torch_backend.checks import checking, take_checks
from irc.torch_backend.compiled import Flat
from irc.torch_backend.counts import count_left, counters, first_line
from irc.torch_backend.eager_graph import forward_of
from irc.torch_backend.frames import record_here
from irc.torch_backend.moving import MovingGraph, names_places
from irc.torch_backend.powers import keep_bases
from irc.torch_backend.shared_memory import apart
from irc.torch_backend.specialising import SpecialisingGraph, has_open_sizes
from irc.torch_backend.tangents import with_tangents
from irc.torch_backend.tracing import compile_around, compile_graph


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
    options = _options(kwargs, gm)
    counters["graphs"] += 1
    keep_bases(gm)
    if options.record is not None and (again := _retraced(gm)) is not None:
        options.record.note(again)
    if is_elsewhere() and options.backend == "cpu":  # Dynamo guards the default device
        count_left(options, "graph", f"new tensors are made on '{default_device()}'")
        return noted(forward_of(gm))
    said = take_checks(gm)
    run = compile_around(
        gm, example_inputs, options, lambda part, inputs: _compiled(part, inputs, options)
    )
    run = with_tangents(gm, apart(gm, run or _compiled(gm, example_inputs, options)), options)
    return checking(run, said) if said else run


def _retraced(gm: GraphModule) -> Recompile | None:
    """Return which guard made Dynamo trace a function again; None where it is the first trace."""
    from torch._dynamo.utils import get_metrics_context

    # Of no public name: where a version of torch has another one, no reason is told.
    reason = getattr(get_metrics_context(), "_metrics", {}).get("recompile_reason")
    if not reason:
        return None
    first = NUMBER.sub("", str(reason).strip()).split("\n")[0].partition("  #")[0].strip()
    return Recompile(first, first_line(gm))


NUMBER = re.compile(r"^\d+(/\d+)*:\s*")
"""What Dynamo numbers its entries with."""


def _compiled(gm: GraphModule, example_inputs: Sequence[Any], options: Options) -> Flat:
    order_angles(gm)
    write_out(gm)
    if (write := overlapping_write(gm.graph.nodes)) is not None:
        count_left(options, "graph", "it writes to memory that overlaps itself", write)
        return noted(forward_of(gm))
    if names_places(gm):
        return noted(
            MovingGraph(gm, options, lambda graph, inputs: compile_graph(graph, inputs, options))
        )
    if has_open_sizes(gm, example_inputs):
        return noted(SpecialisingGraph(gm, options))
    return compile_graph(gm, example_inputs, options)


def _options(kwargs: dict[str, Any], gm: GraphModule) -> Options:
    chosen: dict[str, Any] = {**(kwargs.get("options") or {})}
    record = chosen.pop("record", None)  # of irc.compile, which goes this way itself
    if record is not None and not isinstance(record, Record):
        chosen["record"] = record  # a user's, of whom it is no option
    others = {name: value for name, value in kwargs.items() if name not in ("options", "mode")}
    chosen = backend_options({**chosen, **others})
    mode_option(kwargs.get("mode"), Options().backend)
    for name in ("passes", "rules"):
        chosen[name] = names_option(name, chosen.get(name, ()))
    chosen["pins"] = pins_option(chosen.get("pins", ""))
    if strict_option(chosen.get("strict", False)):
        chosen["fullgraph"] = True
    return checked(Options(**chosen, record=record or record_here(gm)))
