"""The native folder of a plan: machine code, weights as kernels read them, and what ties them.

    PLAN/native/program.json     memory, steps, kernel calls; :class:`Program`, field by field
    PLAN/native/x86-64-v4.so     kernels and driver for one kind of processor; others beside it.
                                 It ends with the digest of the program that it is for
    PLAN/native/sizes.json       where sizes are open: :mod:`irc.plan.native_sizes`
    PLAN/native/weights.bin      what calls read of the weights: packed, folded, aligned
    PLAN/native/manifest.json    size and SHA-256 of each; its own digest names the program

It stands for itself: :mod:`irc.runtime.native` runs the folder alone, copied to another machine,
with numpy and nothing else of irc's dependencies. What is here was worked out when the plan was
compiled, so that nothing of it is when the program starts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from irc.ops import names
from irc.plan import json_text
from irc.plan.json_text import corrupt
from irc.plan.version import check_format

NATIVE_FORMAT = 4
"""The version of these files; a reader takes this one only."""
FOLDER = "native"
MANIFEST = "manifest.json"
PROGRAM = "program.json"
SIZES = "sizes.json"
WEIGHTS = "weights.bin"
NAME = re.compile(r"(?:program|sizes|host)\.json|weights\.bin|[a-z0-9][a-z0-9_-]{0,63}\.so")
HEADER = 8
"""Words of a call before its arguments."""
LARGE = 128
"""From so many times the work for which several threads pay, their shares are divided: a part of
two threads' shares is then some microseconds, and taking it some fifty nanoseconds."""
PAGE = 4096
APART = 128
"""Bytes between the scratch memory of threads, which must not fall on the same cache sets."""
PIECE_BYTES = 16 << 20
"""Weights are verified in pieces of this size, several at a time."""


@dataclass(frozen=True)
class View:
    """A tensor in memory: a base (0: the arena), bytes from there, and how it lies.

    ``strides`` are in elements; None where it is row-major without gaps.
    """

    base: int
    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Port:
    """An input or output of the program.

    Attributes:
        name: the user's.
        view: of an input, its whole base; of an output, a part of what a call allocates.
        written: of an input, whether the call writes to it.
        range: of an input that is an index, the first and last integer that it may be.
    """

    name: str
    view: View
    written: bool = False
    range: tuple[int, int] | None = None


@dataclass(frozen=True)
class Fresh:
    """Memory that each call allocates, as a tensor."""

    base: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Stored:
    """Bytes of weights.bin that a base points to.

    ``written``: calls change them, so that each loaded program has its own.
    """

    base: int
    start: int
    bytes: int
    written: bool = False


@dataclass(frozen=True)
class Segment:
    """Kernel calls that one native call makes: the number of the table in each code."""

    kind: Literal["segment"]
    table: int


@dataclass(frozen=True)
class Copy:
    """Copy a tensor onto another of its shape and dtype."""

    kind: Literal["copy"]
    source: View
    target: View


