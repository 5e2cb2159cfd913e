"""Shared objects of a plan's kernels: machine code that runs without LLVM, irc or Python.

What one exports:
    irc_driver   walks over the calls of a segment (:mod:`irc.backends.cpu.driver`)
    irc_worker   what a thread of the pool runs (:mod:`irc.backends.cpu.team`)
    irc_entry    the driver as a builtin function of Python (:mod:`irc.backends.cpu.entry`)
    irc_api      addresses of Python's own functions, filled in by who loads it
    irc_kernels  the addresses of the kernels, in the order of the program
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import llvmlite.binding as llvm

from irc.backends.cpu import driver, entry, object_cache
from irc.backends.cpu.codegen import Job, emit_objects
from irc.backends.cpu.emit import emit, info_of
from irc.backends.cpu.features import Features
from irc.backends.cpu.info import KernelInfo
from irc.backends.cpu.jit import optimise, parse_kernel
from irc.backends.cpu.linking.relocatable import read_object
from irc.backends.cpu.linking.shared_object import shared_object
from irc.backends.cpu.table import KernelCall, SizedCalls, call_table, sized_calls
from irc.backends.cpu.variants import SYSTEM, TRIPLE, Variant
from irc.dialects.size import lowest
from irc.dialects.task import KernelOp
from irc.plan.native import Code
from irc.runtime.segments import SegmentCall

EXPORTS = ("irc_driver", "irc_worker", "irc_entry", "irc_api", "irc_kernels")
LINKER = "native-2"
"""How an object becomes a shared object; another name for each change of it."""


@dataclass(frozen=True)
class Kind:
    """The kernels of a program, compiled for one kind of processor.

    Attributes:
        variant: the kind.
        infos: of the kernels, in the order of the program.
        content: the shared object.
    """

    variant: Variant
    infos: tuple[KernelInfo, ...]
    content: bytes

    @property
    def file(self) -> str:
        """The name of the shared object, which holds its digest."""
        return f"{self.variant.name}-{hashlib.sha256(self.content).hexdigest()[:16]}.so"

    def code(self, segments: Sequence[Sequence[SegmentCall]]) -> Code:
        """Return the code with the tables of its calls.

        Args:
            segments: the calls; sizes are numbers.
        """
        tables = tuple(
            call_table(self.infos, [KernelCall(c.kernel, c.args, c.sizes) for c in calls])
            for calls in segments
        )
        return Code(self.variant.name, self.file, SYSTEM, self.variant.requires, tables)

    def sized(self, calls: Sequence[SegmentCall]) -> SizedCalls:
        """Return what of the calls of a segment follows from sizes, which have names in them."""
        return sized_calls(self.infos, [KernelCall(c.kernel, c.args, c.sizes) for c in calls])


def compile_kinds(
    kernels: Sequence[KernelOp], variants: Sequence[Variant], low: Mapping[str, int]
) -> list[Kind]:
    """Compile kernels for each kind of processor.

    A kind whose kernels read as those of a lesser one needs no code of its own.

    Args:
        kernels: of the program, in its order.
        variants: the most capable first.
        low: the least number of each size that is open: loops are proven for it.
    """
    with lowest(low):
        texts = [[emit(kernel, variant.features) for kernel in kernels] for variant in variants]
    known = list(zip(variants, texts, strict=True))
    wanted = [
        (variant, own)
        for place, (variant, own) in enumerate(known)
        if not any(
            other == own and less.features.cpu == variant.features.cpu
            for less, other in known[place + 1 :]
        )
    ]
    code = shared_codes([(own, variant.features) for variant, own in wanted])
    return [
        Kind(variant, tuple(info_of(text) for text in own), content)
        for (variant, own), content in zip(wanted, code, strict=True)
    ]


def shared_codes(kinds: Sequence[tuple[Sequence[str], Features]]) -> list[bytes]:
    """Compile kernel texts, and what calls them, to a shared object for each kind of processor."""
    around = [_runtime_text([info_of(text).name for text in texts]) for texts, _ in kinds]
    keys = [
        object_cache.key_of([LINKER, text, *texts], features, TRIPLE)
        for text, (texts, features) in zip(around, kinds, strict=True)
    ]
    codes = [object_cache.read(key) for key in keys]
    missing = [place for place, content in enumerate(codes) if content is None]
    objects = emit_objects([_job(around[i], *kinds[i]) for i in missing])
    for place, data in zip(missing, objects, strict=True):
        codes[place] = linked = shared_object(read_object(data), EXPORTS, "irc-plan.so")
        object_cache.write(keys[place], linked)
    return [content for content in codes if content is not None]


def _job(around: str, texts: Sequence[str], features: Features) -> Job:
    """Return the module of everything that a shared object holds."""
    target, context = machine(features), llvm.create_context()
    module = llvm.parse_assembly(around, context)
    for text in texts:
        module.link_in(parse_kernel(text, _symbol(info_of(text).name), context))
    module.triple, module.data_layout = target.triple, str(target.target_data)
    optimise(module, target)
    return module, target


def _symbol(name: str) -> str:
    return f"kernel_{name}"


def _runtime_text(names: Sequence[str]) -> str:
    """Return the text of everything beside the kernels."""
    symbols = [f'@"{_symbol(name)}"' for name in names]
    declared = (f"declare void {symbol}(ptr, i64, i64, ptr)\n" for symbol in symbols)
    listed = ", ".join(f"ptr {symbol}" for symbol in symbols)
    table = f"@irc_kernels = constant [{len(names)} x ptr] [{listed}]\n"
    return "".join((driver.standalone_text(), entry.standalone_text(), *declared, table))


def machine(features: Features) -> llvm.TargetMachine:
    """Return a code generator for position-independent x86-64 on Linux."""
    _initialise()
    return llvm.Target.from_triple(TRIPLE).create_target_machine(
        cpu=features.cpu, features=features.flags, opt=3, reloc="pic", codemodel="small"
    )


@functools.cache
def _initialise() -> None:
    """Make code generation for x86-64 ready, whatever this machine is."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
