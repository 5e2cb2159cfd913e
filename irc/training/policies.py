"""Recompute policies: which forward ops may run again in the backward pass.

* ``none``: what costs nothing (:mod:`irc.training.saving`): as much as frameworks save.
* ``cheap``: pointwise ops for products too, which read fewer saved bytes for one more pass.
* ``selective``: what grows with the square of the sequence: products of two activations that are
  larger than both, up to where a product takes them in again (attention's scores, softmax and
  dropout; arXiv:2205.05198, section 5).
* ``every-second-matmul``: everything but attention and every other product with a weight, as
  torchtitan's policy for single ops has it.
* ``full``: everything inside a block; of a body without repeated blocks, inside of some sqrt(n)
  stretches of it (arXiv:1604.06174, section 4).
* a name that another package registers, as a function of the forward ops of a body, in order, and
  of its weights and what is made of them alone; it returns the ops that may run again::

    [project.entry-points."irc.policies"]
    mine = "my_package.mine:mine"

* anything else: globs of op ids, source lines and block names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from fnmatch import fnmatchcase
from itertools import pairwise
from math import isqrt, prod
from typing import TypeAlias, cast

from xdsl.dialects.func import CallOp
from xdsl.ir import Block, Operation, SSAValue

from irc.dialects.flow import (
    ContractOp,
    ExternOp,
    PointwiseOp,
    ReduceOp,
    ShapeOp,
    id_of,
    loc_of,
    tensor,
)
from irc.dialects.literals import RandomOp
from irc.entry_points import POLICIES as GROUP
from irc.entry_points import Registered, broken, load, provider, registered
from irc.errors import IrcError
from irc.installed import warn_of_disabled
from irc.ops.derivatives_extern import DRAWS
from irc.training.saving import LITERALS, UNBOUND, num_bytes

EVERY_SECOND = "every-second-matmul"

POLICIES = ("none", "cheap", "selective", EVERY_SECOND, "full")
"""The named ones, from what saves most to what saves least, but for ``cheap`` and ``selective``."""

TAKEN = frozenset((*POLICIES, "auto"))
"""Names that no package's policy takes: these, and the one that chooses among them."""

Policy: TypeAlias = Callable[[Sequence[Operation], AbstractSet[SSAValue]], Iterable[Operation]]
"""Of the forward ops of a body, in order, and of what is fixed there: those that may run again."""

SPREADS = (PointwiseOp, ReduceOp, ShapeOp)
"""Ops through which the core of attention goes on."""


def policy_names() -> list[str]:
    """Return the named policies, those of other packages last."""
    return [*POLICIES, *sorted({each.name for each in registered(GROUP)} - {*POLICIES})]


def find_policy(name: str) -> Policy | None:
    """Import the policy that another package registers by a name; None where none does.

    Raises:
        IrcError: ``plugin-clash``, ``plugin-broken``.
    """
    warn_of_disabled()
    plugin = None if name in POLICIES else provider(GROUP, name)
    return None if plugin is None else plugin_policy(plugin)


def plugin_policy(plugin: Registered) -> Policy:
    """Import the policy of a plug-in, and hold it to what one returns.

    Raises:
        IrcError: ``plugin-broken``, also by the policy.
    """
    choose = load(GROUP, plugin)
    if not callable(choose):
        raise broken(GROUP, plugin, f"{choose!r} is no function of forward ops and what is fixed")

    def checked(
        forward: Sequence[Operation], fixed: AbstractSet[SSAValue]
    ) -> AbstractSet[Operation]:
        try:
            chosen = set(cast("Policy", choose)(forward, fixed))
        except IrcError:
            raise
        except Exception as error:  # the plug-in's own code
            raise broken(GROUP, plugin, f"{type(error).__name__}: {error}") from error
        if not chosen <= {*forward}:
            raise broken(GROUP, plugin, "it returns what is no op of the forward pass")
        return chosen

    checked.__doc__ = choose.__doc__
    return checked


def may_run_again(op: Operation) -> bool:
    """True for an op that gives the same again: no call, and nothing drawn by a library."""
    if isinstance(op, ExternOp):
        return not any(word in op.target.lower() for word in DRAWS)
    return not isinstance(op, CallOp)


