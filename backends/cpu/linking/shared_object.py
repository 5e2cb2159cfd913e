"""Linking one object to a shared object that ``dlopen`` takes.

Code generated for position independence needs little of a linker: calls and loads among its own
sections are filled in here; an address in a table becomes a relative relocation; what is imported
(``memcpy``) is reached through a stub and an entry of the offset table, which the loader fills.
Nothing is resolved lazily, and what was filled in is read-only afterwards.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from irc.backends.cpu.allowed import MATHEMATICS
from irc.backends.cpu.linking import elf
from irc.backends.cpu.linking.elf import ObjectFile, Relocation, Strings, Symbol
from irc.backends.cpu.linking.layout import (
    CALLS,
    PAGE,
    SLOT_BYTES,
    SLOTS,
    STUB_BYTES,
    Extent,
    Layout,
    needs_of,
)
from irc.backends.cpu.linking.sections import SECTIONS, section_table
from irc.errors import InternalError

C, MATH = "libc.so.6", "libm.so.6"
IMPORTS: Mapping[str, str] = {
    **dict.fromkeys(("memcpy", "memmove", "memset", "syscall"), C),
    **{f"{name}{kind}": MATH for name in MATHEMATICS for kind in ("", "f")},
}
"""Which library a function comes from; code that asks for another one is refused."""


def shared_object(obj: ObjectFile, exports: Sequence[str], name: str) -> bytes:
    """Link an object.

    Args:
        obj: position-independent code.
        exports: the symbols that others see, all defined in it.
        name: of the shared object.

    Raises:
        InternalError: a symbol is missing, or code asks for what no library here has.
    """
    return _Linker(obj, exports, name).linked()


class _Linker:
    def __init__(self, obj: ObjectFile, exports: Sequence[str], name: str) -> None:
        self.obj, self.needs = obj, needs_of(obj)
        unknown = [each.name for each in self.needs.imports if each.name not in IMPORTS]
        defined = {s.name: s for s in obj.symbols if s.section != elf.UNDEFINED}
        missing = [each for each in exports if each not in defined]
        if unknown or missing:
            raise InternalError(f"code needs {unknown + missing}, which nothing provides")
        self.exports = [defined[each] for each in exports]
        self.libraries = sorted({IMPORTS[each.name] for each in self.needs.imports})
        self.strings = Strings()
        for text in (name, *self.libraries, *(s.name for s in self._dynamic_symbols())):
            self.strings.add(text)
        self.name = name
        count = 1 + len(self._dynamic_symbols())
        self.num_segments = 7
        entries = 10 + len(self.libraries)
        sizes = (4 * (3 + count), count * elf.SYMBOL.size, len(self.strings.content),
                 entries * elf.DYNAMIC.size)  # fmt: skip
        self.layout = Layout(obj, self.needs, sizes, self.num_segments)
        self.slot = {s: self.layout.slots.start + i * SLOT_BYTES
                     for i, s in enumerate(self.needs.slots)}  # fmt: skip
        self.stub = {s.name: self.layout.stubs.start + i * STUB_BYTES
                     for i, s in enumerate(self.needs.stubs)}  # fmt: skip
        self.image = bytearray(self.layout.data.end)
        self.relocations: list[tuple[int, int, int]] = []

    def linked(self) -> bytes:
        for section in self.obj.sections:
            start = self.layout.address[section.number]
            self.image[start : start + len(section.content)] = section.content
        for name, address in self.stub.items():
            self._write_stub(name, address)
        for relocation in self.obj.relocations:
            self._relocate(relocation)
        numbers = {s.name: 1 + i for i, s in enumerate(self._dynamic_symbols())}
        for symbol, place in self.slot.items():
            if symbol.section == elf.UNDEFINED:
                self.relocations.append((place, numbers[symbol.name] << 32 | elf.R_GLOB_DAT, 0))
            else:
                self.relocations.append((place, elf.R_RELATIVE, self._address(symbol)))
        self._write_symbols()
        self._write_dynamic()
        functions = [
            (s.name, self._address(s), s.size)
            for s in self.obj.symbols
            if s.is_function and s.section != elf.UNDEFINED
        ]
        tail = section_table(self.layout, len(self.image), functions)
        self._put(0, self._header(len(self.image) + len(tail)))
        return bytes(self.image) + tail

    def _dynamic_symbols(self) -> list[Symbol]:
        return [*self.needs.imports, *self.exports]

    def _address(self, symbol: Symbol) -> int:
        if symbol.section == elf.ABSOLUTE:
            return symbol.value
        if symbol.section not in self.layout.address:
            raise InternalError(f"'{symbol.name}' is in a section that is not loaded")
        return self.layout.address[symbol.section] + symbol.value

    def _write_stub(self, name: str, address: int) -> None:
        slot = next(place for symbol, place in self.slot.items() if symbol.name == name)
        # jmp *slot(%rip), then traps: nothing falls through.
        self._put(address, b"\xff\x25" + struct.pack("<i", slot - (address + 6)) + b"\xcc" * 10)

    def _relocate(self, r: Relocation) -> None:
        place = self.layout.address[r.section] + r.offset
        outside = r.symbol.section == elf.UNDEFINED
        if r.kind in SLOTS:
            self._put(place, struct.pack("<i", self.slot[r.symbol] + r.addend - place))
        elif r.kind in CALLS:
            target = self.stub[r.symbol.name] if outside else self._address(r.symbol)
            self._put(place, struct.pack("<i", target + r.addend - place))
        elif r.kind == elf.R_PC64 and not outside:
            self._put(place, struct.pack("<q", self._address(r.symbol) + r.addend - place))
        elif r.kind == elf.R_64 and not outside:
            self.relocations.append((place, elf.R_RELATIVE, self._address(r.symbol) + r.addend))
        else:
            raise InternalError(f"relocation {r.kind} of '{r.symbol.name}' is none that is linked")

    def _put(self, place: int, content: bytes) -> None:
        self.image[place : place + len(content)] = content

    def _write_symbols(self) -> None:
        """Write the names that the loader looks up, and those that it is asked for."""
        layout, symbols = self.layout, self._dynamic_symbols()
        self._put(layout.strings.start, bytes(self.strings.content))
        table = [elf.SYMBOL.pack(0, 0, 0, 0, 0, 0)]
        table += [elf.SYMBOL.pack(self.strings.add(s.name), *self._place_of(s)) for s in symbols]
        self._put(layout.symbols.start, b"".join(table))
        # One bucket: there are few names, and they are looked up once.
        following = [0, *range(2, len(symbols) + 1), 0][: len(symbols) + 1]
        words = (1, len(symbols) + 1, 1 if symbols else 0, *following)
        self._put(layout.hash.start, struct.pack(f"<{len(words)}I", *words))

    def _write_dynamic(self) -> None:
        """Write what the loader has to do, and where it finds everything."""
        layout = self.layout
        packed = b"".join(elf.RELA.pack(*each) for each in self.relocations)
        if len(packed) != layout.relocations.size:
            raise InternalError("other relocations than were counted")
        self._put(layout.relocations.start, packed)
        entries = [(elf.DT_NEEDED, self.strings.add(each)) for each in self.libraries]
        entries += [
            (elf.DT_SONAME, self.strings.add(self.name)),
            (elf.DT_HASH, layout.hash.start),
            (elf.DT_STRTAB, layout.strings.start),
            (elf.DT_STRSZ, layout.strings.size),
            (elf.DT_SYMTAB, layout.symbols.start),
            (elf.DT_SYMENT, elf.SYMBOL.size),
            (elf.DT_FLAGS, elf.BIND_NOW),
        ]
        if packed:
            entries += [
                (elf.DT_RELA, layout.relocations.start),
                (elf.DT_RELASZ, layout.relocations.size),
                (elf.DT_RELAENT, elf.RELA.size),
            ]
        # The rest stays zero: DT_NULL ends the list.
        self._put(layout.dynamic.start, b"".join(elf.DYNAMIC.pack(*each) for each in entries))

    def _place_of(self, symbol: Symbol) -> tuple[int, int, int, int, int]:
        """Return info, visibility, section, value and size of a dynamic symbol."""
        if symbol.section == elf.UNDEFINED:
            return elf.GLOBAL << 4 | elf.FUNCTION, 0, elf.UNDEFINED, 0, 0
        kind = elf.FUNCTION if symbol.is_function else 1
        section = SECTIONS.index(".text" if symbol.is_function else ".data.rel.ro")
        return elf.GLOBAL << 4 | kind, 0, section, self._address(symbol), symbol.size

    def _header(self, end: int) -> bytes:
        header = elf.HEADER.pack(
            elf.IDENT, elf.SHARED, elf.X86_64, 1, 0, elf.HEADER.size,
            end - len(SECTIONS) * elf.SECTION.size, 0, elf.HEADER.size, elf.SEGMENT.size,
            self.num_segments, elf.SECTION.size, len(SECTIONS), len(SECTIONS) - 1,
        )  # fmt: skip
        layout = self.layout
        has_data = layout.memory_end > layout.data.start

        def segment(kind: int, rights: int, part: Extent, end: int = 0, align: int = PAGE) -> bytes:
            size = max(part.end, end) - part.start
            at = part.start
            return elf.SEGMENT.pack(kind, rights, at, at, at, part.size, size, align)

        return header + b"".join(
            (
                segment(elf.PT_LOAD, 4, layout.read),
                segment(elf.PT_LOAD, 5, layout.code),
                segment(elf.PT_LOAD, 6, layout.sealed),
                # Without variables there is nothing to load: an entry that says nothing.
                segment(elf.PT_LOAD if has_data else 0, 6, layout.data, layout.memory_end),
                segment(elf.PT_DYNAMIC, 6, layout.dynamic, align=8),
                # Whole pages are made read-only.
                segment(elf.PT_GNU_RELRO, 4, layout.sealed, layout.data.start, align=1),
                segment(elf.PT_GNU_STACK, 6, Extent(0, 0), align=16),
            )
        )
