"""A stand-in for a GPU: the driver's calls, checked, on kernels that run on the host.

The launch path is the product's own (irc.backends.cuda.segment); only the library behind the
driver's interface and the compiler are others: sources are compiled by g++ against the shim.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from irc.backends.cuda.functions import BYTES, TYPES
from irc.backends.cuda.launch_table import PREFIX, LaunchTable, read_table
from irc.backends.cuda.libcuda import Driver
from tests.backends.cuda.host import FLAGS, SHIM

DRIVER = Path(__file__).with_name("fake_driver.cpp")
STREAM = 0x5EED


class HostMachine:
    """Runs kernels on the host.

    Args:
        folder: for what is compiled.
        arch: the compute capability that it claims.
        order: of threads (tests.backends.cuda.host).
        stream: what torch's current stream is to be.
    """

    device = "cpu"

    def __init__(self, folder: Path, arch: int = 90, order: int = 0, stream: int = STREAM) -> None:
        self.folder, self._arch, self._stream = folder, arch, stream
        library = folder / "libcuda.so"
        run_tool("g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-o", library, DRIVER, "-ldl")
        self._library = ctypes.CDLL(str(library))
        self._library.fake_notes.restype = ctypes.c_char_p
        self._library.fake_reset(ctypes.c_void_p(stream), order)
        self._order = order
        self.driver = Driver(self._library)
        self._numbers = itertools.count()
        self.compiled = 0

    def arch(self) -> int:
        return self._arch

    def place(self) -> int:
        self.driver.activate(0)
        return 0

    def stream(self) -> int:
        return self._stream

    @property
    def notes(self) -> list[str]:
        """What the driver was asked for."""
        return self._library.fake_notes().decode().splitlines()

    def forget(self) -> None:
        """Begin the notes anew."""
        self._library.fake_reset(ctypes.c_void_p(self._stream), self._order)

    def compile(self, sources: Sequence[str], arch: int) -> list[bytes]:
        """Return, for each file, the path of one library that has all of them."""
        folder = self.folder / f"build{next(self._numbers)}"
        folder.mkdir()
        self.compiled += len(sources)
        text: list[str] = []
        for number, source in enumerate(sources):
            (folder / f"k{number}.cu").write_text(source)
            table = read_table(source)
            names = {launch.kernel for launch in table.launches} | {"launch"}
            text += [f"#define {name} s{number}_{name}" for name in sorted(names)]
            text.append(f'namespace space{number} {{\n#include "k{number}.cu"\n')
            text += [_entry(source, table, index) for index in range(len(table.launches))]
            text.append("}")
            text += [f"#undef {name}" for name in sorted(names)]
        (folder / "all.cpp").write_text("\n".join(text))
        library = folder / "all.so"
        run_tool("g++", *FLAGS, "-include", SHIM, folder / "all.cpp", "-o", library)
        return [f"{library}\0".encode()] * len(sources)


def _entry(text: str, table: LaunchTable, index: int) -> str:
    """Return the function that the fake driver calls for a launch."""
    launch = table.launches[index]
    ranges, terms, lines = list[tuple[int, object]](), [], list[str]()
    names = [f"N{i}" for i in range(len(table.symbols))]
    first = launch.arguments.index("N0") if names else 0
    lines += [
        f"const long long {n} = *(irc_index*)params[{first + i}];" for i, n in enumerate(names)
    ]
    for place, argument in enumerate(launch.arguments):
        if isinstance(argument, int):
            kind = TYPES[table.buffers[argument].dtype]
            constant = "const " if argument < table.num_inputs else ""
            terms.append(f"*({constant}{kind}**)params[{place}]")
            ranges.append((place, _bytes(text, table, argument)))
        elif argument == "partial":
            terms.append(f"*(float**)params[{place}]")
            ranges.append((place, table.partial_bytes))
        elif argument == "addresses":
            terms.append(f"*(const long long**)params[{place}]")
            words = len(table.head) + len(table.buffers)
            ranges.append((place, 8 * words))
            lines += [
                f"for (int i = 0; i < {len(table.buffers)}; ++i) {{",
                f"  static const long long sizes[] = {{{_sizes(table)}}};",
                f"  shim_buffer((*(char***)params[{place}])[{len(table.head)} + i], sizes[i]);",
                "}",
            ]
        elif argument in names:
            terms.append(f"*(irc_index*)params[{place}]")
        else:
            terms.append(f"*(CUtensorMap*)params[{place}]")
    lines += [f"shim_buffer(*(char**)params[{place}], {size});" for place, size in ranges]
    return "\n".join(
        [
            # The name is put together so that the renaming around the file leaves it alone.
            "#define JOINED(a, b) a##b",
            f'extern "C" int JOINED(host_, {launch.kernel})'
            "(void** params, int blocks, int threads, int shared) {",
            *lines,
            f"  IRC_LAUNCH({launch.kernel}, blocks, threads, shared, nullptr, {', '.join(terms)});",
            "  return cudaGetLastError();",
            "}",
            "#undef JOINED",
        ]
    )


def _bytes(text: str, table: LaunchTable, buffer: int) -> str:
    """Return the bytes of a buffer as a C expression of the launch's sizes."""
    (line,) = (line for line in text.splitlines() if line.startswith(PREFIX))
    size = json.loads(line.removeprefix(PREFIX))["buffers"][buffer]["size"]
    return f"{_expression(size)} * {BYTES[table.buffers[buffer].dtype]}"


def _expression(size: Any) -> str:
    """Return an encoded size (irc.kernels.gpu.size_json.encoded) as C."""
    match size:
        case {"N": position}:
            return f"N{position}"
        case {"/": [dim, by]}:
            return f"({_expression(dim)} / {_expression(by)})"
        case {"+": terms}:
            return f"({' + '.join(' * '.join(map(_expression, term)) for term in terms)})"
        case _:
            return f"{size}ll"


def _sizes(table: LaunchTable) -> str:
    return ", ".join(str(table.bytes_of(i)) for i in range(len(table.buffers)))


def run_tool(*command: object) -> None:
    """Run a compiler."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
