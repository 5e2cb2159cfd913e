"""What the text of a kernel may hold: arithmetic on the memory that it is given, and no calls out.

The text of a kernel comes from a file. Before it is compiled, LLVM's own print of it, in which
nothing is spelled two ways, is held against a list of what kernels of irc have: everything else is
refused, so what this list does not know of is, too. It is no proof that a kernel stays inside its
buffers (:mod:`irc.plan.trust`).
"""

from __future__ import annotations

import re

from irc.ops.functions import POINTWISE

INTRINSICS = re.compile(
    r"llvm\.(?:"
    r"(?:abs|bitreverse|bswap|ceil|copysign|ctlz|ctpop|cttz|exp|exp2|exp10|fabs|floor|fma|fmuladd"
    r"|fptosi\.sat|fptoui\.sat|fshl|fshr|ldexp|log|log10|log2|maximum|maxnum|minimum|minnum"
    r"|nearbyint|pow|powi|rint|round|roundeven|sadd\.sat|sin|cos|smax|smin|sqrt|ssub\.sat|tanh"
    r"|trunc|uadd\.sat|umax|umin|usub\.sat|is\.fpclass)\.[a-z0-9.]+"
    r"|(?:mem(?:cpy|move|set)|masked|prefetch)\.[a-z0-9.]+"
    r"|vector\.(?:reduce|interleave2|deinterleave2|extract|insert)\.[a-z0-9.]+"
    r"|x86\.(?:avx|avx2|avx512|avx512bf16|avx512fp16|fma|sse|sse2|sse41|ssse3|vcvtps2ph|vcvtph2ps"
    r"|tdp|tile|tilecfg|ldtilecfg)[a-z0-9.]*"
    r"|x86\.(?:tileloadd64|tilestored64|tilezero|tilerelease)"
    r")"
)
MATHEMATICS = frozenset({
    "cbrt", "ceil", "copysign", "fabs", "floor", "fma", "fmax", "fmin", "nearbyint", "rint",
    "round", "sqrt", "tgamma", "trunc", *(f.libm for f in POINTWISE.values() if f.libm),
})  # fmt: skip
"""Functions of the C library that take numbers and give one, each also with an ``f``: what records
of functions name, and what LLVM makes of arithmetic. Float64 calls them."""

NAME = r"@([A-Za-z0-9_.$-]+)"
DEFINED = re.compile(rf"define (?P<internal>(?:internal|private|linkonce_odr) )?[^@]*?{NAME}\(")
DECLARED = re.compile(rf"declare [^@]*?{NAME}\(")
DIRECT = re.compile(rf" +(?:%\S+ = )?(?:tail |notail )?call [^@%(]*{NAME}\(")
HEADS = re.compile(
    r"(?:; ModuleID = .*|source_filename = \".*\"|target (?:datalayout|triple) = \".*\")\n"
)
"""What LLVM prints before anything else, and the only strings."""
HINTS = re.compile(r"^!\d+ = (?:distinct )?!\{(?:!\"[a-z_.]+\"|i\d+ \d+|!\d+|, )*\}$", re.MULTILINE)
"""What LLVM is told of branches and loops."""
OUTER = re.compile(
    r"attributes #\d+ = \{[a-z_ ():,0-9]*\}"
    r"|[A-Za-z0-9_.$-]+:(?: +; preds = .*)?"
    r"|; Function Attrs: .*|\}|"
)
"""Lines that begin at the left and are no head of a function: labels, ends, attributes."""

TABLE = re.compile(
    rf"^{NAME} = private (?:unnamed_addr )?constant \[\d+ x (i\d+)\] "
    r"(?:\[(?:\2 -?\d+(?:, )?)*\]|c\"[^\"]*\"|zeroinitializer)(?:, align \d+)?$",
    re.MULTILINE,
)
"""Numbers that a kernel looks up: a constant, whose address may be taken."""
NAMES = re.compile(NAME)

FOREIGN = (
    "asm", "inttoptr", "blockaddress", "addrspacecast", "indirectbr", "resume", "landingpad",
    "catchswitch", "va_arg", "personality", "prologue", "prefix", "section", "comdat", "gc",
    "ifunc", "alias", "module", "invoke", "callbr", "musttail",
)  # fmt: skip
"""Words of LLVM IR that no kernel has: assembler, addresses from numbers, code as data."""
FOREIGN_WORD = re.compile(rf"(?<![%\w.$-])(?:{'|'.join(FOREIGN)})(?![\w.$-])")
CALL = re.compile(r"(?<![%\w.$-])call ")


def refusal(text: str, name: str) -> str | None:
    """Return why a kernel is not to be compiled; None for one that may be.

    Args:
        text: as LLVM prints its module.
        name: of its function, the only one that others see.
    """
    text = HEADS.sub("", text)
    tables = {table[1] for table in TABLE.finditer(text)}
    text = HINTS.sub("", TABLE.sub("", text))
    if any(word in text for word in FOREIGN) and (word := FOREIGN_WORD.search(text)):
        return f"it holds '{word[0]}'"
    if '"' in text:
        return "it holds a string"
    visible: list[str] = []
    defined: set[str] = set()
    called: set[str] = set()
    for line in text.split("\n"):
        if line[:1] != " ":
            if head := DEFINED.match(line):
                defined.add(head[2])
                visible += [] if head["internal"] else [head[2]]
            elif head := DECLARED.match(line):
                called.add(head[1])
            elif not OUTER.fullmatch(line):
                return f"it holds what is no function: {line[:120]}"
        elif "@" in line:
            direct = DIRECT.match(line)
            if direct is None and CALL.search(line):
                return f"it calls what is no function by name: {line[:120].strip()}"
            called |= {direct[1]} if direct else set()
            rest = line[direct.end() :] if direct else line
            taken = NAMES.findall(rest)
            if rest.count("@") != len(taken) or not tables.issuperset(taken):
                return f"it takes the address of a function or global: {line[:120].strip()}"
        elif "call " in line and CALL.search(line):
            return f"it calls what is no function by name: {line[:120].strip()}"
    if visible != [name]:
        return f"others see {', '.join(visible)}, not {name} alone"
    strange = sorted(
        each
        for each in called - defined
        if not (INTRINSICS.fullmatch(each) or {each, each.removesuffix("f")} & MATHEMATICS)
    )
    return f"it calls {', '.join(strange)[:120]}" if strange else None
