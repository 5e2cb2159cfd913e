"""A batch in slices inside one call, and the ops of each slice in turns with those of the others.

Known as nano-batches (NanoFlow, arXiv:2408.12757) and as the row split of Domino
(arXiv:2409.15241): collectives of one slice are under way while another is computed.
"""

from __future__ import annotations

from xdsl.dialects.builtin import DictionaryAttr, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from irc.dialects.attributes import to_attribute
from irc.dialects.builder import arguments, entry
from irc.dialects.flow import tensor
from irc.dialects.types import TensorType
from irc.sharding.mesh import mesh_of
from irc.sharding.pieces import Cut
from irc.sharding.slice_rules import (
    ranks_of_samples,
)
from irc.sharding.slicing import Sliced, Slicing

SLICES = "irc.slices"
"""Of a module, into how many slices its batch was cut: see :func:`tell_slices`."""


def batch_of(func: FuncOp) -> tuple[int, list[tuple[str, SSAValue]]]:
    """Return the samples of a batch, and the inputs with so many: dim 0 of the first that has one.

    Names of these come along. 0 where there is none.
    """
    shaped = [
        (name, value)
        for role, name, value in arguments(func)
        if role == "input" and isinstance(value.type, TensorType) and tensor(value).ndim
    ]
    if not shaped:
        return 0, []
    rows = tensor(shaped[0][1]).static_shape()[0]
    return rows, [(n, v) for n, v in shaped if tensor(v).static_shape()[0] == rows]


def slice_batch(module: ModuleOp, ways: int) -> Sliced:
    """Cut the batch of a program into slices, each computed by ops of its own; sums are added up.

    Args:
        module: level spmd, of fixed sizes; its entry is changed, and blocks that a batch goes
            through are put in the place of their calls.
        ways: how many slices; divides the batch, else nothing is changed.
    """
    func = entry(module)
    rows, inputs = batch_of(func)
    said = Sliced(rows, inputs[0][0] if inputs else "")
    if not rows or rows % ways:
        return said
    ranks = ranks_of_samples(module.walk(), mesh_of(module))
    # Where ranks divide samples among them, a slice has some of each rank's.
    cut = Cut(0, ways, ranks if rows % (ways * ranks) == 0 else 1)
    Slicing(module, cut, [value for _, value in inputs], said).run(func)
    return said


def tell_slices(module: ModuleOp, ways: int, said: Sliced, saved_s: float | None) -> None:
    """Write into a module what was sliced: what ``irc explain`` reads."""
    facts: dict[str, object] = {
        "ways": ways,
        "rows": said.rows,
        "input": said.input,
        "collectives": len(said.collectives),
    }
    if saved_s is not None:
        facts["saved_s"] = saved_s
    module.attributes[SLICES] = DictionaryAttr({k: to_attribute(v) for k, v in facts.items()})
