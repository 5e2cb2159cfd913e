"""Calls as trees: what a module takes and returns, flattened to tensors and put together again."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from irc.frontends.torch.caches import CLASSES


def register_known() -> None:
    """Teach torch's trees the key-value caches of transformers, if it is imported."""
    caches = sys.modules.get("transformers.cache_utils")
    if caches is None:
        return
    for name in ("DynamicCache", "StaticCache", "EncoderDecoderCache"):
        cls = getattr(caches, name, None)
        if cls is not None and cls not in pytree.SUPPORTED_NODES:
            register = _register_pair if name == "EncoderDecoderCache" else _register_cache
            register(cls)
            CLASSES.add(cls)


def _register_cache(cls: type) -> None:
    """A cache is its layers' tensors, and a template of everything else."""

    def flatten(cache: Any) -> tuple[list[Any], Any]:
        tensors: list[Any] = []
        layers: list[Any] = []
        for layer in cache.layers:
            held = {k: v for k, v in vars(layer).items() if isinstance(v, torch.Tensor)}
            rest = tuple(
                (k, v) for k, v in vars(layer).items() if k not in held and k not in ("device",)
            )
            layers.append((type(layer), tuple(held), rest))
            tensors.extend(held.values())
        return tensors, _Template(layers, {k: v for k, v in vars(cache).items() if k != "layers"})

    def unflatten(tensors: Sequence[Any], template: Any) -> Any:
        cache = cls.__new__(cls)
        vars(cache).update(template.rest)
        values, cache.layers = iter(tensors), []
        for kind, names, rest in template.layers:
            layer = kind.__new__(kind)
            vars(layer).update(rest)
            vars(layer).update({name: next(values) for name in names})
            first = next((v for v in vars(layer).values() if isinstance(v, torch.Tensor)), None)
            if first is not None:
                layer.device = first.device
            cache.layers.append(layer)
        return cache

    def flatten_with_keys(cache: Any) -> tuple[list[Any], Any]:
        tensors, template = flatten(cache)
        names = [f"{i}_{name}" for i, (_, held, _) in enumerate(template.layers) for name in held]
        return [(pytree.MappingKey(k), v) for k, v in zip(names, tensors, strict=True)], template

    contexts = {"to_dumpable_context": repr, "from_dumpable_context": str}
    _register(cls, flatten, unflatten, flatten_with_keys, **contexts)


def _register_pair(cls: type) -> None:
    def flatten(cache: Any) -> tuple[list[Any], Any]:
        parts = [cache.self_attention_cache, cache.cross_attention_cache]
        return parts, tuple(sorted(cache.is_updated.items()))

    def unflatten(parts: Sequence[Any], updated: Any) -> Any:
        cache = cls.__new__(cls)
        cache.self_attention_cache, cache.cross_attention_cache = parts
        cache.is_updated = dict(updated)
        return cache

    def flatten_with_keys(cache: Any) -> tuple[list[Any], Any]:
        names = ("self_attention_cache", "cross_attention_cache")
        parts, updated = flatten(cache)
        return [(pytree.MappingKey(k), v) for k, v in zip(names, parts, strict=True)], updated

    _register(cls, flatten, unflatten, flatten_with_keys)


def _register(
    cls: type,
    flatten: Callable[[Any], tuple[list[Any], Any]],
    unflatten: Callable[[Sequence[Any], Any], Any],
    flatten_with_keys: Callable[[Any], tuple[list[Any], Any]],
    **contexts: Callable[[Any], Any],
) -> None:
    """Make a class known to torch's two kinds of pytrees."""
    from torch.fx._pytree import register_pytree_flatten_spec

    pytree.register_pytree_node(
        cls,
        flatten,
        unflatten,
        serialized_type_name=f"{cls.__module__}.{cls.__name__}",
        flatten_with_keys_fn=flatten_with_keys,
        **contexts,
    )
    register_pytree_flatten_spec(cls, lambda cache, spec: flatten(cache)[0])


PLAIN = bool | int | float | str


class _Template:
    """What of a cache is not tensors; equal by what it says, so that two calls compare equal."""

    def __init__(self, layers: list[Any], rest: dict[str, Any]) -> None:
        self.layers = layers
        self.rest = rest
        # Numbers too: a sliding window counts in one, and masks are computed from it.
        self._said = (
            [(kind, names, {k: v for k, v in rest if isinstance(v, PLAIN)})
             for kind, names, rest in layers],
            {k: v for k, v in rest.items() if isinstance(v, PLAIN)},
        )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Template) and self._said == other._said

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        layers, rest = self._said
        shown = [(kind.__name__, names, sorted(plain.items())) for kind, names, plain in layers]
        return f"cache({shown}, {rest})"


def argument_names(
    forward: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[str]:
    """Return a dotted name for each leaf of the arguments, in flattening order.

    >>> argument_names(lambda x, pair: None, (1, (2, 3)), {})
    ['x', 'pair.0', 'pair.1']
    """
    parameters = list(inspect.signature(forward).parameters.values())
    named: list[str] = []
    for i in range(len(args)):
        plain = i < len(parameters) and parameters[i].kind is not inspect.Parameter.VAR_POSITIONAL
        first = next(
            (p.name for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL), "args"
        )
        named.append(
            parameters[i].name if plain and first != parameters[i].name else f"{first}.{i}"
        )
    leaves: list[str] = []
    for name, value in (*zip(named, args, strict=True), *kwargs.items()):
        leaves += [".".join((name, *path)) for path in paths(value)]
    return leaves


def paths(value: Any) -> list[tuple[str, ...]]:
    """Return the path of each leaf of a tree."""
    return [
        tuple(_step(key) for key in path) for path, _ in pytree.tree_flatten_with_path(value)[0]
    ]


def _step(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def output_names(value: Any) -> list[str]:
    """Return a name for each leaf of what a module returns.

    >>> output_names(1), output_names((1, 2)), output_names({"logits": 1})
    (['output'], ['output0', 'output1'], ['logits'])
    """
    leaves = paths(value)
    names = [".".join(path) or "output" for path in leaves]
    return [f"output{name}" if name[0].isdigit() else name for name in names]
