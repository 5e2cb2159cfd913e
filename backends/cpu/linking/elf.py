"""ELF for x86-64: the records that objects and shared objects are made of.

Layouts and numbers are those of the System V gABI, chapters 4 and 5, and of the x86-64 psABI.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

IDENT = b"\x7fELF" + bytes([2, 1, 1, 0]) + bytes(8)
"""64 bits, little endian, version 1, System V."""
X86_64 = 62
RELOCATABLE, SHARED = 1, 3

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SEGMENT = struct.Struct("<IIQQQQQQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELA = struct.Struct("<QQq")
DYNAMIC = struct.Struct("<qQ")

# Section types and flags.
PROGBITS, SYMTAB, STRTAB, RELA_TYPE, HASH, DYNAMIC_TYPE, NOBITS, DYNSYM = 1, 2, 3, 4, 5, 6, 8, 11
WRITE, ALLOC, EXECUTE = 1, 2, 4

# Segment types; permissions are execute 1, write 2, read 4.
PT_LOAD, PT_DYNAMIC, PT_GNU_STACK, PT_GNU_RELRO = 1, 2, 0x6474E551, 0x6474E552

# Symbols: binding and kind, and the section number of what is defined elsewhere.
LOCAL, GLOBAL = 0, 1
FUNCTION, SECTION_SYMBOL = 2, 3
UNDEFINED, ABSOLUTE, RESERVED = 0, 0xFFF1, 0xFF00

# Relocations, with S the symbol, A the addend, P the place, G its slot of the offset table.
R_64, R_PC32, R_PLT32, R_GLOB_DAT, R_RELATIVE = 1, 2, 4, 6, 8
R_GOTPCREL, R_PC64, R_GOTPCRELX, R_REX_GOTPCRELX = 9, 24, 41, 42

# Entries of the dynamic section.
DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_RELA, DT_RELASZ, DT_RELAENT = 1, 4, 5, 6, 7, 8, 9
DT_STRSZ, DT_SYMENT, DT_SONAME, DT_FLAGS = 10, 11, 14, 30
BIND_NOW = 8


@dataclass(frozen=True)
class Section:
    """A section of an object that has a place in memory.

    Attributes:
        number: in the object.
        name: as ``.text``.
        flags: WRITE, ALLOC, EXECUTE.
        align: of its address.
        size: in memory, bytes.
        content: bytes; empty where it is all zeros and takes no room in the file.
    """

    number: int
    name: str
    flags: int
    align: int
    size: int
    content: bytes


@dataclass(frozen=True)
class Symbol:
    """A name and where it is: a section's number and bytes from there.

    Attributes:
        section: UNDEFINED where it is of another library.
        is_function: known for what is defined; LLVM leaves it out for what is not.
    """

    name: str
    section: int
    value: int
    size: int
    is_function: bool


@dataclass(frozen=True)
class Relocation:
    """A place (section, bytes from there) that is filled in with an address."""

    section: int
    offset: int
    kind: int
    symbol: Symbol
    addend: int


@dataclass(frozen=True)
class ObjectFile:
    """What a relocatable file holds, as far as memory goes."""

    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    relocations: tuple[Relocation, ...]


class Strings:
    """A string table that is being written."""

    def __init__(self) -> None:
        self.content = bytearray(b"\0")
        self._known = {"": 0}

    def add(self, name: str) -> int:
        """Return where a name is, adding it if it is new."""
        if name not in self._known:
            self._known[name] = len(self.content)
            self.content += name.encode() + b"\0"
        return self._known[name]


def text_at(table: bytes, start: int) -> str:
    """Return the string that begins at an offset of a string table."""
    return table[start : table.index(b"\0", start)].decode()


def round_up(value: int, align: int) -> int:
    """Return the next multiple.

    >>> round_up(5, 4), round_up(8, 4)
    (8, 8)
    """
    return -(-value // align) * align
