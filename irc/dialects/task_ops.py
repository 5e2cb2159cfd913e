"""All ops of level task, and the dialect that they are."""

from __future__ import annotations

from xdsl.ir import Dialect

from irc.dialects.along import KernelAlongOp
from irc.dialects.attention import KernelAttentionOp
from irc.dialects.attention_backward import KernelAttentionBackwardOp
from irc.dialects.launches import CopyOp, LaunchOp, ViewOp
from irc.dialects.mapping_attr import MappingAttr
from irc.dialects.recurrent import KernelRecurrentOp
from irc.dialects.task import (
    IndexOp,
    KernelConstantOp,
    KernelContractOp,
    KernelOp,
    KernelPointwiseOp,
    KernelReduceOp,
    LoadOp,
    StoreOp,
)
from irc.dialects.task_types import BufferType, ValueType

Task = Dialect(
    "task",
    [
        KernelOp, LoadOp, StoreOp, KernelConstantOp, IndexOp, KernelPointwiseOp, KernelReduceOp,
        KernelContractOp, KernelAlongOp, KernelAttentionOp, KernelAttentionBackwardOp,
        KernelRecurrentOp, LaunchOp, ViewOp, CopyOp,
    ],
    [BufferType, ValueType, MappingAttr],
)  # fmt: skip
