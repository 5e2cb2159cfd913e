"""Key-value caches in a call: which object comes back, and what of it the call has changed.

A cache is an object that a model writes to and gives back. Its tensors are the program's arguments
and results; the object itself stays the caller's. What is returned is therefore either made anew
from results, or one of the caller's own tensors and caches: which, is watched while the module is
traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils import _pytree as pytree

from irc.frontends.torch.faces import face, subclass
from irc.frontends.torch.grad_reads import GradReads
from irc.frontends.torch.unrecorded import one_call

CLASSES: set[type] = set()
"""The classes of caches that torch's trees have been taught."""


def is_cache(value: object) -> bool:
    """True for an object that a model writes to and gives back."""
    return type(value) in CLASSES


def caches_in(tree: Any) -> list[Any]:
    """Return the caches of a tree, outermost ones, in order."""
    return [each for each in pytree.tree_leaves(tree, is_leaf=is_cache) if is_cache(each)]


def leaves_in_caches(tree: Any) -> set[int]:
    """Return which leaves of a tree are tensors of caches."""
    leaves: set[int] = set()
    start = 0
    for item in pytree.tree_leaves(tree, is_leaf=is_cache):
        count = pytree.tree_structure(item).num_leaves
        if is_cache(item):
            leaves.update(range(start, start + count))
        start += count
    return leaves


@dataclass
class Watch:
    """What the last call of a module did with the caches that it was given.

    Attributes:
        kept: for each cache among the results, which of the given ones it is; None for a new one.
        effect: what the call did besides, in words; nothing for a call that gives results alone.
    """

    kept: list[int | None] = field(default_factory=list[int | None])
    effect: str = ""

    def over(
        self,
        module: nn.Module,
        *,
        hooks: bool = True,
        changed: Callable[[], str] = str,
        held: Callable[[], Sequence[tuple[str, Any]]] = tuple,
        reads: GradReads | None = None,
    ) -> nn.Module:
        """Return a face of a module whose calls are watched.

        Args:
            module: what is to be called.
            hooks: run its own hooks, too; without, a call is its ``forward`` and nothing else.
            changed: says what of the module's state is another than it was.
            held: returns the parameters, buffers and layers, and names for them. One that a call
                assigns is another object then; a program would write into the old one's memory.
            reads: is told what the module is given.
        """

        def call(own: Any, *args: Any, **kwargs: Any) -> Any:
            before, records, owned = changed(), torch.is_grad_enabled(), held()
            items, shape = pytree.tree_flatten((args, kwargs), is_leaf=is_cache)
            with reads.of_call(own, (args, kwargs)) if reads else nullcontext(), one_call():
                output = (
                    type(module).__call__(own, *args, **kwargs)
                    if hooks
                    else own.forward(*args, **kwargs)
                )
            cache_ids = [id(cache) for cache in caches_in((args, kwargs))]
            self.kept = [
                cache_ids.index(id(cache)) if id(cache) in cache_ids else None
                for cache in caches_in(output)
            ]
            after = changed()
            self.effect = "" if after == before else after
            if (name := _assigned(owned, held())) is not None:
                self.effect = f"'{name}' is assigned another tensor or layer"
            now, reshaped = pytree.tree_flatten((args, kwargs), is_leaf=is_cache)
            if reshaped != shape or any(a is not b for a, b in zip(items, now, strict=True)):
                self.effect = "a list or a dictionary that it is given is changed"
            leaves = pytree.tree_leaves(output)
            if torch.is_grad_enabled() is not records:
                self.effect = "whether autograd records is switched"
            elif any(isinstance(leaf, torch.Tensor) and leaf.grad_fn for leaf in leaves):
                self.effect = "autograd is switched on for a result"
            return output

        return face(subclass(type(module), __call__=call), module)


