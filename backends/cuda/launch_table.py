"""How the kernels of a file are launched, as data: what its C function ``launch`` does, and more.

The table stands in the file itself, as one comment line of JSON, so that a plan's sources are all
that a loader needs: it compiles the file and starts the kernels through the driver, with neither a
host compiler nor the CUDA runtime (:mod:`irc.backends.cuda.segment`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias, cast

from irc.backends.cuda.functions import BYTES, TYPES
from irc.backends.cuda.tensor_map import TensorMap, element_type
from irc.errors import InternalError
from irc.kernels.form import Buffer, Form
from irc.kernels.gpu.size_json import encoded, evaluated
from irc.kernels.source import Source, wrapped

PREFIX = "// launch table: "
EXAMPLES = (101, 103, 107, 109)
WIDE = 2**31 - 2**20
"""Positions from which on 32 bits are too few, beside the rest of a tile."""
ALIGNMENT = 16
"""Bytes to which every buffer of a launch is aligned."""
PARTIAL = "partial"
"""The argument that is memory of the launch's own."""
ADDRESSES = "addresses"
"""The argument that is a table on the device: the head, then where each buffer lies."""

Argument: TypeAlias = int | str
"""A buffer by its number, a tensor map ``<letter>_map``, ``partial`` or ``addresses``."""


@dataclass(frozen=True)
class MapSpec:
    """A tensor map as ``cuTensorMapEncodeTiled`` wants it.

    Attributes:
        letter: of the operand.
        buffer: where the tensor lies.
        offset: bytes before its first element.
        dtype: ``f16`` or ``bf16``.
        sizes: in elements, the contiguous dim first.
        strides: in bytes, of all dims but the first.
        box: elements of one copy.
    """

    letter: str
    buffer: int
    offset: int
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]

    @staticmethod
    def of(form: Form, tensor: TensorMap) -> MapSpec:
        """Return the description of an operand."""
        return MapSpec(
            tensor.letter, tensor.buffer, 2 * tensor.offset, form.buffers[tensor.buffer].dtype,
            tensor.sizes, tuple(2 * step for step in tensor.strides[1:]), tensor.box,
        )  # fmt: skip

    @property
    def name(self) -> str:
        """Of the argument."""
        return f"{self.letter}_map"


@dataclass(frozen=True)
class Launch:
    """One kernel function, started on a one-dimensional grid.

    Attributes:
        kernel: the name of the function.
        blocks: of the grid.
        threads: of a block.
        shared: bytes of shared memory that the launch chooses.
        arguments: in the order of the function's parameters.
    """

    kernel: str
    blocks: int
    threads: int
    shared: int
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class LaunchTable:
    """All launches of a file, in order.

    Attributes:
        buffers: what a caller gives, inputs first.
        num_inputs: how many of them are inputs.
        arch: the only compute capability that has its instructions; 0 where any from 8.0 on does.
        partial_bytes: of memory that the launches share, and that nobody else reads.
        maps: tensor maps.
        launches: none where there are no tasks.
        head: what a table of addresses begins with; empty where launches take buffers.
        symbols: sizes that the launches take, ``N0``, ``N1`` among their arguments; numbers here
            may follow from them.
        positions: how many there are, if there are symbols.
    """

    buffers: tuple[Buffer, ...]
    num_inputs: int
    arch: int = 0
    partial_bytes: int = 0
    maps: tuple[MapSpec, ...] = ()
    launches: tuple[Launch, ...] = ()
    head: tuple[int, ...] = ()
    symbols: tuple[str, ...] = ()
    positions: tuple[int, ...] = ()

    @property
    def line(self) -> str:
        """The comment that says all this."""
        return PREFIX + json.dumps(encoded(asdict(self)), separators=(",", ":"))

    @property
    def is_wide(self) -> bool:
        """True where the sizes at hand need positions of 64 bits."""
        return max(self.positions, default=0) >= WIDE

    def bytes_of(self, index: int) -> int:
        """Return the size of a buffer."""
        return self.buffers[index].size * BYTES[self.buffers[index].dtype]


def read_table(text: str, sizes: Sequence[int] = ()) -> LaunchTable:
    r"""Return the table of a file, for the sizes of a call where it takes some.

    Without them its numbers are those of some example.

    >>> table = LaunchTable((Buffer(4, "f32"),), 1, launches=(Launch("k", 2, 32, 0, (0,)),))
    >>> read_table(f"// A kernel.\n{table.line}\n") == table
    True

    Raises:
        InternalError: where it has none, or none that can be read.
    """
    for line in text.splitlines():
        if line.startswith(PREFIX):
            try:
                record = json.loads(line.removeprefix(PREFIX))
                values = sizes or EXAMPLES[: len(record["symbols"])]
                if len(values) != len(record["symbols"]):
                    raise InternalError(f"a kernel takes {record['symbols']}, not {values}")
                return _table(evaluated(record, values))
            except (KeyError, TypeError, ValueError) as error:
                raise InternalError(f"a kernel's launch table cannot be read: {error}") from error
    raise InternalError("a kernel file has no launch table: it was made by another irc")


