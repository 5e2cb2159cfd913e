"""Kernels compiled side by side: the same code as one by one, and found again on disk."""

import re
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import pytest
import torch

from irc.backends.cpu import emit, jit
from irc.backends.cpu.codegen import emit_objects
from irc.backends.cpu.features import host
from irc.errors import InternalError
from tests.backends.cpu.conftest import execute
from tests.backends.cpu.maker import Maker

SIZES = range(33, 45)


def kernel(size: int) -> Any:
    k = Maker((size,), 1, [(size, "f32")], [(size, "f32")])
    k.store(k.fn("exp", k.load(0, (1,))), 0, (1,))
    return k.kernel()


def texts() -> dict[Any, str]:
    return {(f"{size:032x}", host()): emit(kernel(size)) for size in SIZES}


def test_groups_follow_from_the_texts_and_are_of_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    by_key = texts()
    whole = sum(map(len, by_key.values()))
    monkeypatch.setattr(jit, "GROUP_BYTES", whole // 4)
    groups = jit.parted(by_key)
    turned = dict(reversed(by_key.items()))
    assert jit.parted(turned) == groups
    assert [list(group) for group in jit.parted(turned)] == [list(group) for group in groups]
    assert sorted(key for group in groups for key in group) == sorted(by_key)
    sizes = [sum(map(len, group.values())) for group in groups]
    assert len(groups) == 5 and max(sizes) - min(sizes) <= max(map(len, by_key.values()))
    monkeypatch.setattr(jit, "GROUP_BYTES", 1)
    assert len(jit.parted(by_key)) == min(jit.MOST_GROUPS, len(by_key))
    monkeypatch.setattr(jit, "GROUP_BYTES", whole + 1)
    assert len(jit.parted(by_key)) == 1


def test_side_by_side_is_the_code_of_one_by_one() -> None:
    def job(key: Any, text: str) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
        machine, around = jit._target_machine(host()), llvm.create_context()
        return jit.parse_kernel(text, f"irc_{key[0]}", around), machine

    items = list(texts().items())
    together = emit_objects([job(*item) for item in items])
    apart = [emit_objects([job(*item)])[0] for item in items]
    assert together == apart and len(set(together)) == len(items)
    assert emit_objects([]) == []


def test_many_groups_run_and_are_found_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IRC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(jit, "_addresses", {})
    monkeypatch.setattr(jit, "GROUP_BYTES", 1)
    emitted = [emit(kernel(size)) for size in SIZES]
    first = jit.compile_texts(emitted)
    assert len(set(first)) == len(emitted)
    for size in SIZES:
        x = torch.linspace(-1, 1, size)
        torch.testing.assert_close(execute(kernel(size), [x])[0], torch.exp(x))
    monkeypatch.setattr(jit, "_addresses", {})
    fresh: list[int] = []

    def compiled(groups: Any, _: Any) -> list[bytes]:
        fresh.append(len(groups))
        return []

    monkeypatch.setattr(jit, "_objects_of", compiled)
    assert len(set(jit.compile_texts(emitted))) == len(emitted)
    assert fresh == [0]


def test_code_that_calls_what_nothing_has_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # LLVM generates calls of its own, as of conversions that a processor lacks. MCJIT would take
    # address 0 for one that no library has, and the call would end the process.
    monkeypatch.setenv("IRC_CACHE_DIR", str(tmp_path / "cache"))
    text, count = re.subn(r"@llvm\.fma\.v\d+f32", "@irc_nobody_has_this", emit(kernel(32)))
    assert count > 0
    with pytest.raises(InternalError, match=r"needs \['irc_nobody_has_this'\]"):
        jit.compile_texts([text])
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert jit.compile_texts([emit(kernel(32))])[0]
