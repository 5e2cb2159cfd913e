"""What programs are run on: name, and how the results of a program come about."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch

from irc.backends.cpu import Features, KernelCall, emit, host, load_segment
from irc.backends.cpu.features import AVX2, AVX512, BASELINE
from irc.dialects.task import KernelOp
from irc.pipeline import Options, make_plan
from irc.plan.load import LoadedPlan
from irc.runtime.executors import executor_of
from irc.runtime.segments import Segment, SegmentCall
from tests.fuzz import guarded
from tests.fuzz.flow import flow_program
from tests.fuzz.program import Program

Results: TypeAlias = Sequence[torch.Tensor]
Target: TypeAlias = Callable[[Program, Sequence[torch.Tensor]], Results]


def on_features(features: Features | None, change: Callable[[str], str] = str) -> Target:
    """Return a target: flow, through every pass, to LLVM kernels for an instruction set.

    Args:
        features: the instruction set; None: this machine's.
        change: what happens to each kernel's text before it is compiled (a planted bug).
    """

    def run(program: Program, inputs: Sequence[torch.Tensor]) -> Results:
        plan, kernels = planned(program)

        def load(
            loaded: LoadedPlan, segments: Sequence[Sequence[SegmentCall]], threads: int
        ) -> list[Segment]:
            texts = [change(emit(kernel, features or host())) for kernel in kernels]
            return [
                load_segment(
                    texts, [KernelCall(c.kernel, c.args) for c in calls], threads, features
                )
                for calls in segments
            ]

        # Two threads even on a busy machine: what threads do is part of what is tested.
        executor = executor_of(plan, {}, load=load, num_threads=2)
        first, again = guarded.run(executor, inputs)
        for one, two in zip(first, again, strict=True):
            if not _same(one, two):
                raise AssertionError("a second call, on memory of other garbage, differs")
        return first

    return run


def planned(program: Program) -> tuple[LoadedPlan, list[KernelOp]]:
    """Return the plan of a program, which is one for all instruction sets, and its kernels."""
    if _SHARED and _SHARED[-1][0] is program:
        return _SHARED[-1][1:]
    flow = flow_program(program)
    plan = make_plan(flow, Options(), keep_ir=False)
    ops = flow.module.body.block.ops
    named = {op.sym_name.data: op for op in ops if isinstance(op, KernelOp)}
    kernels = [named[kernel.name] for kernel in plan.plan.kernels]  # as calls number them
    if _SHARED:
        _SHARED[-1] = program, plan, kernels
    return plan, kernels


_SHARED: list[tuple[Any, Any, Any]] = []
"""The last program with its plan, inside :func:`plans_shared`."""


@contextmanager
def plans_shared() -> Generator[None]:
    """Plan a program once for the targets that follow each other in it."""
    _SHARED.append((None, None, None))
    try:
        yield
    finally:
        _SHARED.pop()


def _same(one: torch.Tensor, two: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), two.view(torch.uint8)) if one.ndim else bool(
        torch.allclose(one.double(), two.double(), rtol=0, atol=0, equal_nan=True)
    )  # fmt: skip


def eager(program: Program, inputs: Sequence[torch.Tensor]) -> Results:
    """Torch itself: a control of the reference, not of irc."""
    return program.function()(*inputs)


def compiled(program: Program, inputs: Sequence[torch.Tensor]) -> Results:
    """``irc.compile`` of the torch function."""
    import irc

    run = irc.compile(program.function())
    with torch.no_grad():
        run(*inputs)
        return run(*inputs)


def dynamo(program: Program, inputs: Sequence[torch.Tensor]) -> Results:
    """``torch.compile(backend="irc")`` of the torch function."""
    torch._dynamo.reset()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        run = torch.compile(program.function(), backend="irc", dynamic=False)
        return run(*inputs)


def kernels_of(program: Program, target: str) -> tuple[object, list[KernelOp]]:
    """Return a program on level task, mapped for a target, and its kernels."""
    from irc.pipeline import default_pipeline, run_passes

    module = flow_program(program).module
    run_passes(module, default_pipeline(Options(target=target)))
    return module, [op for op in module.body.block.ops if isinstance(op, KernelOp)]


TARGETS: Mapping[str, Target] = {
    "eager": eager,
    "cpu": on_features(None),
    "avx512": on_features(AVX512),
    "avx2": on_features(AVX2),
    "generic": on_features(BASELINE),
    "compile": compiled,
    "dynamo": dynamo,
}
"""Targets that run in this process, by name; ``cuda`` and ``triton`` are added by their modules."""
