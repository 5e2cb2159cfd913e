"""ATen's einsum: pairs of operands are contracted from the left."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters
from typing import Any

from xdsl.ir import SSAValue

from irc.dialects.flow import TransposeOp, tensor
from irc.frontends.torch.diagonals import diagonal_of
from irc.frontends.torch.linear import contract
from irc.frontends.torch.lowering import Lowering, lowers

DOTS = "..."


@lowers("einsum", numbers="complex")
def einsum(
    t: Lowering, equation: str, tensors: Sequence[SSAValue], *, path: Any = None
) -> SSAValue:
    """Contract pair by pair, from the left; a letter twice in an operand is its diagonal."""
    specs, result = written_out(equation, [tensor(x).ndim for x in tensors])
    once = [_without_repeats(t, x, s) for x, s in zip(tensors, specs, strict=True)]
    tensors, specs = [x for x, _ in once], [s for _, s in once]
    operands = [_without_ones(t, i, specs, tensors) for i in range(len(specs))]
    (value, spec), *others = operands
    if not others:
        return _alone(t, value, spec, result)
    for i, (other, mine) in enumerate(others, 1):
        needed = {*result, *"".join(rest for _, rest in others[i:])}
        last = i == len(others)
        out = result if last else "".join(x for x in dict.fromkeys(spec + mine) if x in needed)
        value, spec = contract(t, f"{spec},{mine}->{out}", value, other), out
    return t.b.reshape(value, t.shape)


def written_out(equation: str, ndims: Sequence[int]) -> tuple[list[str], str]:
    """Return the letters of operands and result, with letters in the place of ``...``.

    >>> written_out("b...c, cd -> b...d", [4, 2])
    (['bZYc', 'cd'], 'bZYd')
    >>> written_out("...i,i", [2, 1])
    (['Zi', 'i'], 'Z')
    """
    equation = equation.replace(" ", "")
    left, arrow, result = equation.partition("->")
    specs = left.split(",")
    free = [x for x in reversed(ascii_letters) if x not in equation]
    counts = [n - len(s.replace(DOTS, "")) for s, n in zip(specs, ndims, strict=True)]
    most = max((n for s, n in zip(specs, counts, strict=True) if DOTS in s), default=0)
    names = "".join(free[:most])
    if not arrow:
        letters = "".join(specs).replace(DOTS, "")
        once = sorted(x for x in set(letters) if letters.count(x) == 1)
        result = DOTS * (DOTS in left) + "".join(once)
    # Dims under dots are aligned from the right, as in broadcasting.
    operand_specs = [s.replace(DOTS, names[most - n :]) for s, n in zip(specs, counts, strict=True)]
    return operand_specs, result.replace(DOTS, names)


def _without_repeats(t: Lowering, x: SSAValue, spec: str) -> tuple[SSAValue, str]:
    while twice := [letter for letter in spec if spec.count(letter) > 1]:
        letter = twice[0]
        i, j = spec.index(letter), spec.rindex(letter)
        x = diagonal_of(t, x, 0, i, j)
        spec = spec[:i] + spec[i + 1 : j] + spec[j + 1 :] + letter
    return x, spec


def _without_ones(
    t: Lowering, index: int, specs: Sequence[str], tensors: Sequence[SSAValue]
) -> tuple[SSAValue, str]:
    """Drop dims of size 1 of one operand which another stretches."""
    sizes = [
        dict(zip(s, tensor(x).shape, strict=True)) for s, x in zip(specs, tensors, strict=True)
    ]
    mine = sizes[index]
    stretched = {x for other in sizes for x in mine if mine[x] == 1 and other.get(x, 1) != 1}
    kept = "".join(x for x in specs[index] if x not in stretched)
    return t.b.reshape(tensors[index], [mine[x] for x in kept]), kept


def _alone(t: Lowering, value: SSAValue, spec: str, result: str) -> SSAValue:
    """Sum the letters that the result lacks, and order the others."""
    lost = [i for i, x in enumerate(spec) if x not in result]
    if lost:
        value = t.b.reduce("sum", value, lost, keep_dims=False)
    kept = [x for x in spec if x in result]
    perm = tuple(kept.index(x) for x in result)
    if perm == tuple(range(len(perm))):
        return value
    return t.b.op(TransposeOp, [value], perm=perm)