@dataclass(frozen=True)
class Library:
    """An op that torch runs; ``wanted`` says which results anybody reads."""

    kind: Literal["library"]
    op: str
    inputs: tuple[View, ...]
    outputs: tuple[View, ...]
    wanted: tuple[bool, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    in_place: bool = False
    loc: str = "unknown"

    @property
    def called(self) -> str:
        """The name of what is called: of an op without a form in flow, the library's."""
        return str(self.attrs["target"]) if self.op == names.EXTERN else self.op


NativeStep: TypeAlias = Segment | Copy | Library


@dataclass(frozen=True)
class Table:
    """The calls of a segment, as words that the native driver walks over.

    A call is (kernel, number of arguments, parts of each thread's share or 0 where one thread does
    all, the next weight: base, offset and bytes, checks?, where among the words the values of its
    sizes are), then base and offset of each argument. The values of sizes stand behind the calls.

    Attributes:
        words: as above, with numbers of kernels where the driver reads addresses.
        count: of calls.
        stride: bytes of a thread's scratch memory, with what keeps threads apart.
        parallel: whether any call wants several threads.
        checked: names of the kernels that say when an index lies outside.
        fault: bytes from the word in which they say it to their scratch memory.
    """

    words: tuple[int, ...]
    count: int
    stride: int
    parallel: bool
    checked: tuple[str, ...] = ()
    fault: int = 0

    def linked(self, addresses: Sequence[int]) -> list[int]:
        """Return the words with the addresses of kernels in place of their numbers."""
        words, at = list(self.words), 0
        for _ in range(self.count):
            words[at] = addresses[words[at]]
            at += HEADER + 2 * words[at + 1]
        return words


def parts_of(work: int, least_work: int, pieces: int) -> int:
    """Return into how many parts each thread's share is divided; 0 where one thread does all.

    Args:
        work: of a call.
        least_work: from so much on several threads pay.
        pieces: the parts of a large call.

    >>> [parts_of(work, 100, 16) for work in (99, 100, 12_800)]
    [0, 1, 16]
    """
    if work < least_work:
        return 0
    return pieces if work >= LARGE * least_work else 1


def thread_bytes(scratch: int, *, checked: bool) -> int:
    """Return the bytes from the scratch memory of one thread to that of the next.

    Args:
        scratch: bytes that kernels use.
        checked: whether kernels say that an index lies outside, in a word before it.

    >>> thread_bytes(0, checked=False), thread_bytes(5000, checked=False)
    (0, 8320)
    """
    stride = -(-scratch // PAGE) * PAGE
    return stride + APART if stride or checked else 0


@dataclass(frozen=True)
class Code:
    """The machine code for one kind of processor.

    Attributes:
        name: of the kind, ``x86-64-v4``.
        file: the shared object.
        system: the operating system that loads it.
        requires: what the processor must have, as Linux names it in /proc/cpuinfo.
        tables: the calls of each segment; scratch memory and tiling differ from kind to kind.
    """

    name: str
    file: str
    system: str
    requires: tuple[str, ...]
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class Program:
    """All that a process needs to run a plan.

    Attributes:
        plan: the hash of the plan that it was made from.
        num_bases: pointers of the base table, the arena's first.
        kernels: how many functions each shared object lists.
        codes: the best first.
        seeds: bases of random seeds, which count up by one with every call.
    """

    plan: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    fresh: tuple[Fresh, ...]
    stored: tuple[Stored, ...]
    steps: tuple[NativeStep, ...]
    codes: tuple[Code, ...]
    arena_bytes: int
    num_bases: int
    kernels: int
    seeds: tuple[int, ...] = ()
    irc: str = ""

    @property
    def library(self) -> tuple[Library, ...]:
        """The steps that need torch."""
        return tuple(step for step in self.steps if isinstance(step, Library))


@dataclass(frozen=True)
class NativeFile:
    """A file's size and digest; a large one has a digest for each :data:`PIECE_BYTES` of it."""

    bytes: int
    sha256: tuple[str, ...]


@dataclass(frozen=True)
class NativeManifest:
    """What the folder holds."""

    files: Mapping[str, NativeFile]


def digests(content: bytes | memoryview) -> tuple[str, ...]:
    """Return the digest of each piece; the empty file has one."""
    starts = range(0, max(len(content), 1), PIECE_BYTES)
    return tuple(hashlib.sha256(content[s : s + PIECE_BYTES]).hexdigest() for s in starts)


def owner_digest(texts: Iterable[bytes], codes: Iterable[Code]) -> bytes:
    """Return what the machine code of a program ends with: the digest of what it was compiled for.

    Machine code follows numbers into memory and checks nothing; with other ones it must not run.

    Args:
        texts: of program.json, and of sizes.json where there is one.
        codes: of the program. Their files' names hold digests of the code, and are left out.
    """
    digest = hashlib.sha256()
    names = [f'"file": "{code.file}"'.encode() for code in codes]
    for text in texts:
        for name in names:
            text = text.replace(name, b'"file": ""')
        digest.update(text)
    return digest.digest()


def native_text(value: Program | NativeManifest) -> str:
    """Print a file of the folder; equal values print equally."""
    return json_text.dump({"format": NATIVE_FORMAT, **json_text.encode(value)})


def parse_program(text: bytes, where: str) -> Program:
    """Read a program.

    Raises:
        IrcError: ``plan-corrupt`` or ``plan-version``.
    """
    program: Program = json_text.decode(Program, _checked(text, where), where)
    check_program(program, where)
    return program


def parse_native_manifest(text: bytes, where: str) -> NativeManifest:
    """Read a manifest.

    Raises:
        IrcError: ``plan-corrupt`` or ``plan-version``.
    """
    manifest: NativeManifest = json_text.decode(NativeManifest, _checked(text, where), where)
    for name in manifest.files:
        if not NAME.fullmatch(name):
            raise corrupt(f"{name[:80]!r} is not the name of a file of a program", where)
    return manifest


def _checked(text: bytes, where: str) -> dict[str, Any]:
    data = json_text.parse_object(text, where)
    check_format(data.pop("format", None), where, NATIVE_FORMAT, "the native program")
    return data


def check_program(program: Program, where: str) -> None:
    """Refuse numbers that cannot be: what follows them is machine code, which checks nothing.

    Raises:
        IrcError: ``plan-corrupt``.
    """
    bases = [p.view.base for p in (*program.inputs, *program.outputs)]
    bases += [each.base for each in (*program.fresh, *program.stored)]
    if not all(0 <= base < program.num_bases for base in bases):
        raise corrupt(f"names a base outside the {program.num_bases} that there are", where)
    for code in program.codes:
        if not NAME.fullmatch(code.file):
            raise corrupt(f"{code.file[:80]!r} is not the name of a file of a program", where)
        for step in program.steps:
            if isinstance(step, Segment) and not 0 <= step.table < len(code.tables):
                raise corrupt(f"segment {step.table} has no table for {code.name}", where)
