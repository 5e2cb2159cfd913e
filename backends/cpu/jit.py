"""Kernel texts to machine code in this process, with llvmlite.

What was compiled is kept, in the process and on disk (:mod:`irc.backends.cpu.object_cache`): code
is generated as an object file, and an object, new or old, is linked into the process.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Sequence

import llvmlite.binding as llvm

from irc.backends.cpu import object_cache
from irc.backends.cpu.allowed import refusal
from irc.backends.cpu.codegen import Job, emit_objects
from irc.backends.cpu.emit import info_of
from irc.backends.cpu.features import Features, host
from irc.backends.cpu.linking.relocatable import undefined_symbols
from irc.errors import InternalError, IrcError

GROUP_BYTES, MOST_GROUPS = 1 << 17, 16
"""Bytes of text that fill a module, and how many modules there are at most."""

_lock = threading.Lock()
_addresses: dict[tuple[str, Features], int] = {}
_engines: list[llvm.ExecutionEngine] = []
_initialised = False


NEEDS = {
    "@llvm.x86.ldtilecfg": "+amx-tile",
    "@llvm.x86.avx512bf16.": "+avx512bf16",
    "@llvm.x86.avx512.vpdpbusd.": "+avx512vnni",
    "@llvm.x86.avx512.": "+avx512f",
}
"""Instructions that kernels name, and LLVM's names of the features that have them."""


def _check_processor(texts: Iterable[str], features: Features) -> None:
    """Refuse kernels that the processor at hand cannot run: LLVM, or they, would end the process.

    They are of a plan from another machine, or written for more than there is here.

    Raises:
        IrcError: ``processor-unsupported``.
    """
    flags = [*features.flags.split(","), "+avx512f" if features.avx512 else ""]
    for text in texts:
        for name, flag in NEEDS.items():
            if name in text and flag not in flags:
                raise IrcError(
                    "processor-unsupported",
                    f"kernel '{info_of(text).name}' needs a processor with {flag[1:]}",
                    help="compile the model on this machine",
                )
    if not features.runs_on(host()):
        raise IrcError(
            "processor-unsupported",
            f"this processor, {host().cpu}, has not all that kernels for {features.cpu} are to use",
            help="compile the model on this machine",
        )


def compile_texts(
    texts: Sequence[str], features: Features | None = None, *, guarded: bool = False
) -> list[int]:
    """Return the address of each kernel's function; those not known yet are compiled together.

    Args:
        texts: of the kernels.
        features: of the processor; by default of the one at hand.
        guarded: the texts were read from a file: what no kernel of irc has is refused.

    Raises:
        IrcError: ``kernel-invalid``, ``processor-unsupported``.
    """
    features = features or host()
    keys = [(hashlib.sha256(text.encode()).hexdigest()[:32], features) for text in texts]
    with _lock:
        fresh = {key: text for key, text in zip(keys, texts, strict=True) if key not in _addresses}
        if fresh:
            _check_processor(fresh.values(), features)
            _addresses.update(_compile(fresh, features, guarded=guarded))
        return [_addresses[key] for key in keys]


def _compile(
    texts: dict[tuple[str, Features], str], features: Features, *, guarded: bool
) -> dict[tuple[str, Features], int]:
    machine, addresses, missing = _target_machine(features), dict[tuple[str, Features], int](), []
    for group in parted(texts):
        key = object_cache.key_of(group.values(), features, machine.triple)
        data = object_cache.read(key)
        linked = {} if data is None else _linked(data, group, machine)
        if linked and all(linked.values()):
            addresses |= linked
            continue
        if data is not None:
            object_cache.discard(key)
        missing.append((key, group))
    for text in (text for _, group in missing for text in group.values() if guarded):
        check_text(text)
    for (key, group), data in zip(
        missing, _objects_of([g for _, g in missing], features), strict=True
    ):
        addresses |= _linked(data, group, machine)
        object_cache.write(key, data)
    return addresses