def _assigned(before: Iterable[tuple[str, Any]], after: Iterable[tuple[str, Any]]) -> str | None:
    """Return the first name that stands for another object afterwards."""
    pairs = zip(before, after, strict=True)
    return next((name for (name, old), (_, new) in pairs if new is not old), None)


@dataclass(frozen=True)
class Part:
    """A leaf of what a call returns, caches being leaves.

    Attributes:
        start, stop: its own leaves, among all.
        spec: for a cache, the structure of its leaves; None for anything else.
        cache_index: which of the caller's caches it is; None for one that the module made.
        is_untouched: all leaves of that cache are the caller's own tensors, at their places.
    """

    start: int
    stop: int
    spec: pytree.TreeSpec | None = None
    cache_index: int | None = None
    is_untouched: bool = False


Span: TypeAlias = tuple[list[int | None], pytree.TreeSpec]
"""Of a given cache: for each leaf, which of the program's inputs it is; the structure."""


def spans_of(arguments: Any, tensor_leaves: Sequence[int]) -> list[Span]:
    """Return the spans of the caches among the arguments."""
    number = {leaf: i for i, leaf in enumerate(tensor_leaves)}
    spans: list[Span] = []
    start = 0
    for item in pytree.tree_leaves(arguments, is_leaf=is_cache):
        spec = pytree.tree_structure(item)
        if is_cache(item):
            leaves = range(start, start + spec.num_leaves)
            spans.append(([number.get(leaf) for leaf in leaves], spec))
        start += spec.num_leaves
    return spans


def parts_of(
    example: Any, kept: Sequence[int | None], spans: Sequence[Span], own: Sequence[int | None]
) -> tuple[tuple[Part, ...], pytree.TreeSpec]:
    """Return the parts of what a call returns, and how they make it up.

    Args:
        example: a value of the structure that is returned.
        kept: see :class:`Watch`.
        spans: of the given caches.
        own: for each leaf that is returned, which of the inputs it is, if any.
    """
    items, spec = pytree.tree_flatten(example, is_leaf=is_cache)
    known = iter(kept)
    parts: list[Part] = []
    start = 0
    for item in items:
        inner = pytree.tree_structure(item)
        stop = start + inner.num_leaves
        if is_cache(item):
            cache_index = next(known, None)
            same = cache_index is not None and spans[cache_index] == ([*own[start:stop]], inner)
            parts.append(Part(start, stop, inner, cache_index, same))
        else:
            parts.append(Part(start, stop))
        start = stop
    return tuple(parts), spec


def put_together(
    parts: Sequence[Part], spec: pytree.TreeSpec, leaves: Sequence[Any], caches: Sequence[Any]
) -> Any:
    """Return what the module would return; caches of the caller's are brought up to date.

    Args:
        parts: of the result.
        spec: how they make it up.
        leaves: the result's leaves: tensors, numbers and constants.
        caches: the caches among the caller's arguments.
    """
    items: list[Any] = []
    for part in parts:
        if part.spec is None:
            items.append(leaves[part.start])
            continue
        if part.cache_index is not None and part.is_untouched:
            items.append(caches[part.cache_index])
            continue
        cache = pytree.tree_unflatten(list(leaves[part.start : part.stop]), part.spec)
        if part.cache_index is not None:
            adopt(caches[part.cache_index], cache)
            cache = caches[part.cache_index]
        items.append(cache)
    return pytree.tree_unflatten(items, spec)


def adopt(held: Any, other: Any) -> None:
    """Give a cache the contents of another one of its class; the object and its layers stay."""
    layers: list[Any] | None = getattr(other, "layers", None)
    if layers is None:
        contents: dict[str, Any] = vars(other)
        for name, value in contents.items():
            if is_cache(value):
                adopt(getattr(held, name), value)
            elif isinstance(value, dict):
                getattr(held, name).update(value)
        return
    for old, new in zip(held.layers, layers, strict=False):
        vars(old).update(vars(new))
    held.layers.extend(layers[len(held.layers) :])
