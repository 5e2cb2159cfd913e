"""What code for ONNX Runtime names beside its session: options, providers, descriptions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from irc.errors import IrcError, did_you_mean


class GraphOptimizationLevel(IntEnum):
    """What ONNX Runtime's rewrites are asked to do; irc always does all of its own."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


@dataclass
class SessionOptions:
    """The options that code for ONNX Runtime sets; the thread count is the one that irc reads.

    Attributes:
        intra_op_num_threads: threads of a kernel; 0: what torch uses.
    """

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    log_severity_level: int = 2
    enable_mem_pattern: bool = True
    enable_cpu_mem_arena: bool = True


@dataclass(frozen=True)
class NodeArg:
    """An input or output: its name, its type as text, its sizes (numbers, names or None)."""

    name: str
    type: str
    shape: list[int | str | None] | None


def check_provider(name: str) -> None:
    """Refuse execution providers that irc is not.

    Raises:
        IrcError: ``backend-unknown``.
    """
    if name not in get_available_providers():
        known = get_available_providers()
        raise IrcError(
            "backend-unknown",
            f"irc has no execution provider '{name}'",
            help=did_you_mean(name, known),
        )


def get_available_providers() -> list[str]:
    """Return the names of execution providers: the CPU."""
    return ["CPUExecutionProvider"]


def get_device() -> str:
    """Return what models run on."""
    return "CPU"
