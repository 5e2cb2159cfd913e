"""Losses divided by a sum over the batch, in a step of stages: tokens that count, class weights.

Each micro-batch is given its share of what the whole batch sums up to
(:mod:`irc.training.normalisers`). The function ``sums`` gives those of a micro-batch from its
inputs, before anything else runs; ``shares`` turns their totals into what F and B read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, SSAValue

from irc.dialects.builder import argument_attrs, arguments, entry, finish_function, results
from irc.ops.derivative import PhaseBuilder
from irc.training.normalisers import normalisers, shares_of, sum_function, take_shares

SUMS, SHARES = "sums", "shares"
"""Functions of the whole batch: what losses are divided by, and each micro-batch's share of it."""
SHARE = "share."
"""First letters of the name of an input that is such a share."""


def take_batch_sums(module: ModuleOp, cut: Collection[str], part: float) -> Mapping[str, ModuleOp]:
    """Let a stage read shares of sums over the batch where it computes those of a micro-batch.

    Args:
        module: of a stage, forward and backward, or the model itself; changed.
        cut: names of the inputs that are cut into micro-batches.
        part: of the batch that a micro-batch is: 1 / the number of equal ones.

    Returns:
        The functions ``sums`` and ``shares``; nothing where the stage divides by no such sum, and
        for one micro-batch, which is the batch.

    Raises:
        IrcError: ``op-unsupported`` for an op whose share in a micro-batch cannot be told.
    """
    if part == 1:
        return {}
    func = entry(module)
    block, named = func.body.block, arguments(func)
    written = {name for role, name in results(func) if role == "state"}
    same = [
        value
        for role, name, value in named
        if role in ("input", "constant", "buffer") and name not in written
    ]
    batch_values = normalisers(block, same, [v for _, name, v in named if name in cut])
    if not batch_values.shares:
        return {}
    attrs = list(func.arg_attrs.data) if func.arg_attrs else []
    sums, reads = sum_function(batch_values, block, "forward")
    sums.arg_attrs = ArrayAttr([attrs[i] for i in reads])
    sums.res_attrs = ArrayAttr(
        [argument_attrs("output", f"{i}") for i in range(len(batch_values.sums))]
    )
    whole = [
        (i, value) for i, (_, name, value) in enumerate(named) if value in same and name not in cut
    ]
    totals = Block(arg_types=[*(v.type for v in batch_values.sums), *(v.type for _, v in whole)])
    b = PhaseBuilder(totals, "forward", prefix="share", loc="micro-batches")
    constants: dict[SSAValue, SSAValue] = dict(
        zip((v for _, v in whole), totals.args[len(batch_values.sums) :], strict=True)
    )
    share_values = shares_of(
        batch_values, totals.args[: len(batch_values.sums)], constants, b, totals, part
    )
    shares = _shares_function(
        totals, share_values, [attrs[i] for i, _ in whole], len(batch_values.sums)
    )
    take_shares(batch_values, block)
    more = [argument_attrs("input", f"{SHARE}{i}") for i in range(len(batch_values.shares))]
    func.arg_attrs = ArrayAttr([*attrs, *more])
    func.update_function_type()
    return {SUMS: ModuleOp([sums]), SHARES: ModuleOp([shares])}


def _shares_function(
    block: Block, shares: list[SSAValue], constants: list[DictionaryAttr], count: int
) -> FuncOp:
    """Close the function ``shares``; what it does not read is no argument."""
    attrs = [argument_attrs("input", f"sum.{i}") for i in range(count)] + constants
    for i in range(len(block.args) - 1, count - 1, -1):
        if block.args[i].first_use is None and block.args[i] not in shares:
            block.erase_arg(block.args[i])
            del attrs[i]
    return finish_function(
        "forward",
        block,
        shares,
        arg_attrs=attrs,
        res_attrs=[argument_attrs("output", f"{SHARE}{i}") for i in range(len(shares))],
    )
