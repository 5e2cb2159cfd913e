"""The programs whose kernels the GPU command compiles and runs: by name, mode, dtype and target."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import nn
from torch.utils import _pytree as pytree

from irc.dialects.task import KernelOp
from irc.frontends.torch.capture import capture
from irc.kernels.names import identity
from irc.pipeline import Options, default_pipeline, run_passes
from irc.train import training_program
from tests.benchmarks import models as benchmarks
from tests.models.gpt import GPT, GPTConfig
from tests.models.zoo.table import ZOO

Mode: TypeAlias = Literal["forward", "training"]

DTYPES: Mapping[str, torch.dtype] = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
}
TARGETS = ("sm_80", "sm_90", "sm_100")
MODES: tuple[Mode, ...] = ("forward", "training")

READ_VALUES = {("zoo/bart", "f16")}
"""No program: in float16 its layers look for infinities, and torch.export refuses such code too."""


@dataclass(frozen=True)
class Case:
    """A program before the pipeline.

    Attributes:
        name: of the model: ``zoo/llama``, ``bert``.
        mode: its forward pass, or a whole step of training with AdamW.
        dtype: of weights and real inputs.
    """

    name: str
    mode: Mode
    dtype: str

    def __str__(self) -> str:
        return f"{self.name} {self.mode} {self.dtype}"


def cases(
    names: Sequence[str] = (), dtypes: Sequence[str] = tuple(DTYPES), modes: Sequence[str] = ()
) -> list[Case]:
    """Return all cases, or those of some models, dtypes and modes."""
    chosen = names or [*(f"zoo/{name}" for name in ZOO), *benchmarks.MODELS]
    return [
        Case(name, mode, dtype)
        for dtype in dtypes
        for name in chosen
        if (name, dtype) not in READ_VALUES
        for mode in _modes(name)
        if not modes or mode in modes
    ]


def _modes(name: str) -> tuple[Mode, ...]:
    if name == "gpt" or (name.startswith("zoo/") and ZOO[name.removeprefix("zoo/")].labels):
        return ("forward", "training")
    return ("forward",)


def kernels(case: Case, targets: Sequence[str] = TARGETS) -> Iterator[tuple[str, list[KernelOp]]]:
    """Yield a program's kernels for each target, mapped for it, equal ones once.

    Raises:
        IrcError: what capture and the pipeline raise.
    """
    program = _captured(case)
    for target in targets:
        module = program.module.clone()
        run_passes(module, default_pipeline(Options(backend="triton", target=target)))
        distinct = {identity(op): op for op in module.body.block.ops if isinstance(op, KernelOp)}
        yield target, list(distinct.values())


def _captured(case: Case) -> Any:
    dtype = DTYPES[case.dtype]
    module, args, kwargs = _built(case)
    module.to(dtype)
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, (args, kwargs)
    )
    program = capture(module, args, kwargs).program
    if case.mode == "training":
        loss = "loss" if case.name.startswith("zoo/") else ""
        program = training_program(program, trainable=module, optimizer="adamw", loss=loss)
    return program


def _built(case: Case) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    if case.name.startswith("zoo/"):
        model = ZOO[case.name.removeprefix("zoo/")]
        inputs = model.with_loss if case.mode == "training" else model.inputs
        return model.build(), (), copy.deepcopy(dict(inputs))
    if case.name == "gpt" and case.mode == "training":
        torch.manual_seed(0)
        tokens = torch.randint(0, 256, (4, 256))
        return GPT(GPTConfig(layers=2)).eval(), (tokens, tokens), {}
    module, args = benchmarks.build(case.name)
    return module, args, {}
