"""PyTorch's own register of operators with sample inputs: which entries and samples are tried."""

# pyright: basic
from __future__ import annotations

import copy
import random
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations as methods
from torch.utils import _pytree as pytree

from tests.opinfo.expected import NOT_ON_CPU
from tests.opinfo.ways import Way

SEED = 0


HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Call:
    """An operator with arguments: one sample of an entry.

    Attributes:
        op: what is called and compiled.
        args: positional arguments, the sample's input first.
        kwargs: keyword arguments.
        chosen: gives of the operator's result what gradients are taken of.
    """

    op: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    chosen: Callable[[Any], Any]

    def copied(self) -> Call:
        """Return the call with tensors of its own that lie, overlap and need gradients as these."""
        leaves, spec = pytree.tree_flatten((self.args, self.kwargs))
        plain = [_detached(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        # Generators stay what they are, and so do sparse tensors, which are copies already.
        kept = (x for x in plain if isinstance(x, torch.Generator) or _is_sparse(x))
        memo = {id(x): x for x in kept}
        copies = [
            new.requires_grad_(old.requires_grad) if isinstance(old, torch.Tensor) else old
            for new, old in zip(copy.deepcopy(plain, memo), leaves, strict=True)
        ]
        args, kwargs = pytree.tree_unflatten(copies, spec)
        return Call(self.op, args, kwargs, self.chosen)

    def is_half(self) -> bool:
        """Return whether an argument is of a half type."""
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        return any(isinstance(x, torch.Tensor) and x.dtype in HALVES for x in leaves)

    def widened(self) -> Call:
        """Return the call in double precision."""
        args, kwargs = pytree.tree_map(_wide, (self.args, self.kwargs))
        return Call(self.op, args, kwargs, self.chosen)

    def compilable(self) -> Callable[..., Any]:
        """Return what is given to a compiler."""
        return fresh(self.op)


def _detached(value: torch.Tensor) -> torch.Tensor:
    return value.detach().clone() if _is_sparse(value) else value.detach()


def _is_sparse(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is not torch.strided


WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}


def _wide(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in WIDE:
        return value.detach().to(WIDE[value.dtype]).requires_grad_(value.requires_grad)
    return WIDE.get(value, value) if isinstance(value, torch.dtype) else value


@cache
def entries(dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Return the entries that take a dtype on the CPU, by name; a variant's follows a dot."""
    by_name: dict[str, Any] = {}
    # The samples' own wrapper of random operators is one that Dynamo cannot trace; seeds are ours.
    methods.wrapper_set_seed = _called
    for info in methods.op_db:
        takes = dtype in info.supported_dtypes("cpu")
        if takes and info.full_name not in NOT_ON_CPU:
            assert info.full_name not in by_name, info.full_name
            by_name[info.full_name] = info
    return by_name


def _called(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


def names_of(way: Way) -> list[str]:
    """Return the names of the entries that can be tried in a way."""
    dtype = way.torch_dtype
    return sorted(
        name
        for name, info in entries(dtype).items()
        if not way.differentiates
        or (info.supports_autograd and dtype in info.supported_backward_dtypes("cpu"))
    )


def part(names: Sequence[str], of: int, seed: int = SEED) -> list[str]:
    """Return one name of so many, the same ones in every run."""
    return sorted(random.Random(seed).sample(sorted(names), len(names) // of))


def calls(name: str, way: Way, most: int | None = None) -> Iterator[Call]:
    """Yield an entry's samples.

    Args:
        name: the entry.
        way: says their dtype, and whether inputs require gradients.
        most: where there are more, so many are chosen, spread and the same ones in every run.
    """
    info = entries(way.torch_dtype)[name]
    wanted = _wanted(info, way, most)
    for index, sample in enumerate(_samples(info, way)):
        if wanted is None or index in wanted:
            yield Call(
                info.op,
                (sample.input, *sample.args),
                dict(sample.kwargs),
                sample.output_process_fn_grad,
            )


def _samples(info: Any, way: Way) -> Iterator[Any]:
    torch.manual_seed(SEED)
    return iter(info.sample_inputs("cpu", way.torch_dtype, requires_grad=way.differentiates))


def _wanted(info: Any, way: Way, most: int | None) -> set[int] | None:
    if most is None:
        return None
    count = sum(1 for _ in _samples(info, way))
    return set(random.Random(SEED).sample(range(count), min(most, count)))


def shard(names: Sequence[str], index: int, of: int) -> list[str]:
    """Return every ``of``-th name, from ``index``."""
    return list(names[index::of])


def fresh(op: Callable[..., Any], _number: list[int] = [0]) -> Callable[..., Any]:  # noqa: B006
    """Return a function of its own that calls an operator: Dynamo keeps its code by code object."""

    def called(*args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    _number[0] += 1
    name = f"called_{_number[0]}"
    return types.FunctionType(
        called.__code__.replace(co_name=name), globals(), name, None, called.__closure__
    )
