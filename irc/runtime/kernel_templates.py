"""Kernels of a plan whose sizes are open, to be filled in."""

from __future__ import annotations

from irc.dialects.task import KernelOp
from irc.dialects.text import load
from irc.plan.load import LoadedPlan
from irc.plan.sizes import KERNELS, LIKE, PlanSizes
from irc.plan.template.forms import KernelTemplate


def kernel_templates(loaded: LoadedPlan, sizes: PlanSizes) -> list[KernelTemplate]:
    """Return the kernels that are made for each size, from their text."""
    if not sizes.kernels:
        return []
    named, like = (_kernels(loaded, name) for name in (KERNELS, LIKE))
    return [
        KernelTemplate(named[e.name], like[e.name], e.division, named[e.name].symbols)
        for e in sizes.kernels
    ]


def _kernels(loaded: LoadedPlan, name: str) -> dict[str, KernelOp]:
    from irc.plan.json_text import corrupt

    if name not in loaded.texts:
        raise corrupt(f"the plan has no file {name}")
    ops = load(loaded.texts[name].decode(), name).body.block.ops
    kernels = {op.sym_name.data: op for op in ops if isinstance(op, KernelOp)}
    for each in loaded.sized.sizes.kernels if loaded.sized else ():
        if each.name not in kernels:
            raise corrupt(f"{name} has no kernel {each.name}")
    return kernels
