"""Views against torch's own strides."""

import random

import pytest
import torch

from irc.kernels.view import View


def read(view: View, memory: torch.Tensor) -> torch.Tensor:
    """Read a view of any number of factors from its root."""
    sizes = [n for dim in view.dims for n, _ in dim]
    strides = [s for dim in view.dims for _, s in dim]
    return memory.as_strided(sizes, strides, view.offset).reshape(view.shape)


@pytest.mark.parametrize("seed", range(50))
def test_random_chains_of_shape_ops(seed: int) -> None:
    draw = random.Random(seed)
    shape = tuple(draw.choice([1, 2, 3, 4, 5, 6]) for _ in range(4))
    memory = torch.arange(torch.tensor(shape).prod().item())
    view, want = View.contiguous(shape), memory.reshape(shape)
    for _ in range(6):
        match draw.choice(["transpose", "merge", "split", "slice", "broadcast"]):
            case "transpose":
                perm = draw.sample(range(want.ndim), want.ndim)
                next_view, next_want = view.transpose(perm), want.permute(perm)
            case "merge" if want.ndim > 1:
                new = (want.shape[0] * want.shape[1], *want.shape[2:])
                next_view, next_want = view.reshape(new), want.reshape(new)
            case "split":
                new = [p for n in want.shape for p in ([2, n // 2] if n % 2 == 0 and n else [n])]
                next_view, next_want = view.reshape(new), want.reshape(new)
            case "slice":
                starts = [draw.randrange(n) for n in want.shape]
                steps = [draw.choice([1, 2]) for _ in want.shape]
                next_view = view.slice(starts, [-1] * want.ndim, steps)
                next_want = want[
                    tuple(slice(a, None, s) for a, s in zip(starts, steps, strict=True))
                ]
            case _:
                new = (2, *(3 if n == 1 else n for n in want.shape))
                next_view, next_want = view.broadcast(new), want.expand(new)
        if next_view is None or next_want.numel() > 5000:
            continue
        view, want = next_view, next_want
        assert view.shape == tuple(want.shape)
        assert torch.equal(read(view, memory), want)


def test_merging_heads_needs_no_copy_where_memory_is_in_order() -> None:
    heads = View.contiguous((2, 5, 3, 4)).transpose((0, 2, 1, 3))
    assert not heads.is_plain and heads.strides == (60, 4, 12, 1)
    assert heads.transpose((0, 2, 1, 3)).is_plain


def test_a_dim_of_two_factors_has_no_stride() -> None:
    joined = View.contiguous((2, 3, 5, 4)).transpose((0, 2, 1, 3)).reshape((2, 5, 12))
    assert joined is not None and joined.dims[2] == ((3, 20), (4, 1))
    assert joined.strides is None and not joined.is_plain
    assert joined.slice((0, 0, 1), (-1, -1, -1), (1, 1, 1)) is None


def test_what_does_not_nest_is_refused() -> None:
    assert View.strided(0, (4, 6), (12, 1), 48).reshape((3, 8)) is None


def test_a_part_of_the_root_is_not_plain() -> None:
    assert not View.contiguous((4, 6)).slice((0, 0), (2, -1), (1, 1)).is_plain
    assert View.contiguous((4, 6)).reshape((2, 12)).is_plain
