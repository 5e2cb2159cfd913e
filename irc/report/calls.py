"""What :func:`irc.explain` returns: the facts of a compiled module, laid out for its reader.

Facts are noted where they happen (:mod:`irc.record`); here they are sorted by the kind of call.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from irc.record import (
    MOST_FACTS,
    Cached,
    CallKind,
    Fact,
    FallBack,
    Graph,
    Kernel,
    Op,
    Pipeline,
    Recompile,
    Record,
)
from irc.report.table import counted, pairs, seconds, size

UNCALLED = "not called yet: a module is compiled at its first call"
SHARED = "none of its own: it runs what was compiled for another module of its class"
STEP = "  "
TITLE_WIDTH = 18


@dataclass(frozen=True)
class CallReport:
    """What was done for one kind of call.

    Attributes:
        kind: of the call; None for what was noted where no call has returned yet.
        graphs: that were compiled, in order.
        fallbacks: what torch or Python runs of it.
        recompiles: why it was not served by what was there before.
        cached: files of machine code that were read or kept.
        seconds: that irc took to plan it, without torch's tracing and machine code.
        is_left: a first timing has given its calls, or a graph of them, to torch.
        pipelines: steps of training in stages; their graphs are the stages' functions.
    """

    kind: CallKind | None
    graphs: tuple[Graph, ...]
    fallbacks: tuple[FallBack, ...]
    recompiles: tuple[Recompile, ...]
    cached: tuple[Cached, ...]
    seconds: float
    is_left: bool
    pipelines: tuple[Pipeline, ...] = ()

    @staticmethod
    def of(kind: CallKind | None, facts: Sequence[Fact]) -> CallReport:
        """Sort facts."""
        graphs = tuple(each for each in facts if isinstance(each, Graph))
        left = tuple(each for each in facts if isinstance(each, FallBack))
        pipelines = tuple(each for each in facts if isinstance(each, Pipeline))
        return CallReport(
            kind,
            graphs,
            left,
            tuple(each for each in facts if isinstance(each, Recompile)),
            tuple(each for each in facts if isinstance(each, Cached)),
            sum(each.seconds for each in (*graphs, *pipelines)),
            any(each.kind == "timing" for each in left),
            pipelines,
        )

    @property
    def title(self) -> str:
        """The kind of call in words."""
        return "of no call that is known" if self.kind is None else str(self.kind)


@dataclass(frozen=True)
class ModuleReport:
    """What irc has made of a module or function so far.

    Attributes:
        name: of its class, or of the function.
        backend: what computes; empty before the first call.
        calls: by kind, in the order in which they first came.
        is_full: facts were left out, since there are too many.
        uncalled: what is said where nothing was compiled yet.
    """

    name: str
    backend: str
    calls: tuple[CallReport, ...]
    is_full: bool = False
    uncalled: str = UNCALLED

    @staticmethod
    def of(
        name: str, record: Record | None, *, backend: str, uncalled: str = UNCALLED
    ) -> ModuleReport:
        """Return the report of a record; None stands for one of no calls."""
        every = [] if record is None else record.sorted()
        calls = tuple(CallReport.of(*each) for each in every)
        is_full = record is not None and record.is_full
        return ModuleReport(name, backend, calls, is_full, uncalled)

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """All programs."""
        return tuple(each for call in self.calls for each in call.graphs)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """All kernels."""
        return tuple(each for graph in self.graphs for each in graph.kernels)

    @property
    def pipelines(self) -> tuple[Pipeline, ...]:
        """All steps in stages."""
        return tuple(each for call in self.calls for each in call.pipelines)

    @property
    def fallbacks(self) -> tuple[FallBack, ...]:
        """All that torch or Python runs."""
        return tuple(each for call in self.calls for each in call.fallbacks)

    @property
    def recompiles(self) -> tuple[Recompile, ...]:
        """Why it was compiled again."""
        return tuple(each for call in self.calls for each in call.recompiles)

    def json(self) -> str:
        """Return the fields as JSON."""
        return json.dumps(asdict(self), indent=1)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def __repr__(self) -> str:
        return str(self)

    def _heading(self) -> str:
        if not self.calls:
            return f"{self.name}: {self.uncalled}"
        return (
            f"{self.name}: {counted(len(self.calls), 'kind')} of calls,"
            f" {counted(len(self.graphs), 'graph')}, {counted(len(self.kernels), 'kernel')} for"
            f" {self.backend}, {counted(len(self.fallbacks), 'fall-back')},"
            f" {counted(len(self.recompiles), 'recompile')}"
        )

    def _lines(self) -> Iterator[str]:
        yield self._heading()
        if self.is_full:
            yield f"more than {MOST_FACTS} facts: later ones are left out"
        for number, call in enumerate(self.calls, 1):
            yield ""
            yield f"Call {number}: {call.title}"
            for title, rows in _sections(call):
                yield from pairs([(f"{STEP}{title}", rows[0])], TITLE_WIDTH)
                yield from (f"{'':<{TITLE_WIDTH}}{row}" for row in rows[1:])

    def _repr_html_(self) -> str:
        """Return the report as a notebook shows it."""
        return self.html()

    def html(self) -> str:
        """Return the report as a piece of HTML."""
        parts = [f"<p><b>{html.escape(self._heading())}</b></p>"]
        for number, call in enumerate(self.calls, 1):
            kind = html.escape(f"Call {number}: {call.title}")
            rows = "".join(map(_html_row, _sections(call)))
            parts.append(f"<details open><summary>{kind}</summary><table>{rows}</table></details>")
        return "".join(parts)


def _html_row(section: tuple[str, list[str]]) -> str:
    title, lines = section
    head = f"<th style='text-align:left;vertical-align:top'>{title}</th>"
    text = html.escape("\n".join(lines))
    return f"<tr>{head}<td style='text-align:left'><pre>{text}</pre></td></tr>"


def _sections(call: CallReport) -> Iterator[tuple[str, list[str]]]:
    """Yield what there is to say of a kind of call: a title, and at least one line."""
    if call.recompiles:
        yield "compiled again", [str(each) for each in call.recompiles]
    for pipeline in call.pipelines:
        yield "pipeline", list(_pipeline(pipeline))
    for graph in call.graphs:
        yield "graph", list(_graph(graph))
    if not call.graphs and not call.fallbacks:
        yield "graph", [SHARED]
    if call.fallbacks:
        yield "left to torch", [line for each in call.fallbacks for line in _left(each)]
    elif call.graphs:
        yield "left to torch", ["nothing"]
    if call.cached:
        yield "cache", [str(each) for each in call.cached]
    elif any(graph.kernels for graph in call.graphs):
        yield "cache", ["no file was read or kept for it"]


def _pipeline(pipeline: Pipeline) -> Iterator[str]:
    yield f"{pipeline.heading}{_planned(pipeline.seconds)}"
    for number, stage in enumerate(pipeline.stages):
        yield f"{STEP}stage {number}: {stage}"


def _planned(taken: float) -> str:
    return f", planned in {seconds(taken)}" if taken else ""


def _graph(graph: Graph) -> Iterator[str]:
    where = f" from {graph.line}" if graph.line else ""
    launches = "1 launch" if graph.launches == 1 else f"{graph.launches} launches"
    yield (
        f"{graph.what}{where}: {counted(len(graph.kernels), 'kernel')}, {launches},"
        f" arena {size(graph.arena_bytes)}{_planned(graph.seconds)}"
    )
    for kernel in graph.kernels:
        often = f", {kernel.launches} launches" if kernel.launches != 1 else ""
        yield f"{STEP}{kernel.name}{often}"
        yield from (f"{STEP * 3}{line}" for line in _ops(kernel.ops))
    if graph.library:
        yield f"{STEP}torch's kernels, as steps of the plan"
        yield from (f"{STEP * 3}{line}" for line in _ops(graph.library))


def _ops(ops: Sequence[Op]) -> Iterator[str]:
    """Yield ops, those that follow each other on one line of the model together."""
    together: list[str] = []
    for place, op in enumerate(ops):
        together.append(op.what)
        if place + 1 == len(ops) or ops[place + 1].line != op.line:
            yield f"{', '.join(together)}  {op.line}"
            together.clear()


def _left(left: FallBack) -> Iterator[str]:
    yield f"{left.what} ({left.kind}): {left.reason}"
    if left.line:
        yield f"{STEP}--> {left.line}"
