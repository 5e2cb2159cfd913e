"""PyTorch's own register of modules with sample inputs, in training and in evaluation."""

# pyright: basic
from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.testing._internal.common_modules import module_db

from tests.opinfo.compilers import COMPILERS
from tests.opinfo.entries import SEED, Call
from tests.opinfo.trial import Outcome, Trial, gradients, together
from tests.opinfo.ways import Way

DTYPES = ("float32", "float64", "bfloat16")


@cache
def modules() -> dict[str, Any]:
    """Return the modules by name."""
    return {info.name: info for info in module_db}


def names_of(way: Way) -> list[str]:
    """Return the names of the modules that can be tried in a way.

    The register names no half types: each module is tried in them that takes float32.
    """
    half = way.dtype in ("bfloat16", "float16")
    dtype = torch.float32 if half else way.torch_dtype
    return sorted(n for n, info in modules().items() if dtype in info.supported_dtypes("cpu"))


@dataclass(frozen=True)
class ModuleCall(Call):
    """A module with inputs; ``op`` is what is compiled, and eager runs copies of it."""

    def compilable(self) -> torch.nn.Module:
        """Return the module itself."""
        return self.op  # type: ignore[return-value]

    def copied(self) -> ModuleCall:
        """Return the call with inputs and a module of its own."""
        call = super().copied()
        return ModuleCall(copy.deepcopy(self.op), call.args, call.kwargs, call.chosen)

    def widened(self) -> ModuleCall:
        """Return the call in double precision."""
        call = super().widened()
        return ModuleCall(copy.deepcopy(self.op).double(), call.args, call.kwargs, call.chosen)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class ModuleTrial(Trial):
    """A module's call: gradients of parameters too, and what the call writes, are compared."""

    def run(self, function: Callable[..., Any], *, wide: bool = False) -> Any:
        """Call on copies of the inputs, from the module's first state."""
        call = (self.call.widened() if wide else self.call).copied()
        if function is self.call.op:
            return self._run(call, call.op, call.op)  # type: ignore[arg-type]
        module: torch.nn.Module = self.call.op  # type: ignore[assignment]
        before = [buffer.clone() for buffer in module.buffers()]
        try:
            return self._run(call, function, module)
        finally:
            for buffer, value in zip(module.buffers(), before, strict=True):
                buffer.copy_(value)

    def added(self, function: Callable[..., Any], *, wide: bool = False) -> Any:
        """Return ``.grad`` of inputs and parameters after two calls."""
        is_eager = function is self.call.op
        own: torch.nn.Module = self.call.op  # type: ignore[assignment]
        before = [buffer.clone() for buffer in own.buffers()]
        module = (self.call.widened() if wide else self.call.copied()).op if is_eager else own
        kept = super().added(module if is_eager else function, wide=wide)
        grads = [*kept[:-1], *(p.grad for p in module.parameters())]  # type: ignore[attr-defined]
        own.zero_grad()
        for buffer, value in zip(own.buffers(), before, strict=True):
            buffer.copy_(value)
        return [*grads, together({".grad": grads}, ".grad")]

    def _run(self, call: Call, function: Callable[..., Any], module: torch.nn.Module) -> Any:
        if not self.backward:
            with torch.no_grad():
                result = function(*call.args, **call.kwargs)
            return result, [buffer.clone() for buffer in module.buffers()]
        result = function(*call.args, **call.kwargs)
        grads = gradients(call, result, list(module.parameters()))
        return result, grads, [buffer.clone() for buffer in module.buffers()]


def try_module(name: str, way: Way, most: int | None = None) -> Iterator[Outcome]:
    """Try a module's samples one by one, in training and in evaluation."""
    calls = [call for training in (True, False) for call in _calls(name, way, training)]
    if most is not None:
        calls = random.Random(SEED).sample(calls, min(most, len(calls)))
    for call in calls:
        yield ModuleTrial(name, call, way.backward, *COMPILERS[way.through]).outcome()


def _calls(name: str, way: Way, training: bool) -> Iterator[ModuleCall]:
    info, dtype = modules()[name], way.torch_dtype
    torch.manual_seed(SEED)
    for sample in info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=way.differentiates, training=training
    ):
        forward_input = sample.forward_input
        if forward_input is None:  # a container, of which only the construction is tested
            continue
        constructor_input = sample.constructor_input
        module = (
            info.module_cls(*constructor_input.args, **constructor_input.kwargs)
            .to(dtype)
            .train(training)
        )
        call = ModuleCall(
            module, tuple(forward_input.args), dict(forward_input.kwargs), lambda result: result
        )
        if info.is_lazy:
            with torch.no_grad():
                module(*copy.deepcopy(forward_input.args), **copy.deepcopy(forward_input.kwargs))
        if dtype in info.supported_dtypes("cpu") or _runs(call):
            yield call


def _runs(call: ModuleCall) -> bool:
    """True where torch has kernels for a call."""
    call = call.copied()
    try:
        with torch.no_grad():
            call.op(*call.args, **call.kwargs)
    except RuntimeError:
        return False
    return True
