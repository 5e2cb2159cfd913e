"""Recompute policies of single layers: which calls of a block run which policy.

Layers that are alike are calls of one function. Where their policies differ the function is copied,
once for each policy, so that planning goes on with as many functions as there are policies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp, StringAttr, SymbolRefAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation, SSAValue

from irc.dialects.builder import arguments, entry, functions
from irc.training.entry import HELD
from irc.training.pairs import FORWARD, Pair, pairs
from irc.training.stage_names import named_by

LAYER = re.compile(r"((?:.*?\.)?\d+)(?:\.|$)")
"""A name up to its first number: the layer of a list of them."""

EVERY, FIRST = "every", "first"
"""Begin what is said of every so many layers, or of the first ones, in the place of a name."""


@dataclass(frozen=True)
class LayerPolicy:
    """What one constraint says of some layers.

    Attributes:
        word: a name, a run of modules or a glob, as of stages; or ``every 2``: the second layer,
            the fourth, ...; or ``first 4``; both are counted in the program or stage at hand.
        policy: a named one of :mod:`irc.training.policies`.
    """

    word: str
    policy: str

    def is_of(self, place: int, names: Sequence[str]) -> bool:
        """Return whether a layer is meant.

        Args:
            place: of the layer in the program, counted from 1; 0: it is in no list of layers.
            names: of its parameters.
        """
        first, _, number = self.word.partition(" ")
        if first == EVERY and number.isdigit():
            return place > 0 and place % int(number) == 0
        if first == FIRST and number.isdigit():
            return 0 < place <= int(number)
        return bool(named_by(self.word, names))


def parse_policies(text: str) -> tuple[str, tuple[LayerPolicy, ...]]:
    """Return the policy of all layers, and what is said of single ones.

    >>> base, own = parse_policies("none; every 2 = full; l.{0-3} = selective")
    >>> base, [f"{each.word}: {each.policy}" for each in own]
    ('none', ['every 2: full', 'l.{0-3}: selective'])
    """
    base, *parts = (part.strip() for part in text.split(";"))
    words = (part.rpartition("=") for part in parts)
    return base, tuple(LayerPolicy(word.strip(), policy.strip()) for word, _, policy in words)


def policies_text(base: str, own: Iterable[LayerPolicy]) -> str:
    """Return the text that :func:`parse_policies` reads."""
    return "; ".join([base, *(f"{each.word} = {each.policy}" for each in own)])


def policy_of(base: str, own: Sequence[LayerPolicy], place: int, names: Sequence[str]) -> str:
    """Return the policy of one layer: of several that name it the last holds."""
    return next((each.policy for each in reversed(own) if each.is_of(place, names)), base)


def places_of_layers(forward: Iterable[Operation], named: Mapping[SSAValue, str]) -> dict[str, int]:
    """Return the place of each layer of a list of them, in the order of their first readers.

    Args:
        forward: the ops of the entry, in order.
        named: its parameters.
    """
    names = (named[value] for op in forward for value in op.operands if value in named)
    layers = dict.fromkeys(match[1] for name in names if (match := LAYER.match(name)))
    return {layer: place for place, layer in enumerate(layers, start=1)}


def split_by_policy(module: ModuleOp, base: str, own: Sequence[LayerPolicy]) -> dict[str, str]:
    """Give each policy a function of its own, and return the policies by forward function.

    Args:
        module: after ``differentiate``; changed.
        base: the policy of layers that nothing is said of.
        own: what is said of some.
    """
    func = entry(module)
    named = {value: name for role, name, value in arguments(func) if role in HELD}
    order = {op: number for number, op in enumerate(func.body.block.ops)}
    places = places_of_layers(order, named)
    every = pairs(module)
    # What has no parameters of a list of layers is a layer of its own.
    called = sorted((c[0] for pair in every for c in pair.calls), key=lambda op: order.get(op, 0))
    policies: dict[str, str] = {}
    for pair in every:
        groups: dict[str, list[tuple[CallOp, CallOp]]] = {}
        for calls in pair.calls:
            names = [named[value] for value in calls[0].operands if value in named]
            layers = [places[m[1]] for name in names if (m := LAYER.match(name))]
            place = min(layers, default=called.index(calls[0]) + 1)
            groups.setdefault(policy_of(base, own, place, names), []).append(calls)
        first, *others = groups
        policies[pair.forward.sym_name.data] = first
        for number, policy in enumerate(others, start=1):
            policies[_copied(module, pair, groups[policy], number)] = policy
    return policies


def _copied(
    module: ModuleOp, pair: Pair, calls: Sequence[tuple[CallOp, CallOp]], number: int
) -> str:
    """Copy both functions of a block for some of its calls; return the forward one's name."""
    names = [_copy(module, func, number) for func in (pair.forward, pair.backward)]
    known = functions(module)
    known[names[1]].attributes[FORWARD] = StringAttr(names[0])
    for both in calls:
        for call, name in zip(both, names, strict=True):
            call.properties["callee"] = SymbolRefAttr(name)
    return names[0]


def _copy(module: ModuleOp, func: FuncOp, number: int) -> str:
    known, base = functions(module), f"{func.sym_name.data}_p"
    while f"{base}{number}" in known:
        number += 1
    copy = func.clone()
    copy.properties["sym_name"] = StringAttr(f"{base}{number}")
    assert func.parent is not None
    func.parent.insert_op_before(copy, func)
    return f"{base}{number}"


def stretches_of_layers(
    forward: Sequence[Operation], named: Mapping[SSAValue, str], *, has_blocks: bool
) -> list[tuple[int, list[str], list[Operation]]]:
    """Return the layers of a flat body: place, parameters, the ops from first to last reader.

    Modules around a list of layers, or around calls of blocks, have the place 0; where there is no
    such list, each module has its own place.

    Args:
        forward: the body's ops, in order.
        named: its parameters.
        has_blocks: some ops call blocks, which are layers.
    """
    readers: dict[str, list[int]] = {}
    names: dict[str, list[str]] = {}
    for number, op in enumerate(forward):
        for value in op.operands:
            if (name := named.get(value)) is None:
                continue
            match = LAYER.match(name)
            layer = match[1] if match else name.rpartition(".")[0] or name
            readers.setdefault(layer, []).append(number)
            names.setdefault(layer, []).append(name)
    places = places_of_layers(forward, named)
    if not places and not has_blocks:
        places = {layer: place for place, layer in enumerate(readers, start=1)}
    return [
        (places.get(layer, 0), names[layer], list(forward[min(own) : max(own) + 1]))
        for layer, own in readers.items()
    ]
