"""Traces are read as written, profiles of torch by names; what is no trace is refused."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from irc.cli import main
from irc.errors import IrcError
from irc.report.compare import compare, read_both
from irc.trace.form import Held, Label, Trace, TraceEvent, Where
from irc.trace.read import read_trace
from irc.trace.spent import by_kind
from irc.trace.write import side_by_side, to_json

KERNEL, SUM = Label("k0_matmul", "n0", "m.py:2", 96), Label("comm.all_reduce", "n1", "m.py:3", 64)


def trace(source: Any, kernel_s: float, exposed_s: float, plan: str = "cafe") -> Trace:
    """Two ranks that compute, and wait for a sum."""
    end = kernel_s + exposed_s
    events = [
        event
        for rank in (0, 1)
        for event in (
            TraceEvent(rank, "compute", "kernel", KERNEL, 0.0, kernel_s, Where("forward", 0, 1)),
            TraceEvent(rank, "compute", "exposed collective", SUM, kernel_s, end),
            TraceEvent(rank, "comm data", "collective", SUM, kernel_s / 2, end),
        )
    ]
    held = (Held(0, "arena", 0.0, 64.0), Held(0, "arena", end, 0.0))
    return Trace(source, tuple(events), end, plan, "data=2", 2, held, {"clocks": "one"})


def saved(place: Path, text: str) -> str:
    place.write_bytes(gzip.compress(text.encode()) if place.suffix == ".gz" else text.encode())
    return str(place)


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_a_trace_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    own = trace("predicted", 0.5, 0.25)
    parsed = read_trace(saved(tmp_path / name, to_json(own)))
    assert parsed.source == "predicted"
    assert (parsed.plan, parsed.mesh, parsed.ranks, parsed.step_s) == ("cafe", "data=2", 2, 0.75)
    assert (parsed.held, parsed.notes) == (own.held, own.notes)
    # A phase that an event has is read as that of its op and of its function.
    assert [e._replace(where=Where(), label=e.label._replace(phase="")) for e in parsed.events] == [
        e._replace(where=Where()) for e in own.events
    ]
    assert parsed.events[0].where == Where("forward", 0, 1)


def test_a_comparison_says_where_time_was_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = saved(tmp_path / "p.json", to_json(trace("predicted", 0.5, 0.25)))
    second = saved(tmp_path / "m.json", to_json(trace("measured", 0.75, 1.0)))
    facts, both = tmp_path / "facts.json", tmp_path / "both.json"
    assert main(["compare", first, second, "--json", str(facts), "-o", str(both)]) == 0
    shown = capsys.readouterr().out
    assert "step        predicted 750.000 ms, measured 1.750 s, ratio 0.43" in shown
    rows = json.loads(facts.read_text())["lines"]
    lost = [(row["line"], row["kind"], row["lost_s"]) for row in rows]
    assert lost == [("m.py:3", "exposed collective", 0.75), ("m.py:2", "kernel", 0.25)]
    assert sum(row["lost_s"] for row in rows) == 1.75 - 0.75
    events = json.loads(both.read_text())["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert sorted(names) == [
        f"rank {r} {side}" for r in (0, 1) for side in ("measured", "predicted")
    ]
    tracks = {(e["pid"], e["args"]["name"]): e["tid"] for e in events if e["name"] == "thread_name"}
    assert tracks[0, "comm data"] == tracks[1, "comm data"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("{}", "no list 'traceEvents'"),
        ('{"traceEvents": []}', "no events that last"),
        ('{"traceEvents": [1, {"ph": "X"}, {"ph": "X", "name": "a", "ts": "x"}]}', "no events"),
        ('[{"ph": "X", "name": "a", "ts": 1, "dur": 1}]', "irc has not written it"),
        (
            '{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1}],'
            ' "otherData": {"irc": 99}}',
            "its form is 99",
        ),
        (
            '{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1, "pid": 0, "tid": 0}],'
            ' "otherData": {"irc": 1, "source": "predicted"}}',
            "it lacks what irc writes",
        ),
        (to_json(trace("predicted", 1, 1)).replace('"step_s": 2', '"step_s": NaN'), "takes nan s"),
        (side_by_side(trace("predicted", 1, 1), trace("measured", 1, 1)), "two traces"),
    ],
)
def test_what_is_no_trace_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    file = saved(tmp_path / "t.json", text)
    assert main(["compare", file, file]) == 2
    shown = capsys.readouterr().err
    assert "error[trace-unreadable]" in shown
    assert says in shown


def test_files_that_are_not_there_or_cut_off(tmp_path: Path) -> None:
    with pytest.raises(IrcError, match="is no trace") as missing:
        read_trace(tmp_path / "none.json")
    assert missing.value.code == "trace-unreadable"
    file = tmp_path / "t.json.gz"
    file.write_bytes(gzip.compress(b'{"traceEvents": []}')[:-9])
    with pytest.raises(IrcError, match="is no trace"):
        read_trace(file)


def test_traces_of_different_plans_are_refused(tmp_path: Path) -> None:
    first = saved(tmp_path / "p.json", to_json(trace("predicted", 1, 1)))
    second = saved(tmp_path / "m.json", to_json(trace("measured", 1, 1, plan="beef")))
    with pytest.raises(IrcError, match="different plans") as error:
        read_both(first, second)
    assert error.value.code == "trace-mismatch"


def test_a_measured_trace_is_no_prediction(tmp_path: Path) -> None:
    first = saved(tmp_path / "p.json", to_json(trace("predicted", 1, 1)))
    second = saved(tmp_path / "m.json", to_json(trace("measured", 2, 1)))
    with pytest.raises(IrcError, match="the prediction comes first: irc compare "):
        read_both(second, first)


def profile(*events: tuple[str, str, float, float]) -> str:
    """What torch.profiler writes of a GPU: category, name, microseconds."""
    rows: list[dict[str, Any]] = [
        {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": {}}
        for cat, name, ts, dur in events
    ]
    rows.append({"ph": "i", "name": "Iteration Start", "pid": "Traces", "tid": 0, "ts": 1.0})
    return json.dumps({
        "schemaVersion": 1, "deviceProperties": [], "traceEvents": rows, "traceName": "t.json",
        "distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 2},
    })  # fmt: skip


SUM_KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def test_a_profile_of_torch_is_known_by_the_names_of_kernels(tmp_path: Path) -> None:
    """The last step: a kernel, a sum half of which a second kernel hides, then nothing."""
    text = profile(
        ("user_annotation", "ProfilerStep#1", 0.0, 50.0),
        ("kernel", "k0_matmul", 10.0, 5.0),
        ("user_annotation", "ProfilerStep#2", 100.0, 100.0),
        ("cpu_op", "aten::add", 101.0, 3.0),
        ("kernel", "k0_matmul", 110.0, 20.0),
        ("kernel", SUM_KERNEL, 130.0, 40.0),
        ("kernel", "void at::native::vectorized_elementwise_kernel<4>(int)", 140.0, 20.0),
        ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 180.0, 5.0),
    )
    first = saved(tmp_path / "p.json", to_json(trace("predicted", 30e-6, 20e-6)))
    predicted, measured = read_both(first, saved(tmp_path / "torch.json", text))
    assert measured.notes["profile"] == "2 of 4 events are the plan's by name"
    assert measured.drawn == (1,)
    seconds = by_kind(measured)
    assert seconds["kernel"] == pytest.approx(40e-6)
    assert seconds["exposed collective"] == pytest.approx(20e-6)
    assert sum(seconds.values()) == pytest.approx(measured.step_s) == pytest.approx(100e-6)
    rows = {(row.line, row.kind): row.measured_s for row in compare(predicted, measured).lines}
    assert rows["m.py:2", "kernel"] == pytest.approx(20e-6)
    assert rows["m.py:3", "exposed collective"] == pytest.approx(20e-6)
    tracks = {
        (e.label.name, e.track) for e in measured.events if e.track not in ("compute", "host")
    }
    assert ("comm.all_reduce", "comm data") in tracks
    assert ("Memcpy HtoD (Pinned -> Device)", "h2d") in tracks


def test_a_profile_of_a_later_stage_is_held_against_that_stage(tmp_path: Path) -> None:
    """Stages have kernels of the same name, at other lines, and one that the first lacks."""
    labels = [Label("k0_mm", "n0", "m.py:2"), Label("k0_mm", "n5", "m.py:7")]
    events = [TraceEvent(rank, "compute", "kernel", labels[rank], 0.0, 5e-6) for rank in (0, 1)]
    events.append(TraceEvent(1, "compute", "kernel", Label("k9_last", "n9", "m.py:9"), 5e-6, 9e-6))
    events.append(TraceEvent(0, "compute", "bubble", Label("end of the step"), 5e-6, 9e-6))
    own = Trace("predicted", tuple(events), 9e-6, "cafe", "pipe=2", 2)
    first = saved(tmp_path / "p.json", to_json(own))
    text = profile(("kernel", "k0_mm", 0.0, 6.0), ("kernel", "k9_last", 6.0, 4.0))
    predicted, measured = read_both(first, saved(tmp_path / "torch.json", text))
    assert "names" not in measured.notes
    comparison = compare(predicted, measured)
    rows = {row.line: (row.predicted_s, row.measured_s) for row in comparison.lines}
    assert rows.keys() == {"m.py:7", "m.py:9"}
    assert rows["m.py:7"] == pytest.approx((5e-6, 6e-6))
    assert sum(row.predicted_s for row in comparison.kinds) == pytest.approx(own.step_s)
    # A rank that is not drawn gets the names of one that is, and the trace says of which.
    alone = Trace("predicted", tuple(e for e in events if e.rank == 0), 9e-6, "cafe", "pipe=2", 2)
    _, measured = read_both(
        saved(tmp_path / "p0.json", to_json(alone)), str(tmp_path / "torch.json")
    )
    assert measured.notes["names"] == "of rank 0: the prediction does not draw rank 1"


def test_a_profile_of_something_else_is_refused(tmp_path: Path) -> None:
    first = saved(tmp_path / "p.json", to_json(trace("predicted", 1, 1)))
    other = saved(tmp_path / "torch.json", profile(("kernel", "gemm", 0.0, 5.0)))
    with pytest.raises(IrcError, match="shows nothing of the plan") as error:
        read_both(first, other)
    assert error.value.code == "trace-mismatch"
    empty = saved(tmp_path / "torch2.json", profile(("python_function", "f", 0.0, 5.0)))
    with pytest.raises(IrcError, match="is no trace that can be compared"):
        read_both(first, empty)


def test_what_torch_itself_writes_is_read(tmp_path: Path) -> None:
    """On a CPU a profile has ops of torch alone, which are the plan's where they bear its names."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    with profiled(activities=[ProfilerActivity.CPU]) as profiler:
        torch.ones(64, 64) @ torch.ones(64, 64)
    profiler.export_chrome_trace(str(tmp_path / "torch.json"))
    own = trace("predicted", 1, 1)
    events = [e._replace(label=e.label._replace(name="aten::matmul")) for e in own.events]
    first = saved(
        tmp_path / "p.json", to_json(Trace("predicted", tuple(events), 2.0, "cafe", "", 1))
    )
    _, measured = read_both(first, str(tmp_path / "torch.json"))
    names = [e.label.name for e in measured.events if e.kind == "kernel"]
    assert names == ["aten::ones", "aten::ones", "aten::matmul"]
    assert measured.notes["profile"].startswith("1 of 3 ")


def test_two_predictions_are_a_first_and_a_second(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = saved(tmp_path / "a.json", to_json(trace("predicted", 0.5, 0.25)))
    second = saved(tmp_path / "b.json", to_json(trace("predicted", 0.75, 1.0)))
    assert main(["compare", first, second]) == 0
    shown = capsys.readouterr().out
    assert "step        first 750.000 ms, second 1.750 s, ratio 0.43" in shown
    assert "measured" not in shown
