"""Reading a relocatable ELF file, as LLVM writes it."""

from __future__ import annotations

from dataclasses import dataclass

from irc.backends.cpu.linking import elf
from irc.backends.cpu.linking.elf import ObjectFile, Relocation, Section, Symbol
from irc.errors import InternalError

DROPPED = (".eh_frame", ".note", ".llvm", ".comment")
"""Beginnings of sections that nobody reads: kernels raise nothing and are not unwound through."""


@dataclass(frozen=True)
class _Header:
    """One entry of the section table."""

    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int


def read_object(data: bytes) -> ObjectFile:
    """Return the sections, symbols and relocations of an object.

    Raises:
        InternalError: where it is no relocatable file for x86-64.
    """
    headers = _headers(data, elf.X86_64)
    sections = {
        number: Section(number, h.name, h.flags, max(h.align, 1), h.size, _content(data, h))
        for number, h in enumerate(headers)
        if h.flags & elf.ALLOC and not h.name.startswith(DROPPED)
    }
    symbols: list[Symbol] = []
    for header in headers:
        if header.kind == elf.SYMTAB:
            symbols = _symbols(data, header, headers[header.link])
    relocations = [
        relocation
        for header in headers
        if header.kind == elf.RELA_TYPE and header.info in sections
        for relocation in _relocations(data, header, symbols)
    ]
    return ObjectFile(tuple(sections.values()), tuple(symbols), tuple(relocations))


def undefined_symbols(data: bytes) -> list[str]:
    """Return the names that an object leaves to others, in order.

    Args:
        data: an object for any processor; one that is no ELF is not looked into.
    """
    if not data.startswith(elf.IDENT):
        return []
    headers = _headers(data)
    return [
        symbol.name
        for header in headers
        if header.kind == elf.SYMTAB
        for symbol in _symbols(data, header, headers[header.link])
        if symbol.section == elf.UNDEFINED and symbol.name
    ]


def _headers(data: bytes, processor: int | None = None) -> list[_Header]:
    if len(data) < elf.HEADER.size or data[: len(elf.IDENT)] != elf.IDENT:
        raise InternalError("the code generator gave no ELF file of 64 bits")
    ident = elf.HEADER.unpack_from(data)
    kind, machine, start, each, count, names = (ident[i] for i in (1, 2, 6, 11, 12, 13))
    wanted = (elf.RELOCATABLE, machine if processor is None else processor, elf.SECTION.size)
    if (kind, machine, each) != wanted:
        raise InternalError(f"the code generator gave ELF of kind {kind} for machine {machine}")
    raw = [elf.SECTION.unpack_from(data, start + i * each) for i in range(count)]
    table = data[raw[names][4] : raw[names][4] + raw[names][5]]
    return [
        _Header(elf.text_at(table, r[0]), r[1], r[2], r[4], r[5], r[6], r[7], r[8]) for r in raw
    ]


def _content(data: bytes, header: _Header) -> bytes:
    if header.kind == elf.NOBITS:
        return b""
    return data[header.offset : header.offset + header.size]


def _symbols(data: bytes, header: _Header, names: _Header) -> list[Symbol]:
    table, content = _content(data, names), _content(data, header)
    symbols: list[Symbol] = []
    for name, info, _, section, value, size in elf.SYMBOL.iter_unpack(content):
        if section >= elf.RESERVED and section != elf.ABSOLUTE:
            raise InternalError(f"a symbol of the reserved section {section:#x}")
        is_function = info & 15 == elf.FUNCTION
        symbols.append(Symbol(elf.text_at(table, name), section, value, size, is_function))
    return symbols


def _relocations(data: bytes, header: _Header, symbols: list[Symbol]) -> list[Relocation]:
    return [
        Relocation(header.info, offset, info & 0xFFFFFFFF, symbols[info >> 32], addend)
        for offset, info, addend in elf.RELA.iter_unpack(_content(data, header))
    ]