def core(forward: Sequence[Operation], fixed: AbstractSet[SSAValue]) -> set[Operation]:
    """Return what grows with the square of the sequence, and the masks that only it reads."""
    core_ops: set[Operation] = set()
    for op in forward:
        grows = isinstance(op, ContractOp) and _outgrows(op, fixed)
        inner = isinstance(op, SPREADS) and any(value.owner in core_ops for value in op.operands)
        if grows or inner:
            core_ops.add(op)
    masks: set[Operation] = set()
    for op in forward:
        inner = isinstance(op, SPREADS) and all(value.owner in masks for value in op.operands)
        if inner or isinstance(op, (*LITERALS, RandomOp)):
            masks.add(op)
    inside = set(forward)
    for op in reversed(forward):
        if op in masks:
            readers = {use.operation for value in op.results for use in value.uses} & inside
            if readers and readers <= core_ops:
                core_ops.add(op)
    return core_ops


def all_but_every_second(
    forward: Sequence[Operation], fixed: AbstractSet[SSAValue]
) -> set[Operation]:
    """Return all but the first, third, ... product with a weight, and what attention gives."""
    inner, weights, count = core(forward, fixed), set(fixed), 0
    kept: set[Operation] = set()
    for op in forward:
        if op.operands and all(value in weights for value in op.operands):
            weights.update(op.results)
        elif isinstance(op, ContractOp) and any(value in weights for value in op.inputs):
            count += 1
            if count % 2:
                kept.add(op)
        elif (isinstance(op, ContractOp) and op not in inner) or _is_attention(op):
            kept.add(op)
    return set(forward) - kept


def _is_attention(op: Operation) -> bool:
    return isinstance(op, ExternOp) and "attention" in op.target.lower()


def _outgrows(op: ContractOp, fixed: AbstractSet[SSAValue]) -> bool:
    """True for a product of activations that has more elements than either."""
    if len(op.inputs) < 2 or any(value in fixed for value in op.inputs):
        return False
    return _count(op.outputs[0]) > max(_count(value) for value in op.inputs)


def _count(value: SSAValue) -> int:
    return prod(dim if isinstance(dim, int) else UNBOUND for dim in tensor(value).shape)


def matching(forward: Sequence[Operation], name: str, globs: Sequence[str]) -> set[Operation]:
    """Return the ops that globs choose, by id, by block and id, or by source line."""
    return {
        op
        for op in forward
        for glob in globs
        if any(
            fnmatchcase(text, glob) for text in (id_of(op), f"{name}/{id_of(op)}", loc_of(op), name)
        )
    }


def stretches(forward: Sequence[Operation], fixed: AbstractSet[SSAValue]) -> set[Operation]:
    """Return all ops of a body but those whose values are saved between some sqrt(n) stretches.

    A stretch ends where the fewest bytes are alive, near the place that its share of what the
    forward pass makes gives it.
    """
    alive = _alive(forward, fixed)
    sizes = [sum(num_bytes(v) for v in op.results if v not in fixed) for op in forward]
    heavy = sum(1 for op in forward if not isinstance(op, (*SPREADS, *LITERALS)))
    count = max(1, isqrt(heavy))
    places: list[int] = []
    total, running = sum(sizes), 0
    for i, size in enumerate(sizes):
        running += size
        if running * count >= total * (len(places) + 1):
            places.append(i)
    kept: set[SSAValue] = set()
    for before, place in pairwise([0, *places]):
        near = range(max(before, (before + place) // 2), min(place + 1, len(forward) - 1))
        if near:
            best = min(near, key=lambda i: (sum(map(num_bytes, alive[i])), -i))
            kept |= alive[best]
    return {op for op in forward if not any(value in kept for value in op.results)}


def _alive(forward: Sequence[Operation], fixed: AbstractSet[SSAValue]) -> list[set[SSAValue]]:
    """Return, after each op, the values that later forward ops read."""
    alive: set[SSAValue] = set()
    alive_after: list[set[SSAValue]] = []
    for op in reversed(forward):
        alive_after.append(set(alive))
        alive.difference_update(op.results)
        read = (_shown(value) for value in op.operands)
        alive.update(v for v in read if v not in fixed and not isinstance(v.owner, Block))
    return alive_after[::-1]


def _shown(value: SSAValue) -> SSAValue:
    """Return the value that a view shows."""
    while isinstance(value.owner, ShapeOp):
        value = value.owner.operands[0]
    return value
