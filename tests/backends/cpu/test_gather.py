"""Indices outside their tensor are an error of the user, in any kernel and on any thread."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import irc
from irc.backends.cpu import emit, info_of
from irc.dialects.task import KernelOp
from irc.errors import IrcError
from irc.frontends.torch.capture import capture
from irc.pipeline import Options, default_pipeline, run_passes

Lookup = Callable[[Tensor, Tensor], Tensor]
SELECTS: dict[str, Lookup] = {
    "index_select": lambda x, i: x.index_select(0, i) * 2,
    "embedding": lambda x, i: nn.functional.embedding(i, x),
    "gather": lambda x, i: x.gather(0, i[:, None].expand(-1, x.shape[1])),
    "gather_of_what_is_computed": lambda x, i: x.exp().gather(0, i[:, None]),
    "scatter": lambda x, i: x.scatter(0, i[:, None], 5.0),
    "index_add": lambda x, i: x.index_add(0, i, torch.ones(len(i), x.shape[1])),
    "sum": lambda x, i: x.index_select(0, i).sum(0),
    "cross_entropy": lambda x, i: nn.functional.cross_entropy(x.t().contiguous(), i % 100),
    "one_hot": lambda x, i: nn.functional.one_hot(i, len(x)),
}
COUNTED: dict[str, Lookup] = {
    "index": lambda x, i: x[i] * 2,
    "index_put": lambda x, i: x.index_put((i,), torch.tensor(7.0)),
    "two_indices": lambda x, i: x[i, torch.tensor([0, 1])],
    "two_indices_turned": lambda x, i: x.t()[torch.tensor([0, 1]), i],
}
"""Those of which negative indices count from the end."""


class Look(nn.Module):
    """An embedding, and what is computed from it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(300, 24)
        self.norm = nn.LayerNorm(24)

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.table(ids) * 2 + 1)


class Select(nn.Module):
    """A gather that the caller indexes."""

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        return torch.gather(x, 1, at).exp()


@pytest.mark.parametrize("wrong", [-1, 300, 1 << 40, -(1 << 40)])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (64, 1000)])
def test_an_index_outside_is_refused_and_later_calls_are_right(
    shape: tuple[int, int], wrong: int
) -> None:
    module = Look().eval()
    fast = irc.compile(module)
    ids = torch.randint(0, 300, shape)
    with torch.no_grad():
        want = module(ids)
        assert torch.allclose(fast(ids), want, atol=1e-5)
        bad = ids.clone()
        bad[-1, -1] = wrong
        for _ in range(2):
            with pytest.raises(IrcError, match="lies outside") as caught:
                fast(bad)
            assert caught.value.code == "index-out-of-range"
        assert torch.allclose(fast(ids), want, atol=1e-5)


@pytest.mark.parametrize("place", [0, 2_000, 31_999, 32_000, 63_999])
def test_an_index_outside_is_refused_in_any_part_of_a_divided_kernel(place: int) -> None:
    module, ids = Look().eval(), torch.randint(0, 300, (64, 1000))
    program = irc.capture(module, (ids,)).program
    run_passes(program.module, default_pipeline(Options()))
    infos = [info_of(emit(k)) for k in program.module.body.block.ops if isinstance(k, KernelOp)]
    assert any(info.checks and info.pieces > 1 for info in infos), "too small to show anything"
    fast = irc.compile(module)
    with torch.no_grad():
        fast(ids)
        ids.view(-1)[place] = 300
        with pytest.raises(IrcError, match="lies outside"):
            fast(ids)


def test_the_first_and_last_element_are_inside() -> None:
    x, fast = torch.randn(5, 9), irc.compile(Select())
    at = torch.tensor([[0, 8]] * 5)
    assert torch.allclose(fast(x, at), torch.gather(x, 1, at).exp())
    for wrong in (-1, 9):
        at[0, 0] = wrong
        with pytest.raises(IrcError, match="lies outside"):
            fast(x, at)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", [*SELECTS, *COUNTED])
def test_an_index_outside_of_few_rows_is_refused(name: str, rows: int) -> None:
    """One row has no part in an address; a wrong index is wrong all the same."""
    look, x = (SELECTS | COUNTED)[name], torch.arange(2.0 * rows).view(rows, 2)
    fast = irc.compile(look)
    wanted = look(x, torch.tensor([0, rows - 1]))
    assert torch.allclose(fast(x, torch.tensor([0, rows - 1])), wanted)
    for wrong in (rows, 7, -rows - 1, *([-1] if name in SELECTS else [])):
        with pytest.raises((IndexError, RuntimeError), match=r"(?i)lies outside|out of (bounds|r)"):
            fast(x, torch.tensor([0, wrong]))


