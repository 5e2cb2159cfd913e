"""The output layer of a model in slices of its vocabulary, a program on each rank of a pipeline.

Vocabulary Parallelism (Yeung et al., arXiv:2411.05288): the matmul that makes logits, the
cross-entropy of these, and the gradients of both are computed for a slice of the classes on each
rank. What the slices tell each other is small: of each row the log-sum of a slice's logits, and the
logit of the row's class in the slice that has it (and the mean of logits, where labels are
smoothed). With the *sums* of all slices every rank computes the loss, and what its own slice has of
the gradients:

    S    hidden rows, a slice of the weight              -> its sums
    T    the sums of all slices, what S keeps            -> the loss, gradients of rows and slice

With algorithm 1 the last backward adds up the gradients of rows that T gives. With algorithm 2 it
does not wait for T: S sends two *products* with its sums, of which a *join* in front of that
backward makes the gradient of rows, and T has that of its slice alone.

The program is written forward, each slice with the loss behind it, and differentiated as any stage
is. The largest logit only guards against overflow: it is rounded to a whole number, which has no
derivative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import DictionaryAttr, ModuleOp
from xdsl.dialects.func import ReturnOp
from xdsl.ir import SSAValue

from irc.dialects.builder import argument_attrs, entry, results
from irc.training.entry import set_results
from irc.training.head import HIDDEN
from irc.training.slice_programs import Cutter
from irc.training.slices import Sliced
from irc.training.stages import BOUNDARY, Crossing, Stages


@dataclass(frozen=True)
class Slices:
    """An output layer in slices.

    Attributes:
        parts: of each slice, its program with the loss behind it; entry ``@forward``.
        alone: of each slice, its program from hidden rows to what it sends.
        tail: from the sums of all slices to the loss.
        sums: of each slice, names of its sums where others read them.
        crossings: between slices, and from the stage that makes the hidden rows to them.
        weights: by name of a weight, how it is cut.
        join: with algorithm 2, what computes the loss on the rank of the hidden rows.
    """

    parts: tuple[ModuleOp, ...]
    alone: tuple[ModuleOp, ...]
    tail: ModuleOp
    sums: tuple[tuple[str, ...], ...]
    crossings: tuple[Crossing, ...]
    weights: Mapping[str, Sliced]
    join: Join | None = None


@dataclass(frozen=True)
class Join:
    """What makes the gradient of the hidden rows of what S has sent, before the last backward.

    Attributes:
        program: from the sums of all slices to the loss; it takes their products too.
        hidden: name of the hidden rows whose gradient it gives.
        sums: names of the sums of all slices.
        products: names of their products.
    """

    program: ModuleOp
    hidden: str
    sums: tuple[str, ...]
    products: tuple[str, ...]


def slices_of(head: ModuleOp, body: Stages, count: int, algorithm: int) -> tuple[Stages, Slices]:
    """Cut an output layer into slices, which are stages behind those of the model's body.

    Args:
        head: the output layer, as :func:`irc.training.head.take_head` gives it.
        body: stages of the rest, of which one gives the hidden rows.
        count: of slices.
        algorithm: 1 or 2.

    Returns:
        The stages, of which that one sends the hidden rows to all slices, and the slices.
    """
    producer = next(
        stage
        for stage, module in enumerate(body.modules)
        if (BOUNDARY, HIDDEN) in results(entry(module))
    )
    first = 1 + max((int(c.name[3:].partition(".")[0]) for c in body.crossings), default=-1)
    parts = range(len(body.modules), len(body.modules) + count)
    joins = [parts.stop] if algorithm == 2 else []
    # With algorithm 2 the gradient of hidden rows comes from what joins the slices.
    hidden = [
        Crossing(f"cut{first}.{to}", producer, to, to == parts.stop or not joins)
        for to in (*parts, *joins)
    ]
    sums = [
        [
            Crossing(f"cut{first + 1 + i}.{to}", part, to, False)
            for to in (*parts, *joins)
            if to != part
        ]
        for i, part in enumerate(parts)
    ]
    products = [
        Crossing(f"cut{first + 1 + count + i}.{to}", part, to, False)
        for i, part in enumerate(parts)
        for to in joins
    ]
    cutter = Cutter(head, count)
    programs: list[ModuleOp] = []
    alone: list[ModuleOp] = []
    for i, part in enumerate(parts):
        sent = [each.name for each in sums[i]]
        read = {j: c.name for j, own in enumerate(sums) for c in own if c.consumer == part}
        more = products[i].name if joins else ""
        programs.append(cutter.part(i, hidden[i].name, sent, read, more))
        alone.append(cutter.alone(i, hidden[i].name, sent, more))
    modules = list(body.modules)
    modules[producer] = _sending(modules[producer], [each.name for each in hidden])
    join = None
    if joins:
        taken = [own[-1].name for own in sums], [each.name for each in products]
        join = Join(cutter.tail(*taken), hidden[-1].name, *map(tuple, taken))
    slices = Slices(
        tuple(programs),
        tuple(alone),
        cutter.tail(),
        tuple(tuple(each.name for each in own) for own in sums),
        (*hidden, *(each for own in sums for each in own), *products),
        cutter.weights,
        join,
    )
    return Stages(tuple(modules), body.crossings), slices


def _sending(module: ModuleOp, names: Sequence[str]) -> ModuleOp:
    """Return a stage that gives its hidden rows by some names."""
    copy = module.clone()
    func = entry(copy)
    end = func.body.block.last_op
    assert isinstance(end, ReturnOp)
    known = func.res_attrs.data if func.res_attrs else ()
    values: list[SSAValue] = []
    attrs: list[DictionaryAttr] = []
    for value, named, own in zip(end.operands, results(func), known, strict=True):
        more = names if named == (BOUNDARY, HIDDEN) else ()
        values += [value] * (len(more) or 1)
        attrs += [argument_attrs(BOUNDARY, name) for name in more] or [own]
    set_results(func, values, attrs)
    return copy
