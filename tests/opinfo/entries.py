"""PyTorch's own register of operators with sample inputs: which entries and samples are tried."""

# pyright: basic
from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations as methods
from torch.utils import _pytree as pytree

from tests.opinfo.expected import NOT_ON_CPU

SEED = 0


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
        made = [
            new.requires_grad_(old.requires_grad) if isinstance(old, torch.Tensor) else old
            for new, old in zip(copy.deepcopy(plain, memo), leaves, strict=True)
        ]
        args, kwargs = pytree.tree_unflatten(made, spec)
        return Call(self.op, args, kwargs, self.chosen)

    def widened(self) -> Call:
        """Return the call in double precision."""
        args, kwargs = pytree.tree_map(_wide, (self.args, self.kwargs))
        return Call(self.op, args, kwargs, self.chosen)

    def __call__(self) -> Any:
        """Run it eagerly."""
        return self.op(*self.args, **self.kwargs)


def _detached(value: torch.Tensor) -> torch.Tensor:
    return value.detach().clone() if _is_sparse(value) else value.detach()


def _is_sparse(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is not torch.strided


WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}


def _wide(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in WIDE:
        return value.detach().to(WIDE[value.dtype]).requires_grad_(value.requires_grad)
    return WIDE.get(value, value) if isinstance(value, torch.dtype) else value


@cache
def entries() -> dict[str, Any]:
    """Return the entries that take float32 on the CPU, by name; a variant's follows a dot."""
    found: dict[str, Any] = {}
    # The samples' own wrapper of random operators is one that Dynamo cannot trace; seeds are ours.
    methods.wrapper_set_seed = _called
    for info in methods.op_db:
        takes = torch.float32 in info.supported_dtypes("cpu")
        if takes and info.full_name not in NOT_ON_CPU:
            assert info.full_name not in found, info.full_name
            found[info.full_name] = info
    return found


def _called(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


def tenth() -> list[str]:
    """Return one entry of ten, the same ones in every run."""
    names = sorted(entries())
    return sorted(random.Random(SEED).sample(names, len(names) // 10))


def calls(name: str, *, backward: bool, most: int | None = None) -> Iterator[Call]:
    """Yield an entry's samples.

    Args:
        name: the entry.
        backward: whether inputs require gradients.
        most: where there are more, so many are chosen, spread and the same ones in every run.
    """
    wanted = _wanted(name, backward, most)
    for index, sample in enumerate(_samples(name, backward)):
        if wanted is None or index in wanted:
            yield Call(
                entries()[name].op,
                (sample.input, *sample.args),
                dict(sample.kwargs),
                sample.output_process_fn_grad,
            )


def _samples(name: str, backward: bool) -> Iterator[Any]:
    torch.manual_seed(SEED)
    return iter(entries()[name].sample_inputs("cpu", torch.float32, requires_grad=backward))


def _wanted(name: str, backward: bool, most: int | None) -> set[int] | None:
    if most is None:
        return None
    count = sum(1 for _ in _samples(name, backward))
    return set(random.Random(SEED).sample(range(count), min(most, count)))


def shard(names: Sequence[str], index: int, of: int) -> list[str]:
    """Return every ``of``-th name, from ``index``."""
    return list(names[index::of])