def parted(texts: dict[tuple[str, Features], str]) -> list[dict[tuple[str, Features], str]]:
    """Return kernels in groups of about one size, which are compiled side by side.

    The groups follow from the texts alone: what is kept on disk is found again.
    """
    count = min(MOST_GROUPS, 1 + sum(map(len, texts.values())) // GROUP_BYTES)
    groups = [dict[tuple[str, Features], str]() for _ in range(count)]
    sizes = [0] * count
    for key, text in sorted(texts.items(), key=lambda item: (-len(item[1]), item[0][0])):
        least = sizes.index(min(sizes))
        groups[least][key] = text
        sizes[least] += len(text)
    return [group for group in groups if group]


def _objects_of(
    groups: Sequence[dict[tuple[str, Features], str]], features: Features
) -> list[bytes]:
    """Return the object code of each group of kernels, of which each is a module."""
    jobs: list[Job] = []
    for group in groups:
        machine, around = _target_machine(features), llvm.create_context()
        module = llvm.parse_assembly("", around)
        try:
            for (digest, _), text in group.items():
                module.link_in(parse_kernel(text, f"irc_{digest}", around))
        except IrcError:
            for each in (module, *(other for other, _ in jobs)):
                each.close()
            raise
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
        optimise(module, machine)
        jobs.append((module, machine))
    return emit_objects(jobs)


def _linked(
    data: bytes, texts: dict[tuple[str, Features], str], machine: llvm.TargetMachine
) -> dict[tuple[str, Features], int]:
    """Link an object into the process and return the addresses of its functions, 0 for none.

    Raises:
        InternalError: it calls what no library here has. MCJIT would make that address 0.
    """
    # Before there is an engine, which would take the machine along where this is refused.
    if unknown := [n for n in undefined_symbols(data) if llvm.address_of_symbol(n) is None]:
        raise InternalError(f"generated code needs {unknown}, which nothing in this process has")
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(data))
    engine.finalize_object()
    _engines.append(engine)
    return {key: engine.get_function_address(f"irc_{key[0]}") for key in texts}


def compile_module(text: str, symbol: str) -> int:
    """Compile text of our own and return the address of one of its functions."""
    with _lock:
        machine = _target_machine(host())
        return _finish(llvm.parse_assembly(text), machine).get_function_address(symbol)


def _finish(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> llvm.ExecutionEngine:
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    optimise(module, machine)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _engines.append(engine)
    return engine


def check_text(text: str) -> None:
    """Refuse the text of a kernel that is no LLVM IR, or holds what no kernel of irc does.

    Raises:
        IrcError: ``kernel-invalid``.
    """
    name = info_of(text).name
    try:
        with llvm.parse_assembly(text) as module:
            module.verify()
            why = refusal(str(module), name)
    except RuntimeError as error:
        raise _invalid(name, str(error)) from None
    if why is not None:
        raise IrcError(
            "kernel-invalid",
            f"kernel '{name}' holds what no kernel of irc does: {why}",
            help="compile the model again; irc explain trust says what a plan may hold",
        )


def _invalid(name: str, why: str) -> IrcError:
    return IrcError("kernel-invalid", f"the code of kernel '{name}' is not valid LLVM IR: {why}")


def parse_kernel(text: str, symbol: str, around: llvm.ContextRef) -> llvm.ModuleRef:
    """Parse one kernel, in a context, and give its function a name of its own in the process.

    Raises:
        IrcError: ``kernel-invalid``.
    """
    info = info_of(text)
    try:
        module = llvm.parse_assembly(text, around)
    except RuntimeError as error:
        raise _invalid(info.name, str(error)) from None
    try:
        module.verify()
        module.get_function(info.name).name = symbol
    except (RuntimeError, NameError) as error:
        # Who keeps the error keeps this frame, and the collector frees in any order: a module must
        # not outlive its context.
        module.close()
        raise _invalid(info.name, str(error)) from None
    return module


def _target_machine(features: Features) -> llvm.TargetMachine:
    global _initialised
    if not _initialised:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        _initialised = True
        # LLVM looks for names in the process once there is an engine.
        first = llvm.Target.from_default_triple().create_target_machine(jit=True)
        _engines.append(llvm.create_mcjit_compiler(llvm.parse_assembly(""), first))
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=features.cpu, features=features.flags, opt=3, codemodel="jitdefault", jit=True
    )


def optimise(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """Run the passes that pay on kernels."""
    # The code is SSA, vectorised and unrolled as written. LLVM's full pipeline costs as much as
    # code generation and makes kernels no faster (instcombine makes softmax and gelu 8 % slower);
    # what pays is rotating loops.
    passes = llvm.create_new_module_pass_manager()
    passes.add_loop_simplify_pass()
    passes.add_loop_rotate_pass()
    passes.add_simplify_cfg_pass()
    passes.add_aggressive_dce_pass()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    passes.run(module, llvm.create_pass_builder(machine, options))
