"""flex_attention while it is traced: its score and mask functions, called on index tensors.

torch vmaps these functions over every score; they are pointwise (a look-up in a captured tensor
included), so one call on indices that broadcast, ``[B, 1, 1, 1]``, ``[1, H, 1, 1]`` and so on,
gives the same, only as large as what the function reads: a mask of documents is [B, 1, S, T]. A
score function that only adds to the score gives attention's bias; another takes the scores apart.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F


class _NotAddedError(Exception):
    """The score goes into something else than a sum."""


class _Score:
    """A score whose value nobody knows yet: only sums with it, and masks of it, are allowed."""

    def __init__(self, bias: Any = None, keep: torch.Tensor | None = None) -> None:
        self.bias, self.keep = bias, keep

    def __add__(self, other: Any) -> _Score:
        if isinstance(other, _Score):
            raise _NotAddedError
        return _Score(other if self.bias is None else self.bias + other, self.keep)

    def masked(self, keep: torch.Tensor) -> _Score:
        """The score, or -inf where it is not kept."""
        return _Score(self.bias, keep if self.keep is None else self.keep & keep)

    __radd__ = __add__

    def __sub__(self, other: Any) -> _Score:
        return self + (-other)

    def __getattr__(self, name: str) -> Any:
        raise _NotAddedError(name)

    def _refuse(self, *_: Any) -> Any:
        raise _NotAddedError

    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __rsub__ = __neg__ = __pow__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __float__ = __abs__ = _refuse

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        match getattr(function, "__name__", ""), args, kwargs:
            case ("add" | "__add__" | "__radd__", (x, y), None | {}):
                return x + y if isinstance(x, _Score) else y + x
            case ("sub" | "__sub__", (_Score() as x, y), None | {}):
                return x - y
            case ("where", (condition, _Score() as x, never), None | {}):
                if not isinstance(condition, _Score) and _is_never(never):
                    return x.masked(condition)
            case ("where", (condition, never, _Score() as x), None | {}):
                if not isinstance(condition, _Score) and _is_never(never):
                    return x.masked(~condition)
            case _:
                pass
        raise _NotAddedError


def _is_never(value: Any) -> bool:
    return isinstance(value, float | int) and value == -torch.inf


def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable[..., Any] | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Any:
    """Return what torch's ``flex_attention`` does, written with ops that irc plans.

    ``query`` is [B, H, S, D], ``key`` and ``value`` [B, G, T, D]. What lies in block_mask beside
    its function (which blocks are empty) follows from the function.
    """
    factor: float = query.shape[-1] ** -0.5 if scale is None else scale
    if key.shape[0] == 1 != query.shape[0]:
        key, value = (x.expand(query.shape[0], -1, -1, -1) for x in (key, value))
    places = _places(query, key)
    rule = getattr(block_mask, "mask_mod", None)
    mask = None if rule is None or _is_noop(rule) else rule(*places)
    wants_sums = return_lse or (return_aux is not None and return_aux.lse)
    wants_top = return_aux is not None and return_aux.max_scores
    added = None if wants_sums or wants_top else _added(score_mod, places)
    if added is not None:
        attn_mask = _joined(added, mask, query)
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=attn_mask, scale=factor, enable_gqa=enable_gqa
        )
    return _apart(query, key, value, score_mod, mask, places, factor, return_lse, return_aux)


def _places(query: torch.Tensor, key: torch.Tensor) -> list[torch.Tensor]:
    """Return the indices of batch, head, row and column, each along a dim of its own."""
    sizes = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    return [
        torch.arange(size, dtype=torch.int32, device=query.device).reshape(
            tuple(size if i == dim else 1 for i in range(4))
        )
        for dim, size in enumerate(sizes)
    ]


def _is_noop(rule: Callable[..., Any]) -> bool:
    return getattr(rule, "__name__", "") == "noop_mask"


def _added(score_mod: Callable[..., Any] | None, places: list[torch.Tensor]) -> _Score | None:
    """Return what a score function adds and masks, or None for one that does something else."""
    if score_mod is None or getattr(score_mod, "__name__", "") == "_identity":
        return _Score()
    try:
        score = score_mod(_Score(), *places)
    except (_NotAddedError, TypeError):
        return None
    return score if isinstance(score, _Score) else None


def _joined(added: _Score, mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """Return the mask of attention: bools where nothing is added."""
    if added.keep is not None:
        mask = added.keep if mask is None else mask & added.keep
    if added.bias is None:
        return mask
    bias = torch.as_tensor(added.bias, device=query.device).to(query.dtype)
    return bias if mask is None else torch.where(mask, bias, -torch.inf)


def _apart(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable[..., Any] | None,
    mask: torch.Tensor | None,
    places: list[torch.Tensor],
    scale: float,
    return_lse: bool,
    return_aux: Any,
) -> Any:
    """Take attention apart: scores, their softmax, and the products."""
    from torch.nn.attention.flex_attention import AuxOutput

    heads, groups = query.shape[1], key.shape[1]
    if heads != groups:
        key, value = (x.repeat_interleave(heads // groups, 1) for x in (key, value))
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = (query @ key.mT).to(wide) * scale
    if score_mod is not None:
        scores = score_mod(scores, *places)
    if mask is not None:
        scores = torch.where(mask, scores, -torch.inf)
    top = scores.amax(-1, keepdim=True)
    safe = torch.where(top == -torch.inf, 0.0, top)
    powers = (scores - safe).exp()
    total = powers.sum(-1, keepdim=True)
    y = (powers / total.clamp(min=1.0)).to(query.dtype) @ value
    sums = (safe + total.log()).squeeze(-1)
    if return_aux is None:
        return (y, sums) if return_lse else y
    return y, AuxOutput(
        lse=sums if return_aux.lse else None,
        max_scores=top.squeeze(-1) if return_aux.max_scores else None,
    )


def create_block_mask(
    mask_mod: Callable[..., Any],
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: Any = None,
    BLOCK_SIZE: Any = 128,
    *_: Any,
    **__: Any,
) -> Any:
    """Return a block mask of one block a side, which carries the function: nothing else is read."""
    from torch.nn.attention.flex_attention import BlockMask

    one = torch.ones((1, 1, 1), dtype=torch.int32, device=device)
    return BlockMask(
        seq_lengths=(Q_LEN, KV_LEN),
        kv_num_blocks=one,
        kv_indices=one.unsqueeze(-1) - 1,
        full_kv_num_blocks=None,
        full_kv_indices=None,
        q_num_blocks=None,
        q_indices=None,
        full_q_num_blocks=None,
        full_q_indices=None,
        BLOCK_SIZE=(Q_LEN, KV_LEN),
        mask_mod=mask_mod,
    )


def _flex(*args: Any, **kwargs: Any) -> Any:
    from irc.frontends.torch.flex import flex_attention

    return flex_attention(*args, **kwargs)


def _block_mask(*args: Any, **kwargs: Any) -> Any:
    from irc.frontends.torch.flex import create_block_mask

    return create_block_mask(*args, **kwargs)


@contextmanager
def plain_flex_attention() -> Generator[None]:
    """Trace ``flex_attention`` and ``create_block_mask`` as the functions here.

    Models hold them under names of their own, so it is the functions' code that is replaced.
    """
    from torch.nn.attention import flex_attention as module

    pairs = [(module.flex_attention, _flex), (module.create_block_mask, _block_mask)]
    before = [(function, function.__code__, function.__kwdefaults__) for function, _ in pairs]
    try:
        for function, other in pairs:
            function.__code__, function.__kwdefaults__ = other.__code__, None
        yield
    finally:
        for function, code, defaults in before:
            function.__code__, function.__kwdefaults__ = code, defaults
