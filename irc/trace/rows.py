"""What a rank notes while it runs, and what all ranks' notes say together.

A rank sees that it waits, not why. The notes of all of them say when the last one came: until then
it waited for that one, from then on for the link.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from irc.trace.form import BUBBLE, COMPUTE, STRAGGLER, Label, TraceEvent, Where, with_host

DID, WAITED, CARRIED, CAME = "did", "waited", "carried", "came"
"""A row is work, a wait, something on its way, or that the rank came to a meeting."""


class Row(NamedTuple):
    """One thing that a rank noted.

    Attributes:
        form: one of :data:`DID`, :data:`WAITED`, :data:`CARRIED`, :data:`CAME`.
        track: where it is drawn; nowhere for one that came.
        kind: of the event; of a wait, what it is from when all have come.
        label: what it is.
        where: in a pipeline.
        begin_s, end_s: by the rank's clock; one that came did at ``begin_s``.
        key: of what is carried or came: the meeting that the rank has come to.
        meets: of a wait or what is carried: the meeting that it is about.
        peers: the ranks that come to ``meets``.
        until: of a wait, what it is until all have come.
    """

    form: str
    track: str
    kind: str
    label: Label
    where: Where
    begin_s: float
    end_s: float
    key: str = ""
    meets: str = ""
    peers: tuple[int, ...] = ()
    until: str = STRAGGLER


class Recorded(NamedTuple):
    """The notes of a rank.

    Attributes:
        rows: in the order of their ends.
        begin_s, end_s: of its step, by its clock.
    """

    rows: tuple[Row, ...]
    begin_s: float
    end_s: float

    def to_json(self) -> str:
        """Print for another process."""
        return json.dumps([self.begin_s, self.end_s, self.rows])

    @staticmethod
    def from_json(text: str) -> Recorded:
        """Read what :meth:`to_json` wrote."""
        begin, end, rows = json.loads(text)
        return Recorded(tuple(map(_row, rows)), begin, end)

    def shifted(self, by_s: float) -> Recorded:
        """Return the notes by a clock that is so much ahead of this rank's."""
        rows = tuple(
            row._replace(begin_s=row.begin_s + by_s, end_s=row.end_s + by_s) for row in self.rows
        )
        return Recorded(rows, self.begin_s + by_s, self.end_s + by_s)


def _row(fields: Sequence[Any]) -> Row:
    form, track, kind, label, where, begin, end, key, meets, peers, until = fields
    label, where, peers = Label(*label), Where(*where), tuple(peers)
    return Row(form, track, kind, label, where, begin, end, key, meets, peers, until)


def events_of(ranks: Mapping[int, Recorded], *, pipeline: bool) -> tuple[list[TraceEvent], float]:
    """Return the events of a step, from the notes of its ranks by one clock, and its seconds.

    Args:
        ranks: by rank.
        pipeline: a rank that is done before others has no work in it; otherwise they are slow.
    """
    zero = min(each.begin_s for each in ranks.values())
    step_s = max(each.end_s for each in ranks.values()) - zero
    came = {
        rank: {row.key: row.begin_s for row in each.rows if row.key} for rank, each in ranks.items()
    }

    def met(row: Row) -> float:
        """Return when the last rank came to what a row is about."""
        return max(
            (came[rank][row.meets] for rank in row.peers if row.meets in came.get(rank, ())),
            default=row.begin_s,
        )

    events: list[TraceEvent] = []
    for rank, each in ranks.items():
        own = [
            TraceEvent(rank, row.track, kind, row.label, begin - zero, end - zero, row.where)
            for row in each.rows
            for kind, begin, end in _spans(row, met(row))
            if end > begin
        ]
        end = each.end_s - zero
        if end < step_s:
            kind = BUBBLE if pipeline else STRAGGLER
            own.append(TraceEvent(rank, COMPUTE, kind, Label("end of the step"), end, step_s))
        events += with_host(own, rank, step_s)
    return events, step_s


def _spans(row: Row, met_s: float) -> Iterator[tuple[str, float, float]]:
    """Yield kinds of a row's time, and from when to when, given when the last rank came."""
    match row.form:
        case "waited":
            middle = min(max(met_s, row.begin_s), row.end_s)
            yield row.until, row.begin_s, middle
            yield row.kind, middle, row.end_s
        case "carried":
            yield row.kind, max(row.begin_s, met_s), row.end_s
        case "did":
            yield row.kind, row.begin_s, row.end_s
        case _:
            pass