@pytest.mark.parametrize("wrong", [-2, 1, 5])
def test_a_constant_outside_is_refused(wrong: int) -> None:
    def look(x: Tensor) -> Tensor:
        return x[torch.tensor([0, wrong])]

    with pytest.raises(IndexError, match="lies outside"):
        irc.compile(look)(torch.ones(1, 2))


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "head": lambda x: x[:-1],
    "tail": lambda x: x[1:],
    "middle": lambda x: x[1:-1],
    "column": lambda x: x[:, 1:].t(),
    "turned": lambda x: x.flip(0)[1:],
    "every_second": lambda x: x[::2],
    "one_repeated": lambda x: x[:1].expand(3, 2),
}


@pytest.mark.parametrize("name", VIEWS)
def test_elements_beside_a_view_are_outside(name: str) -> None:
    """They lie in the same memory: an address alone does not tell."""
    x, view = torch.arange(10.0).view(5, 2), VIEWS[name]

    def look(x: Tensor, i: Tensor) -> Tensor:
        return view(x).index_select(0, i) * 2

    fast = irc.compile(look)
    count = len(view(x))
    for right in (0, count - 1):
        i = torch.tensor([0, right])
        assert torch.equal(fast(x, i), look(x, i))
    for wrong in (-1, count):
        with pytest.raises(IndexError, match="lies outside"):
            fast(x, torch.tensor([0, wrong]))


@pytest.mark.parametrize("name", ["index_select", "index", "gather", "two_indices_turned"])
def test_an_index_outside_is_refused_at_open_sizes(name: str) -> None:
    look = (SELECTS | COUNTED)[name]
    torch._dynamo.reset()  # pyright: ignore[reportPrivateUsage]
    fast = torch.compile(look, backend="irc", dynamic=True)
    for rows in (1, 3, 4):
        x = torch.arange(2.0 * rows).view(rows, 2)
        inside = torch.tensor([0, rows - 1])
        assert torch.equal(fast(x, inside), look(x, inside))
        with pytest.raises(IndexError, match="lies outside"):
            fast(x, torch.tensor([0, rows]))


def test_indices_along_a_dim_count_around_it() -> None:
    x, i = torch.arange(6.0).view(3, 2), torch.tensor([[0, 5], [-4, 3]])

    def look(x: Tensor, i: Tensor) -> Tensor:
        return torch.take_along_dim(x, i, 0)

    fast = irc.compile(look)
    for table in (x, x[:1]):
        assert torch.equal(fast(table, i), look(table, i))


@pytest.mark.parametrize("value", [7.0, torch.tensor(7.0)])
def test_what_is_filled_counts_from_the_end_where_it_is_negative(value: float | Tensor) -> None:
    x, i = torch.randn(3, 4, requires_grad=True), torch.tensor([-1, 0])

    def fill(x: Tensor, i: Tensor) -> Tensor:
        return x.index_fill(1, i, value) * 2

    for fast in (irc.compile(fill), torch.compile(fill, backend="irc")):
        assert torch.equal(fast(x, i), fill(x, i))
        gradients = [torch.autograd.grad(f(x, i).sum(), x)[0] for f in (fast, fill)]
        assert torch.equal(*gradients)
    scalar = torch.tensor(1.0)
    assert torch.equal(irc.compile(fill)(x, torch.tensor([3])), fill(x, torch.tensor([3])))
    with torch.no_grad():
        last = irc.compile(lambda x, i: x.index_fill(0, i, value))(scalar, torch.tensor([-1]))
    assert last == 7


def test_places_that_count_within_a_dim_are_not_checked() -> None:
    """Masks of attention look up so; by their form they are told from others."""

    def counted(x: Tensor, i: Tensor) -> Tensor:
        return x[torch.arange(2)[:, None], torch.arange(3) + 1]

    def stated(x: Tensor, i: Tensor) -> Tensor:
        return x[torch.arange(2)[:, None], i]

    def outside(x: Tensor, i: Tensor) -> Tensor:
        return x[torch.arange(2)[:, None], torch.arange(3) + 2]

    x, i = torch.randn(2, 4), torch.tensor([1, 2, 3])
    checks = [
        str(capture(f, (x, i)).program.module).count('"logical_and"')
        for f in (counted, stated, outside)
    ]
    assert checks == [0, 1, 1]
    assert torch.equal(irc.compile(counted)(x, i), irc.compile(stated)(x, i))
    with pytest.raises(IndexError):
        irc.compile(outside)(x, i)
