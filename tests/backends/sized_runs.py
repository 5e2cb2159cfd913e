"""Kernels that take sizes when they run, and calls of them at several: for both GPU backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from irc.dialects.size import symbol, value_of
from irc.dialects.task import KernelOp
from irc.dialects.task_sizes import bind_kernel
from irc.dialects.task_types import BufferType
from irc.runtime.dtypes import dtypes
from tests.backends import attention_kernels, gpu_kernels
from tests.backends.attention_kernels import Attend
from tests.backends.cpu.sized_kernels import PRODUCTS, ROWS, named

S, T, B = symbol("S"), symbol("T"), symbol("B")
ATTENDS: Mapping[str, Attend] = {
    "keys_and_rows": Attend(batch=B, rows=S, keys=T, depth=20, width=24),
    "causal_with_sums": Attend(rows=S, keys=S, causal=True, sums=True, repeats=2, depth=64),
    "cached": Attend(rows=S, keys=T, causal=True, start=True),
    "padded": Attend(batch=B, rows=S, keys=S, mask="bool_keys"),
    "added_halves": Attend(rows=S, keys=T, mask="float", dtype="f16", sums=True),
    "decode": Attend(rows=1, keys=T, batch=B, groups=3),
    "pairs": Attend(rows=S, keys=T, dtype="bf16", causal=True, depth=64, width=32),
}
ALONE = (1, 2, 17, 130)
"""Numbers of the one name of a kernel."""
TOGETHER = ((1, 2), (2, 19), (3, 70))
"""Numbers of two names."""
LENGTHS = ((1, 3), (17, 40), (65, 130))
CLOSE = {"f32": 2e-5, "f16": 4e-3, "bf16": 4e-2}
"""Of an element, relative to one more than its size."""
QUICK = ("by_row", "softmax", "norm", "scores")
"""Kernels of the ordinary run; the others are slow."""


@dataclass(frozen=True)
class Sized:
    """A kernel with names, and its calls: numbers by name."""

    kernel: KernelOp
    calls: tuple[Mapping[str, int], ...]
    attend: Attend | None = None

    def inputs(self, values: Mapping[str, int]) -> tuple[KernelOp, list[torch.Tensor]]:
        """Return the kernel of numbers, for what it means, and random inputs."""
        if self.attend is not None:
            chosen = {
                n: value_of(getattr(self.attend, n), values) for n in ("batch", "rows", "keys")
            }
            case = replace(self.attend, **chosen)
            bound = attention_kernels.kernel_of(case)
            return bound, attention_kernels.inputs_of(case, bound)
        bound = bind_kernel(self.kernel, values)
        return bound, gpu_kernels.inputs_for(bound, lambda index: values["S"])

    def given(self, values: Mapping[str, int]) -> tuple[int, ...]:
        """Return the sizes in the order of a launch."""
        return tuple(values[name] for name in self.kernel.symbols)

    def check(
        self, kernel: KernelOp, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> None:
        """Hold outputs against float64."""
        length = max(kernel.space_extents[-1], 1)
        for one, true in zip(outputs, gpu_kernels.meaning(kernel, inputs), strict=True):
            kinds = {a.type.dtype for a in kernel.args if isinstance(a.type, BufferType)}
            close = max(CLOSE.get(kind, 0.0) for kind in kinds) * max(1.0, (length / 64) ** 0.5)
            true = true.reshape(one.shape)
            torch.testing.assert_close(one.double(), true.double(), rtol=close, atol=close)


def outputs_for(kernel: KernelOp, count: int) -> list[torch.Tensor]:
    """Return memory for the outputs of a kernel of numbers that has so many inputs."""
    kinds = [a.type for a in kernel.args[count:] if isinstance(a.type, BufferType)]
    return [torch.zeros(kind.num_elements, dtype=dtypes()[kind.dtype]) for kind in kinds]


def sized_kernels() -> dict[str, Sized]:
    """Return all of them by name."""
    by_name = dict[str, Sized]()
    for name, build in {**ROWS, **PRODUCTS}.items():
        kernel = named(build)
        names = kernel.symbols
        numbers = TOGETHER if len(names) == 2 else [(n,) for n in ALONE]
        calls = tuple(dict(zip(names, each, strict=True)) for each in numbers)
        by_name[name] = Sized(kernel, calls)
    for name, attend in ATTENDS.items():
        calls = tuple({"S": rows, "T": keys, "B": 3} for rows, keys in LENGTHS)
        by_name[name] = Sized(attention_kernels.kernel_of(attend), calls, attend)
    return by_name
