"""Schedules as text and as torch's tables."""

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irc.errors import IrcError
from irc.schedule.check import check
from irc.schedule.csv_table import read_csv, write_csv
from irc.schedule.named import BUILTIN, generate
from irc.schedule.notation import print_schedule, read_schedule
from irc.schedule.vocabulary import with_vocabulary


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_text_and_table_read_back(name):
    schedule = generate(name, ranks=4, micro_batches=8)
    assert read_schedule(print_schedule(schedule)) == replace_name(schedule)
    if name in ("skip", "dualpipe"):
        with pytest.raises(IrcError, match="cannot be written for torch"):
            write_csv(schedule)
    else:
        assert read_csv(write_csv(schedule)) == replace_name(schedule)
        assert write_csv(read_csv(write_csv(schedule))) == write_csv(schedule)


def replace_name(schedule):
    from dataclasses import replace

    return replace(schedule, name="")


def test_a_vocabulary_is_text_but_no_table_of_torch():
    schedule = with_vocabulary(generate("1f1b", ranks=3, micro_batches=6), 2)
    assert read_schedule(print_schedule(schedule)) == replace_name(schedule)
    with pytest.raises(IrcError, match="cannot be written for torch"):
        write_csv(schedule)


class Stage:
    """What torch's schedules ask of a stage to write down their order."""

    has_backward = True

    def __init__(self, index, rank, ranks, stages):
        self.stage_index, self.group_rank, self.group_size = index, rank, ranks
        self.num_stages = stages
        self.device = "cpu"
        self.stage_index_to_group_rank = {}
        self.submod = None


def torch_tables(ranks, micro_batches):
    """Yield the tables of torch's schedules by name, as its _dump_csv writes them."""
    from torch.distributed.pipelining import schedules

    for name, chunks in (
        ("LoopedBFS", 2),
        ("Interleaved1F1B", 2),
        ("Interleaved1F1B", 3),
        ("InterleavedZeroBubble", 2),
        ("ZBVZeroBubble", 2),
        ("DualPipeV", 2),
    ):
        v_shaped = name in ("ZBVZeroBubble", "DualPipeV")
        total = ranks * chunks
        rank_of = {s: min(s, total - 1 - s) if v_shaped else s % ranks for s in range(total)}
        stages = [Stage(s, 0, ranks, total) for s in range(total) if rank_of[s] == 0]
        schedule = schedules.get_schedule_class(name)(
            stages, micro_batches, loss_fn=lambda *_: None
        )
        out = io.StringIO(newline="")
        writer = csv.writer(out)
        for rank in schedule.pipeline_order:
            writer.writerow(schedule.pipeline_order[rank])
        yield f"{name}:{chunks}", out.getvalue()


def test_each_schedule_of_torch_reads_and_prints_byte_for_byte():
    pytest.importorskip("torch.distributed.pipelining")
    tables = dict(torch_tables(4, 8))
    assert len(tables) == 6
    for name, table in tables.items():
        schedule = read_csv(table)
        assert write_csv(schedule) == table, name
        check(schedule)
        assert schedule.num_micro_batches == 8, name


def test_transfers_that_torch_spells_out_are_kept():
    table = (
        "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\r\n1RECV_F0,1F0,1B0,1SEND_B0\r\n"
    )
    schedule = read_csv(table)
    assert write_csv(schedule) == table
    check(schedule)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("0F0,0X0", "line 1, cell 2"),
        ("0F0\n0B0,0B", "line 2, cell 2"),
        ("0F0,(0F1;0B0)OVERLAP", "line 1, cell 2"),
        ("0F0,-1B0", "line 1, cell 2"),
        ("0F99999999999999999999", "line 1, cell 1"),
    ],
)
def test_a_cell_that_is_no_action_is_named(text, place):
    with pytest.raises(IrcError, match=place) as error:
        read_csv(text)
    assert error.value.code == "schedule-syntax"


@pytest.mark.parametrize(
    "text", ["rank 0: F0", "rank 0 0F0", "rang 0: 0F0", "rank 1: 0F0", "rank 0: 0F0\nrank 0: 0B0",
             "vocabulary 3\nrank 0: 0F0", "path 0: 0 x\nrank 0: 0F0"],
)  # fmt: skip
def test_a_text_that_cannot_be_read(text):
    with pytest.raises(IrcError) as error:
        read_schedule(text)
    assert error.value.code == "schedule-syntax"


@given(st.text(alphabet="rank path01:FBIW()OVERLAP_;\n#,", max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_text_is_read_or_refused(text):
    for read in (read_schedule, read_csv):
        try:
            check(read(text))
        except IrcError as error:
            assert error.code.startswith("schedule-")  # noqa: PT017 - most texts are refused
