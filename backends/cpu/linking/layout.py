"""Where everything of a shared object lies: addresses are offsets into its file.

page 0..   headers, hash, dynamic symbols and strings, relocations, constants   read
next page  stubs of imported functions, code                                    read, execute
next page  constants with addresses, dynamic section, offset table              read once filled
next page  variables, and behind the file's end those that begin as zeros       read, write
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from irc.backends.cpu.linking import elf
from irc.backends.cpu.linking.elf import ObjectFile, Section, Symbol, round_up

PAGE = 4096
STUB_BYTES = 16
SLOT_BYTES = 8
CALLS = (elf.R_PC32, elf.R_PLT32)
SLOTS = (elf.R_GOTPCREL, elf.R_GOTPCRELX, elf.R_REX_GOTPCRELX)


@dataclass(frozen=True)
class Extent:
    """A stretch of the file and of memory."""

    start: int
    end: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start


@dataclass(frozen=True)
class Needs:
    """What the relocations of an object ask for.

    Attributes:
        imports: symbols of other libraries, by name.
        stubs: those of them that code calls.
        slots: symbols that have an entry of the offset table.
        absolute: how many places hold an address.
    """

    imports: tuple[Symbol, ...]
    stubs: tuple[Symbol, ...]
    slots: tuple[Symbol, ...]
    absolute: int


def needs_of(obj: ObjectFile) -> Needs:
    """Count what the relocations ask for."""
    imports: dict[str, Symbol] = {}
    stubs: dict[str, Symbol] = {}
    slots: dict[Symbol, None] = {}
    absolute = 0
    for r in obj.relocations:
        outside = r.symbol.section == elf.UNDEFINED
        if outside:
            imports.setdefault(r.symbol.name, r.symbol)
        if outside and r.kind in CALLS:
            stubs.setdefault(r.symbol.name, r.symbol)
            slots.setdefault(r.symbol)
        if r.kind in SLOTS:
            slots.setdefault(r.symbol)
        absolute += r.kind == elf.R_64
    ordered = [imports[name] for name in sorted(imports)]
    return Needs(tuple(ordered), tuple(stubs.values()), tuple(slots), absolute)


class Layout:
    """Addresses of an object's sections and of what the linker adds.

    Args:
        obj: what is linked.
        needs: of it.
        sizes: bytes of the hash table, the dynamic symbols, their names and the dynamic section.
        num_segments: entries of the program header.

    Attributes:
        address: of each section, by its number.
        read, code, sealed, data: the four stretches; the last ends where the file's part does.
        memory_end: where the zeros behind it end.
    """

    def __init__(
        self, obj: ObjectFile, needs: Needs, sizes: Sequence[int], num_segments: int
    ) -> None:
        self.address: dict[int, int] = {}
        kinds = {s.number: _kind(s) for s in obj.sections}
        of = {k: [s for s in obj.sections if kinds[s.number] == k] for k in set(kinds.values())}
        hash_bytes, symbol_bytes, string_bytes, dynamic_bytes = sizes
        at = elf.HEADER.size + num_segments * elf.SEGMENT.size
        self.symbols, at = _extent(at, symbol_bytes)
        self.hash, at = _extent(at, hash_bytes)
        num_relocations = needs.absolute + len(needs.slots)
        self.relocations, at = _extent(at, num_relocations * elf.RELA.size)
        self.strings, at = _extent(at, string_bytes)
        at = self._place(of.get("read", ()), at)
        self.read = Extent(0, at)
        self.stubs, at = _extent(round_up(at, PAGE), len(needs.stubs) * STUB_BYTES)
        at = self._place(of.get("code", ()), at)
        self.code = Extent(self.stubs.start, at)
        start = round_up(at, PAGE)
        at = self._place(of.get("sealed", ()), start)
        self.dynamic, at = _extent(at, dynamic_bytes)
        self.slots, at = _extent(at, len(needs.slots) * SLOT_BYTES)
        self.sealed = Extent(start, at)
        start = round_up(at, PAGE)
        at = self._place(of.get("data", ()), start)
        self.data = Extent(start, at)
        self.memory_end = self._place(of.get("zeros", ()), at)

    def _place(self, sections: Iterable[Section], at: int) -> int:
        for section in sections:
            at = round_up(at, section.align)
            self.address[section.number] = at
            at += section.size
        return at


def _extent(at: int, size: int) -> tuple[Extent, int]:
    start = round_up(at, SLOT_BYTES)
    return Extent(start, start + size), start + size


def _kind(section: Section) -> str:
    if section.flags & elf.EXECUTE:
        return "code"
    if not section.flags & elf.WRITE:
        return "read"
    if section.name.startswith(".data.rel.ro"):
        return "sealed"
    return "data" if section.content or not section.size else "zeros"
