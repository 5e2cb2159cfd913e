"""What irc did to a compiled module: facts, noted once where they happen.

A :class:`Record` belongs to one compiled module or function and goes with its options. Facts are
noted while something is compiled, or left to torch, never by a call of what is compiled already:
:func:`irc.explain` reads them, and each goes to a logger of its topic (:mod:`irc.logs`).
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from irc import logs


@dataclass(frozen=True)
class Op:
    """An op of the program that was compiled.

    Attributes:
        what: the op, with what tells it from others of its kind: ``linear``, ``pointwise gelu``.
        line: of the model that it comes from, ``gpt.py:41``; ``unknown`` where torch kept none.
    """

    what: str
    line: str

    def __str__(self) -> str:
        return f"{self.what} ({self.line})"


@dataclass(frozen=True)
class Kernel:
    """A kernel, and the ops that it fuses.

    Attributes:
        name: of its function.
        launches: in one call.
        ops: what it computes, in program order.
    """

    name: str
    launches: int
    ops: tuple[Op, ...]

    def __str__(self) -> str:
        often = f", {self.launches} launches" if self.launches != 1 else ""
        return f"{self.name}{often}: {', '.join(map(str, self.ops)) or 'moves values'}"


@dataclass(frozen=True)
class Graph:
    """A program that was compiled.

    Attributes:
        what: it is: ``whole call``, ``forward pass``, ``backward pass``, ``part of a graph``...
        line: of the function that it was traced from; empty where that is not known.
        kernels: in the order of the plan.
        library: ops that torch's kernels compute as part of the plan, each with its line.
        arena_bytes: memory that a call leases for what it does not return; of a graph of open
            sizes at those of the first call.
        seconds: that irc took to plan it: without torch's tracing, and without the machine code
            of its kernels. 0 where another rank has planned it.
        text: of the program as it was captured, for the logger alone; no record keeps it.
    """

    what: str
    line: str
    kernels: tuple[Kernel, ...]
    library: tuple[Op, ...]
    arena_bytes: int
    seconds: float
    text: str = field(default="", compare=False, repr=False)

    @property
    def launches(self) -> int:
        """Kernels that a call launches."""
        return sum(kernel.launches for kernel in self.kernels)

    def __str__(self) -> str:
        where = f" of {self.line}" if self.line else ""
        return (
            f"{self.what}{where}: {len(self.kernels)} kernels, {self.launches} launches,"
            f" {len(self.library)} library ops, arena {self.arena_bytes} bytes,"
            f" {self.seconds:.3f} s"
        )


@dataclass(frozen=True)
class Stage:
    """A stage of a pipeline.

    Attributes:
        place: on the axis ``pipe``; 0 where one device runs all.
        parameters: names of those that it has, in program order.
    """

    place: int
    parameters: tuple[str, ...]

    def __str__(self) -> str:
        if not self.parameters:
            return f"no parameters, on place {self.place} of the pipe"
        first, last = self.parameters[0], self.parameters[-1]
        names = first if len(self.parameters) == 1 else f"{first} to {last}"
        return f"{names} ({len(self.parameters)}), on place {self.place} of the pipe"


@dataclass(frozen=True)
class Pipeline:
    """A step that was planned in stages.

    Attributes:
        schedule: its name; empty where a file has none.
        micro_batches: of a step.
        stages: in order.
        seconds: that irc took to plan all of them. 0 where another rank has planned it.
    """

    schedule: str
    micro_batches: int
    stages: tuple[Stage, ...]
    seconds: float

    @property
    def heading(self) -> str:
        """What it is, without its stages."""
        count, schedule = len(self.stages), self.schedule or "of a file"
        stages = "1 stage" if count == 1 else f"{count} stages"
        return f"{stages}, schedule {schedule}, {self.micro_batches} micro-batches"

    def __str__(self) -> str:
        stages = "; ".join(f"{number}: {stage}" for number, stage in enumerate(self.stages))
        return f"{self.heading}, {self.seconds:.3f} s: {stages}"


@dataclass(frozen=True)
class FallBack:
    """What torch or Python runs in irc's place.

    Attributes:
        kind: ``break`` (Python runs between two graphs), ``op`` (an op of a plan that irc has no
            kernel and no form for), ``region`` (a part of a graph), ``graph``, ``backward``,
            ``timing`` (the first timing has torch ahead) or ``call``.
        what: is left.
        reason: why.
        line: of the model, user's or library's; empty where torch names none.
    """

    kind: str
    what: str
    reason: str
    line: str

    def __str__(self) -> str:
        where = f" --> {self.line}" if self.line else ""
        return f"{self.kind}: {self.what}: {self.reason}{where}"


@dataclass(frozen=True)
class Recompile:
    """A further compilation.

    Attributes:
        reason: the guard that changed.
        line: of the function that was compiled again; empty for the whole module.
    """

    reason: str
    line: str = ""

    def __str__(self) -> str:
        return f"{self.reason} --> {self.line}" if self.line else self.reason


@dataclass(frozen=True)
class Cached:
    """Machine code of kernels in the cache on disk.

    Attributes:
        path: of the file.
        is_read: an earlier process, or model, had compiled it; else it was compiled and kept.
    """

    path: str
    is_read: bool

    def __str__(self) -> str:
        return f"{'read' if self.is_read else 'compiled, and kept'}: {self.path}"


MOST_FACTS = 2000
"""Of one module; sizes that never end would fill memory with what nobody reads."""

Fact: TypeAlias = Graph | Pipeline | FallBack | Recompile | Cached

TOPICS = {
    Graph: "graph",
    Pipeline: "graph",
    FallBack: "fallback",
    Recompile: "recompile",
    Cached: "cache",
}
"""The logger of each kind of fact; the kernels of a graph go to ``fusion`` as well."""


@dataclass(frozen=True)
class CallKind:
    """A kind of call.

    Attributes:
        arguments: each with its dtype and shape, ``x: float32[2, 8]``, or its value.
        training: the module's flag; None of a function.
        gradients: whether autograd records.
        autocast: the dtype that autocast computes in; empty without.
        of: what is called, where that is not all of what was compiled: an entry by its name, a
            function that torch.compile has traced.
    """

    arguments: tuple[str, ...]
    training: bool | None
    gradients: bool
    autocast: str = ""
    of: str = ""

    def __str__(self) -> str:
        mode = {None: "", True: "training, ", False: "evaluation, "}[self.training]
        gradients = "gradients recorded" if self.gradients else "no gradients"
        cast = f", autocast {self.autocast}" if self.autocast else ""
        what = f"{self.of} " if self.of else ""
        return f"{what}({', '.join(self.arguments)}), {mode}{gradients}{cast}"


class Record:
    """The facts of one compiled module or function, by the kind of call that caused them.

    Each kind of call has each fact once; what is said of calls themselves, at every one of them
    (``call``), the module has once.

    Attributes:
        kinds: for each kind of call, what was noted at each of its calls that compiled anything.
        pending: noted since the last call that :meth:`close` was told of.
        is_full: facts were left out, since there are too many.
    """

    def __init__(self) -> None:
        logs.ready()
        self.kinds: dict[CallKind, list[list[Fact]]] = {}
        self.pending: list[Fact] = []
        self.is_full = False
        self._of_calls: set[Fact] = set()
        self._number = 0
        self._lock = threading.Lock()

    def __eq__(self, other: object) -> bool:
        # Dynamo runs what it compiled for one module in another one whose options are equal.
        return isinstance(other, Record)

    def __hash__(self) -> int:
        return hash(Record)

    def __reduce__(self) -> tuple[type[Record], tuple[()]]:
        return Record, ()  # a copy of a module was compiled by nobody yet

    def note(self, fact: Fact) -> None:
        """Keep a fact, once, and tell the logger of its topic."""
        self.add(fact, None)

    def add(self, fact: Fact, facts: list[Fact] | None) -> None:
        """Keep a fact among some; None for those that are pending."""
        kept = replace(fact, text="") if isinstance(fact, Graph) else fact
        with self._lock:
            of_this = self.pending if facts is None else facts
            if fact in self._of_calls or kept in of_this:
                return
            if isinstance(fact, FallBack) and fact.kind == "call":
                self._of_calls.add(fact)
            if self._number < MOST_FACTS:
                of_this.append(kept)
                self._number += 1
            else:
                self.is_full = True
        logs.tell(TOPICS[type(fact)], f"{fact}")
        if isinstance(fact, Graph):
            if fact.text:
                logs.tell("graph", fact.text)
            for kernel in fact.kernels:
                logs.tell("fusion", f"{kernel}")

    def close(self, kind: CallKind) -> None:
        """Say which kind of call has caused what is pending."""
        with self._lock:
            every = self.kinds.setdefault(kind, [])
            before = {fact for facts in every for fact in facts}
            # In place: a backward pass that is compiled later adds to this list.
            self.pending[:] = [fact for fact in self.pending if fact not in before]
            every.append(self.pending)
            self.pending = []

    def of_this_call(self) -> Record:
        """Return a record for what is compiled later for the call that runs: a backward pass."""
        return _OfOneCall(self, self.pending)

    def of_kind(self, kind: CallKind) -> Record:
        """Return a record for what is compiled, now and later, for one kind of call."""
        with self._lock:
            every = self.kinds.setdefault(kind, [[]])
            return _OfOneCall(self, every[-1])

    @property
    def knows_graph(self) -> bool:
        """True where a program is among what is pending."""
        return any(isinstance(fact, Graph) for fact in self.pending)

    def lines(self) -> set[str]:
        """Return the lines of what was left to torch or Python."""
        facts = [fact for _, noted in self.sorted() for fact in noted]
        return {fact.line for fact in facts if isinstance(fact, FallBack)}

    def sorted(self) -> list[tuple[CallKind | None, list[Fact]]]:
        """Return what was noted by kind of call; None where no call has returned yet.

        What a call that failed has caused belongs to the kind that came last.
        """
        with self._lock:
            by_kind: list[tuple[CallKind | None, list[Fact]]] = [
                (kind, [fact for facts in every for fact in facts])
                for kind, every in self.kinds.items()
            ]
            if self.pending and not by_kind:
                by_kind.append((None, []))
            if self.pending:
                by_kind[-1][1].extend(self.pending)
            return by_kind

    @contextmanager
    def noting(self) -> Generator[None]:
        """Let code that knows no options note facts of this thread here."""
        before = getattr(_here, "record", None)
        _here.record = self
        try:
            yield
        finally:
            _here.record = before


class _OfOneCall(Record):
    """Notes facts for one call of a whole record, whichever runs now."""

    def __init__(self, whole: Record, facts: list[Fact]) -> None:
        super().__init__()
        self._whole, self._facts = whole, facts

    def note(self, fact: Fact) -> None:
        self._whole.add(fact, self._facts)

    def of_this_call(self) -> Record:
        return self


_here = threading.local()


def note_here(fact: Fact) -> None:
    """Note a fact in the record of this thread, where something is being compiled for one."""
    record: Record | None = getattr(_here, "record", None)
    if record is None:
        logs.tell(TOPICS[type(fact)], f"{fact}")
    else:
        record.note(fact)
