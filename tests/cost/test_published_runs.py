"""Published training runs: what their rows say, and that configurations of theirs are predicted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from irc.cluster.load import find_cluster
from irc.dialects.placement import Mesh, Placement, Split
from irc.schedule.named import generate
from irc.search.blocks import Passed, Piece
from tests.benchmarks.published_models import Sizes
from tests.benchmarks.published_predict import Predictor
from tests.benchmarks.published_runs import IncompleteError, Run, rows, run_of, step_s
from tests.benchmarks.published_systems import head_bytes, layer_bytes, scores_s
from tests.benchmarks.published_times import given_times
from tests.benchmarks.published_training import rank_correlation, spread
from tests.benchmarks.published_waits import (
    HOST_S,
    LAUNCHES,
    gathered_s,
    messages,
    waiting,
)

ROWS = {row["id"]: row for row in rows()}


def runs() -> tuple[list[Run], Counter[str]]:
    """Return the runs that are complete, and the reasons of the others."""
    complete: list[Run] = []
    out: Counter[str] = Counter()
    for row in ROWS.values():
        try:
            complete.append(run_of(row))
        except IncompleteError as error:
            out[str(error)] += 1
    return complete, out


def test_every_row_is_a_run_or_has_a_reason() -> None:
    complete, out = runs()
    assert len(complete) + out.total() == len(ROWS)
    assert len(complete) > 350
    assert all(reason for reason in out)


def test_runs_multiply_out() -> None:
    for run in runs()[0]:
        assert run.pipe * run.data * run.tensor == run.devices, run.id
        assert run.micro_samples * run.micro_batches * run.data == ROWS[run.id]["global_batch"]
        assert not run.layers_of or sum(run.layers_of) == run.layers, run.id


@pytest.mark.parametrize("name", ["sc21-001", "sc21-008", "zerobubble24-001"])
def test_step_times_are_those_that_their_sources_derive(name: str) -> None:
    derived = ROWS[name]["metrics"]["step_time_s_derived"]
    assert step_s(ROWS[name]) == pytest.approx(derived, rel=2e-3)


@pytest.mark.parametrize("name", ["bloom-036", "bloom-080"])  # before and after the formula changed
def test_blooms_arithmetic_gives_its_step_times(name: str) -> None:
    row = ROWS[name]
    other = {**row, "metric": "hw_tflops_per_gpu", "value": row["metrics"]["hw_tflops_per_gpu"]}
    assert step_s(other) == pytest.approx(step_s(row), rel=1e-3)


def test_a_row_without_its_micro_batch_says_so() -> None:
    row = dict(ROWS["sc21-001"])
    del row["microbatch"]
    with pytest.raises(IncompleteError, match="micro-batch not stated"):
        run_of(row)


@pytest.mark.parametrize("name", ["vocabpar24-187", "vocabpar24-188"])
def test_given_the_times_of_its_stages_a_pipeline_is_simulated_as_it_ran(name: str) -> None:
    pair = given_times(ROWS[name])
    assert pair is not None
    assert pair[0] == pytest.approx(pair[1], rel=0.03)


def test_rank_correlation_counts_order_alone() -> None:
    assert rank_correlation([(1.0, 1.0), (2.0, 50.0), (3.0, 51.0)]) == pytest.approx(1.0)
    assert rank_correlation([(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]) == pytest.approx(-1.0)


def test_runs_are_taken_evenly_spread() -> None:
    every = runs()[0]
    assert spread(every, None) == every
    assert [spread(every[:10], 3)[i] for i in (0, 2)] == [every[0], every[9]]
    assert len(spread(every, 7)) == 7


def test_what_a_system_moves_more_is_counted_by_hand() -> None:
    run = run_of(ROWS["vocabpar24-001"])
    logits = 2048 * 32000
    assert head_bytes(run) == (logits * (38 - 2), logits * (14 - 4))
    # GELU reads and writes; sums of gradients are single, in products that add to them.
    units = 2048 * 12288 * 4
    # The results of two products are written, and read again where the residual is added.
    sums = 2 * 2048 * 3072 * 4
    assert layer_bytes(run) == (units + sums, units + 12 * 3072**2 * 4)


def test_dropped_elements_have_masks() -> None:
    run = run_of(ROWS["bloom-034"])
    plain = layer_bytes(replace(run, source="zerobubble24"))
    scores, sums = 4 * 12 * 2048**2, 2 * 4 * 2048 * 14400
    assert layer_bytes(run)[0] - plain[0] == scores * 5 + sums
    assert layer_bytes(run)[1] - plain[1] == (scores + sums) * 5


def test_stored_halves_of_scores_take_less_than_single_ones() -> None:
    run = run_of(ROWS["mist25-001"])
    device = find_cluster("1x1xL4").device
    forward, backward = scores_s(run, device)
    scores = 16 * 2048**2
    # Products of scores are written sooner than they are computed: 4 and 2 bytes less, and in the
    # kernel of the softmax 2 and 2.
    assert forward == pytest.approx(-6 * scores / device.bytes_per_s, rel=0.01)
    assert backward == pytest.approx(-4 * scores / device.bytes_per_s, rel=0.01)


def test_heads_that_are_not_aligned_are_multiplied_on_plain_units() -> None:
    device = find_cluster("1x8xA100").device
    run = run_of(ROWS["bloom-034"])  # heads of 150
    more = sum(scores_s(run, device))
    work = 3 * 2 * 2 * 4 * 12 * 2048**2 * 150  # two products, and two for each of them
    assert work / device.flops("f32") < more < 2 * work / device.flops("f32")
    aligned = replace(run, sizes=replace(run.sizes, hidden=14592))
    assert aligned.sizes.width == 152
    assert sum(scores_s(aligned, device)) < 0
    newer = replace(run, source="zerobubble24")
    assert sum(scores_s(newer, device)) < 0


def test_launches_wait_where_blooms_runs_hung() -> None:
    device = find_cluster("1x8xA100").device
    layer = Piece({"F": 0.02, "B": 0.04}, {"F": 2e-3, "B": 5e-4})
    run = run_of(ROWS["bloom-150"])
    each = 2 * device.launch_s + HOST_S
    said = waiting(run, layer, device)
    assert said["F"] == pytest.approx(LAUNCHES["F"] * each)
    # Backward computes the layer again, and waits for the sums that forward waits for.
    assert said["B"] == pytest.approx((LAUNCHES["F"] + LAUNCHES["B"]) * each + 1.5e-3)
    alone = waiting(run_of(ROWS["bloom-001"]), layer, device)
    assert alone == {"F": 0.0, "B": pytest.approx(1.5e-3)}
    assert waiting(run_of(ROWS["mpt-019"]), layer, device) == {"F": 0.0, "B": 0.0}


def test_bloom_sums_whole_gradients_in_single_precision() -> None:
    run, cluster = run_of(ROWS["bloom-144"]), find_cluster("4x8xA100-OPA")
    mesh = Mesh((("data", 4), ("tensor", 8)))
    # Every rank of a node receives three quarters of what 4 bytes each are, of its own port.
    bytes_in = 4 * 1e8 * 3 / 4
    seconds = gathered_s(run, mesh, cluster, 1e8)
    assert seconds == pytest.approx(bytes_in / cluster.links[-1].bytes_per_s, rel=0.15)
    assert gathered_s(run_of(ROWS["bloom-083"]), mesh, cluster, 1e8) == 0.0  # fp16
    assert gathered_s(replace(run, data=1), mesh, cluster, 1e8) == 0.0


def test_stages_wait_for_messages_of_both_neighbours() -> None:
    run = run_of(ROWS["bloom-150"])
    cluster, mesh = find_cluster("3x8xA100-OPA"), Mesh((("data", 8),))
    placed = Placement((("data", Split(0)),))
    passed = [Passed((16, 2048, 1024), "bf16", placed, 2 * 2048 * 1024 * 2, is_smooth=True)]
    schedule = generate("1f1b", ranks=3, micro_batches=4)
    said = messages(run, passed, schedule, mesh, cluster)
    each = 2 * 2048 * 1024 * 2 / cluster.links[-1].bytes_per_s
    assert [bool(before) for before, _ in said] == [True, True, False]
    assert [bool(after) for _, after in said] == [False, True, True]
    assert said[0][0] == pytest.approx(2 * each, rel=0.1)  # one after the other
    other = messages(replace(run, source="sc21"), passed, schedule, mesh, cluster)
    assert other[0][0] == pytest.approx(said[0][0] / 2)
    assert messages(replace(run, source="mpt"), passed, schedule, mesh, cluster)[1] == (0.0, 0.0)


def test_a_run_is_predicted_from_its_pieces() -> None:
    sizes = Sizes(256, 4, 4, 1024, 2048, 128)
    run = replace(run_of(ROWS["vocabpar24-001"]), sizes=sizes, layers=6, devices=2, pipe=2,
                  micro_batches=4, layers_of=(3, 3))  # fmt: skip
    predictor = Predictor()
    plain = predictor.step_s(run)
    again = predictor.step_s(replace(run, recompute="full"))
    assert 0 < plain < again < 2 * plain