def _table(record: Mapping[str, Any]) -> LaunchTable:
    return LaunchTable(
        tuple(Buffer(**each) for each in record["buffers"]),
        record["num_inputs"],
        record["arch"],
        record["partial_bytes"],
        tuple(MapSpec(**_tuples(each)) for each in record["maps"]),
        tuple(Launch(**_tuples(each)) for each in record["launches"]),
        tuple(record["head"]),
        tuple(record["symbols"]),
        tuple(record["positions"]),
    )


def _tuples(record: Mapping[str, Any]) -> dict[str, Any]:
    lists = {key: cast("list[Any]", v) for key, v in record.items() if isinstance(v, list)}
    return {**record, **{key: tuple(v) for key, v in lists.items()}}


def emit_launcher(table: LaunchTable) -> str:
    """Return the C function that does what the table says."""
    source = Source("  ")
    source.line()
    source.line("#ifndef __CUDACC_RTC__")
    source.line(
        "// Run on device pointers, inputs then outputs, each aligned to 16 bytes; "
        "returns a cudaError_t."
    )
    sizes = "const long long* sizes, " if table.symbols else ""
    head = f'extern "C" int launch(void* const* buffers, {sizes}cudaStream_t stream) {{'
    with source.block(head, "}"):
        for i in range(len(table.symbols)):
            source.line(f"const irc_index N{i} = (irc_index)sizes[{i}];")
        if table.head:
            _gather(source, table)
        else:
            with source.block(f"for (int i = 0; i < {len(table.buffers)}; ++i) {{", "}"):
                source.line(
                    f"if ((unsigned long long)buffers[i] % {ALIGNMENT}) "
                    "return (int)cudaErrorMisalignedAddress;"
                )
        if not table.launches:
            source.line("// There are no tasks.")
        for tensor in table.maps:
            _encode(source, tensor)
        if table.partial_bytes:
            source.line(f"float* {PARTIAL} = nullptr;")
            to = f"(void**)&{PARTIAL}, {table.partial_bytes}ull, stream"
            source.line(f"const int code = (int)cudaMallocAsync({to});")
            source.line("if (code) return code;")
        for launch in table.launches:
            place = f"{launch.blocks}, {launch.threads}, {launch.shared}, stream"
            arguments = ", ".join(_argument(table, argument) for argument in launch.arguments)
            guard = f"if ({launch.blocks} > 0) " if table.symbols else ""
            source.line(f"{guard}IRC_LAUNCH({launch.kernel}, {place}, {arguments});")
        if table.partial_bytes:
            source.line(f"cudaFreeAsync({PARTIAL}, stream);")
        if table.head:
            source.line(f"cudaFreeAsync({ADDRESSES}, stream);")
        source.line("return (int)cudaGetLastError();")
    source.line("#endif")
    return str(source)


def _gather(source: Source, table: LaunchTable) -> None:
    """Append the table of addresses, and its copy to the device."""
    count = len(table.head) + len(table.buffers)
    source.line(f"long long words[{count}] = {{")
    for line in wrapped(list(map(str, table.head))):
        source.line(f"  {line},")
    source.line("};")
    source.line(
        f"for (int i = 0; i < {len(table.buffers)}; ++i) "
        f"words[{len(table.head)} + i] = (long long)buffers[i];"
    )
    source.line(f"long long* {ADDRESSES} = nullptr;")
    copy = f"cudaMemcpyAsync({ADDRESSES}, words, sizeof(words), cudaMemcpyHostToDevice, stream)"
    source.line(f"int copied = (int)cudaMallocAsync((void**)&{ADDRESSES}, sizeof(words), stream);")
    # Of memory that is not locked, the copy has been read when the call returns.
    source.line(f"if (!copied) copied = (int){copy};")
    source.line("if (copied) return copied;")


def _argument(table: LaunchTable, argument: Argument) -> str:
    if isinstance(argument, str):
        return argument
    constant = "const " if argument < table.num_inputs else ""
    return f"({constant}{TYPES[table.buffers[argument].dtype]}*)buffers[{argument}]"


def _encode(source: Source, tensor: MapSpec) -> None:
    """Append the description of one operand."""
    source.line(f"CUtensorMap {tensor.name};")
    with source.block("{", "}"):
        for name, values in (("sizes", tensor.sizes), ("strides", tensor.strides)):
            numbers = ", ".join(f"{v}ull" for v in values)
            source.line(f"const unsigned long long {name}[] = {{{numbers}}};")
        source.line(f"const unsigned box[] = {{{', '.join(map(str, tensor.box))}}};")
        place = f"(const char*)buffers[{tensor.buffer}] + {tensor.offset}"
        source.line(
            f"const int code = irc_tensor_map(&{tensor.name}, {element_type(tensor.dtype)}, "
            f"{len(tensor.sizes)}, {place}, sizes, strides, box);"
        )
        source.line("if (code) return code;")
