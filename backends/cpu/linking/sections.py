"""The end of a shared object, which is not loaded: names of functions, and the section table.

Loaders do without; debuggers, profilers and disassemblers do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from irc.backends.cpu.linking import elf
from irc.backends.cpu.linking.elf import Strings
from irc.backends.cpu.linking.layout import Extent, Layout

SECTIONS = ("", ".dynsym", ".dynstr", ".hash", ".rela.dyn", ".text", ".data.rel.ro", ".dynamic",
            ".symtab", ".strtab", ".shstrtab")  # fmt: skip


def section_table(layout: Layout, start: int, functions: Sequence[tuple[str, int, int]]) -> bytes:
    """Return the end of the file.

    Args:
        layout: of what is before it.
        start: its size.
        functions: name, address and size of each.
    """
    names, strings = Strings(), Strings()
    symbols = _symbols(functions, strings)
    for name in SECTIONS:
        names.add(name)
    parts = [symbols, bytes(strings.content), bytes(names.content)]
    places: list[Extent] = []
    for part in parts:
        places.append(Extent(start, start + len(part)))
        start += len(part)
    rows = _rows(layout, places, 1 + len(functions))
    table = elf.SECTION.pack(*(0,) * 10)
    for name, row in zip(SECTIONS[1:], rows, strict=True):
        kind, flags, part, link, info, each, align = row
        address = part.start if flags & elf.ALLOC else 0
        table += elf.SECTION.pack(
            names.add(name), kind, flags, address, part.start, part.size, link, info, align, each
        )
    return b"".join(parts) + table


def _symbols(functions: Iterable[tuple[str, int, int]], strings: Strings) -> bytes:
    text = SECTIONS.index(".text")
    return elf.SYMBOL.pack(0, 0, 0, 0, 0, 0) + b"".join(
        elf.SYMBOL.pack(strings.add(name), elf.FUNCTION, 0, text, address, size)
        for name, address, size in functions
    )


Row = tuple[int, int, Extent, int, int, int, int]
"""Type, flags, place, linked section, more, size of an entry, alignment."""


def _rows(layout: Layout, places: Sequence[Extent], num_local: int) -> list[Row]:
    sealed = Extent(layout.sealed.start, layout.dynamic.start)
    code, constant = elf.ALLOC | elf.EXECUTE, elf.ALLOC | elf.WRITE
    names, strings = SECTIONS.index(".dynstr"), SECTIONS.index(".strtab")
    symbols = SECTIONS.index(".dynsym")
    return [
        (elf.DYNSYM, elf.ALLOC, layout.symbols, names, 1, elf.SYMBOL.size, 8),
        (elf.STRTAB, elf.ALLOC, layout.strings, 0, 0, 0, 1),
        (elf.HASH, elf.ALLOC, layout.hash, symbols, 0, 4, 8),
        (elf.RELA_TYPE, elf.ALLOC, layout.relocations, symbols, 0, elf.RELA.size, 8),
        (elf.PROGBITS, code, layout.code, 0, 0, 0, 64),
        (elf.PROGBITS, constant, sealed, 0, 0, 0, 8),
        (elf.DYNAMIC_TYPE, constant, layout.dynamic, names, 0, elf.DYNAMIC.size, 8),
        (elf.SYMTAB, 0, places[0], strings, num_local, elf.SYMBOL.size, 8),
        (elf.STRTAB, 0, places[1], 0, 0, 0, 1),
        (elf.STRTAB, 0, places[2], 0, 0, 0, 1),
    ]
