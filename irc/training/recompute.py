"""Recompute, body by body: what each saves under a policy, written into the program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation, SSAValue

from irc.dialects.builder import arguments, entry, functions
from irc.dialects.literals import RandomOp
from irc.errors import IrcError, did_you_mean
from irc.training.entry import HELD, drop_uncalled, drop_unread, globs
from irc.training.layer_policies import (
    LayerPolicy,
    parse_policies,
    policy_of,
    split_by_policy,
    stretches_of_layers,
)
from irc.training.pairs import Pair, join, pairs, split
from irc.training.policies import (
    all_but_every_second,
    core,
    find_policy,
    matching,
    may_run_again,
    policy_names,
    stretches,
)
from irc.training.saving import Saving, is_forward, num_bytes

POLICY, SAVED = "irc.recompute", "irc.saved_bytes"
"""Attributes of a forward function: the policy, and the bytes that one run of it saves."""


@dataclass(frozen=True)
class Decision:
    """What became of one body.

    Attributes:
        function: its name.
        policy: as asked for.
        saved_bytes: of the whole tensors that one run of it saves, weights apart.
    """

    function: str
    policy: str
    saved_bytes: int


def apply_policies(
    module: ModuleOp, policy: str, own: Mapping[str, str] | None = None
) -> list[Decision]:
    """Decide anew what every body saves.

    Args:
        module: after ``differentiate``; changed.
        policy: a named one, or globs of ops that run again; and what single layers have instead
            (:mod:`irc.training.layer_policies`).
        own: policies of single blocks, by the name of the forward function.

    Raises:
        IrcError: ``option-value``, for a glob that chooses nothing.
    """
    policy, layers = parse_policies(policy)
    chosen, decisions = dict(own or {}), list[Decision]()
    _check_layers(layers)
    if layers:
        chosen = {**split_by_policy(module, policy, layers), **chosen}
    names = [pair.backward.sym_name.data for pair in pairs(module)]
    hits: dict[str, set[Operation]] = {}
    for name in names:
        pair = next(p for p in pairs(module) if p.backward.sym_name.data == name)
        own_policy = chosen.get(pair.forward.sym_name.data, policy)
        decision = _pair(module, pair, own_policy, hits)
        if decision is not None:
            decisions.append(decision)
    has_blocks = bool(names)
    decisions += [
        _entry(module, chosen.get("forward", policy), layers, hits, has_blocks=has_blocks)
    ]
    _check_globs(policy, hits)
    drop_uncalled(module)
    return decisions


def _pair(
    module: ModuleOp, pair: Pair, policy: str, hits: dict[str, set[Operation]]
) -> Decision | None:
    joint = join(pair)
    if joint is None:
        return None
    name = pair.forward.sym_name.data
    held = held_arguments(module)[name]
    fixed = {joint.block.args[i] for i in held}
    forward = [op for op in joint.block.ops if is_forward(op)]
    again = _again(forward, name, policy, fixed, hits, is_flat=False)
    saving = Saving(joint.block, fixed, fixed, again, policy, fused_only=policy != "cheap")
    saved = saving.run() - set(joint.block.args[joint.arguments :])
    split(joint)
    return _note(pair.forward, policy, saved)


def _entry(
    module: ModuleOp,
    policy: str,
    layers: Sequence[LayerPolicy],
    hits: dict[str, set[Operation]],
    *,
    has_blocks: bool,
) -> Decision:
    func = entry(module)
    held = {value for _, _, value in arguments(func)}
    fixed = {value for role, _, value in arguments(func) if role in HELD}
    forward = [op for op in func.body.block.ops if is_forward(op)]
    # What stands around repeated blocks is little, and its input may be all of theirs.
    named = "none" if has_blocks and policy == "full" else policy
    again = _again(forward, "forward", named, fixed, hits, is_flat=True)
    params = {value: name for role, name, value in arguments(func) if role in HELD}
    for place, names, ops in stretches_of_layers(forward, params, has_blocks=has_blocks):
        if own := policy_of("", layers, place, names):
            again -= set(ops)
            again |= _again(ops, "forward", own, fixed, hits, is_flat=False)
    saving = Saving(func.body.block, fixed, held, again, policy, fused_only=policy != "cheap")
    saved = {value for value in saving.run() if not isinstance(value.owner, CallOp)}
    drop_unread(func)
    return _note(func, policy, saved)


def _again(
    forward: Sequence[Operation],
    name: str,
    policy: str,
    fixed: AbstractSet[SSAValue],
    hits: dict[str, set[Operation]],
    *,
    is_flat: bool,
) -> set[Operation]:
    """Return the ops that a policy lets run again."""
    match policy:
        case "none" | "cheap":
            again: set[Operation] = set()
        case "selective":
            again = core(forward, fixed)
        case "every-second-matmul":
            again = all_but_every_second(forward, fixed)
        case "full":
            again = stretches(forward, fixed) if is_flat else set(forward)
        case _ if (choose := find_policy(policy)) is not None:
            again = set(choose(forward, fixed))
        case _:
            again = set()
            for glob in globs(policy):
                matched = matching(forward, name, [glob])
                hits.setdefault(glob, set()).update(matched)
                again |= matched
    return {op for op in again if may_run_again(op)}


def _check_layers(layers: Sequence[LayerPolicy]) -> None:
    known = policy_names() if layers else []
    for each in layers:
        if each.policy not in known:
            raise IrcError(
                "option-value",
                f"recompute: '{each.word}' is to have '{each.policy}', and there is no such policy",
                help=did_you_mean(each.policy, known) or f"one of {', '.join(known)}",
            )


def _check_globs(policy: str, hits: Mapping[str, set[Operation]]) -> None:
    if policy in (known := policy_names()):
        return
    for glob in globs(policy):
        if not hits.get(glob):
            raise IrcError(
                "option-value",
                f"recompute: no op of the forward pass matches '{glob}'",
                because="globs are of op ids (b0n12), BLOCK/ID, source lines, and block names",
                help=f"one of {', '.join(known)}, auto, or such a glob",
            )


def held_arguments(module: ModuleOp) -> dict[str, set[int]]:
    """Return for each function which arguments are weights, or made of weights, in every call."""
    known = functions(module)
    indices: dict[str, set[int]] = {}
    pending = ["forward"]
    roles = arguments(entry(module))
    indices["forward"] = {i for i, (role, _, _) in enumerate(roles) if role in HELD}
    while pending:
        name = pending.pop()
        block = known[name].body.block
        held: set[SSAValue] = {block.args[i] for i in indices[name]}
        for op in block.ops:
            if isinstance(op, CallOp):
                callee = op.callee.string_value()
                here = {i for i, value in enumerate(op.operands) if value in held}
                before = indices.get(callee)
                indices[callee] = here if before is None else before & here
                if indices[callee] != before:
                    pending.append(callee)
            elif not isinstance(op, RandomOp) and all(value in held for value in op.operands):
                held.update(op.results)
    for name in known:
        indices.setdefault(name, set())
    return indices


def _note(func: FuncOp, policy: str, saved: AbstractSet[SSAValue]) -> Decision:
    total = sum(map(num_bytes, saved))
    func.attributes[POLICY] = StringAttr(policy)
    func.attributes[SAVED] = IntegerAttr(total, i64)
    return Decision(func.sym_name.data, policy, total)
