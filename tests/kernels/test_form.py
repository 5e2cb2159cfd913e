"""What emitters read: merged dims, levels, bounds."""

from irc.kernels.form import integer_bound, read
from tests.backends import gpu_kernels as g


def test_contiguous_dims_are_one_loop() -> None:
    form = read(g.flat_add(size=1000, tile=256))
    assert (form.sizes, form.tile) == ((1000,), (250,))
    assert [s.place.strides for s in form.steps if s.access] == [(1,)] * 3


def test_dims_that_lie_apart_stay_apart() -> None:
    assert read(g.gelu_bias()).sizes == (9, 33)
    assert read(g.transposed_copy()).sizes == (2, 21, 37)


def test_dims_whose_position_is_read_stay_apart() -> None:
    assert read(g.iota()).sizes == (45, 3)


def test_a_tile_that_cuts_the_inner_dim_forbids_merging() -> None:
    b = g.Builder("cut", (4, 8), 2, (2, 4))
    x, y = b.input(32, "f32"), b.output(32, "f32")
    b.store(b.load(x, (8, 1)), y, (8, 1))
    assert read(b.kernel()).sizes == (4, 8)


def test_dims_of_size_one_drop_but_not_those_of_a_matmul() -> None:
    b = g.Builder("unit", (1, 6, 1), 2, (1, 2))
    x, y = b.input(6, "f32"), b.output(6, "i64")
    total = b.reduce("sum", b.load(x, (6, 1, 1)))
    b.store(b.fn("cast", b.fn("add", total, b.constant(1, "f32")), dtype="i64"), y, (6, 1, 0))
    form = read(b.kernel())
    assert (form.sizes, form.num_parallel, form.tile) == ((6, 1), 1, (2,))
    assert read(g.matmul(m=1, batch=(1,))).sizes == (1, 53, 29)
    assert read(g.softmax(rows=3, columns=1)).sizes == (3, 1)


def test_levels_count_the_reductions_before_a_step() -> None:
    form = read(g.softmax())
    assert [(s.kind, s.fn, s.level) for s in form.steps] == [
        ("load", "", 0), ("reduce", "max", 0), ("pointwise", "sub", 1), ("pointwise", "exp", 1),
        ("reduce", "sum", 1), ("pointwise", "div", 2), ("store", "", 2),
    ]  # fmt: skip
    assert form.num_levels == 3


def test_random_indices_stay_inside_their_table() -> None:
    kernel = g.embedding(vocab=31)
    assert integer_bound(read(kernel), 1) == 31


def test_wide_offsets_are_seen() -> None:
    assert read(g.huge()).is_wide
    assert not read(g.softmax()).is_wide
