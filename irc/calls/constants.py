"""Constants of the programs of one training step, which has a program for each kind of batch.

What ranks hold is held by name, and a parameter is the same one in all of these programs. A
constant that a trace computes (``torch.tensor([1 / len(x)])``) has the same name in each, and
another value.
"""

from __future__ import annotations

import hashlib

import torch
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, StringAttr

from irc.dialects.builder import arguments, entry, results
from irc.program import Program


def name_constants(program: Program) -> None:
    """Let the names of a program's constants tell their values, in place."""
    func = entry(program.module)
    written = {name for role, name in results(func) if role == "state"}
    known = list(func.arg_attrs.data) if func.arg_attrs else []
    for place, (role, name, _) in enumerate(arguments(func)):
        if role != "constant" or name in written:
            continue
        value = program.tensors[name]
        if value.is_meta or value.layout is not torch.strided:
            continue
        del program.tensors[name]
        renamed = f"{name}.{_digest(value)}"
        program.tensors[renamed] = value
        known[place] = DictionaryAttr({**known[place].data, "name": StringAttr(renamed)})
    func.arg_attrs = ArrayAttr(known)


def _digest(value: torch.Tensor) -> str:
    """Return a short digest of dtype, shape and items."""
    flat = value.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    text = f"{value.dtype} {tuple(value.shape)} ".encode()
    return hashlib.sha256(text + flat.view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
