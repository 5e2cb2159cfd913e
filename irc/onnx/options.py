"""What code for ONNX Runtime names beside its session: options, providers, descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from irc.errors import IrcError, did_you_mean


class ExecutionMode(IntEnum):
    """Whether nodes may run side by side; irc decides that when it compiles."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class GraphOptimizationLevel(IntEnum):
    """What ONNX Runtime's rewrites are asked to do; irc always does all of its own."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


@dataclass
class SessionOptions:
    """The options that code for ONNX Runtime sets.

    irc reads two: the threads of a kernel, and numbers for named sizes. The others say how to do
    what a compiled model does in its own way; they are kept, and change nothing.

    Attributes:
        intra_op_num_threads: threads of a kernel; 0: what torch uses.
    """

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_cpu_mem_arena: bool = True
    use_deterministic_compute: bool = False
    _entries: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    _sizes: dict[str, int] = field(default_factory=dict[str, int], repr=False)

    @property
    def sizes(self) -> Mapping[str, int]:
        """The numbers of named sizes."""
        return self._sizes

    def add_free_dimension_override_by_name(self, dim_name: str, dim_value: int) -> None:
        """Give a number to a size that has a name in the file.

        Raises:
            IrcError: ``option-value`` for a number below 1.
        """
        if dim_value < 1:
            raise IrcError("option-value", f"size '{dim_name}' is {dim_value}")
        self._sizes[dim_name] = dim_value

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep an entry of a configuration."""
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """Return an entry.

        Raises:
            IrcError: ``option-value`` for one that was not added.
        """
        if key not in self._entries:
            known = did_you_mean(key, self._entries)
            raise IrcError("option-value", f"there is no configuration entry '{key}'", help=known)
        return self._entries[key]


@dataclass
class RunOptions:
    """The options of one call: how it logs, which is not at all."""

    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    _entries: dict[str, str] = field(default_factory=dict[str, str], repr=False)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep an entry of a configuration."""
        self._entries[key] = value


@dataclass(frozen=True)
class ModelMetadata:
    """What a file says of itself.

    Attributes:
        custom_metadata_map: what its maker put beside: labels, alphabets, rates.
    """

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


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


def get_all_providers() -> list[str]:
    """Return the names of all execution providers."""
    return get_available_providers()


def set_default_logger_severity(severity: int) -> None:
    """Take how much to log; irc logs nothing, and raises what it has to say."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """As :func:`set_default_logger_severity`."""


def disable_telemetry_events() -> None:
    """Return at once: irc sends nothing anywhere."""


def enable_telemetry_events() -> None:
    """Return at once: irc has nothing to send."""
