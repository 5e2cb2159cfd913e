"""The cache of object code: what is used of it, what is not, and what becomes of bad files."""

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from irc.backends.cpu import emit, jit, object_cache
from irc.backends.cpu.features import AVX2, BASELINE, host
from irc.cluster import object_store
from tests.backends.cpu.conftest import execute
from tests.backends.cpu.maker import Maker

TRIPLE = "x86_64-unknown-linux-gnu"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a process that has compiled nothing yet."""
    monkeypatch.setenv("IRC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(jit, "_addresses", {})
    monkeypatch.setattr(object_store, "_warned", False)
    return tmp_path / "cache" / "kernels"


def kernel(size: int = 37, fn: str = "exp") -> Any:
    k = Maker((size,), 1, [(size, "f32")], [(size, "f32")])
    k.store(k.fn(fn, k.load(0, (1,))), 0, (1,))
    return k.kernel()


def run(size: int = 37) -> torch.Tensor:
    """Compile (or load) a kernel and run it; the process forgets it then."""
    x = torch.linspace(-1, 1, size)
    (output,) = execute(kernel(size), [x])
    jit._addresses.clear()
    torch.testing.assert_close(output, torch.exp(x))
    return output


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.o")) if folder.is_dir() else []


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(groups: Any, _: Any) -> list[bytes]:
        if groups:
            raise AssertionError("compiled again")
        return []

    monkeypatch.setattr(jit, "_objects_of", compiled)


def test_a_second_process_compiles_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run()
    (entry,) = files(folder)
    assert entry.stat().st_mode & 0o077 == 0 and folder.stat().st_mode & 0o077 == 0
    forbid(monkeypatch)
    assert torch.equal(run(), first)
    with pytest.raises(AssertionError, match="compiled again"):
        run(38)


def test_functions_of_the_c_library_are_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.linspace(-0.9, 0.9, 19, dtype=torch.float64)
    for _ in range(2):
        k = Maker((19,), 1, [(19, "f64")], [(19, "f64")])
        k.store(k.fn("asin", k.load(0, (1,))), 0, (1,))
        torch.testing.assert_close(execute(k.kernel(), [x])[0], torch.asin(x))
        jit._addresses.clear()
        forbid(monkeypatch)


def test_the_key_is_all_that_code_follows_from() -> None:
    key = object_cache.key_of(["a", "b"], host(), TRIPLE)
    assert key == object_cache.key_of(["a", "b"], host(), TRIPLE)
    others = [
        object_cache.key_of(["ab"], host(), TRIPLE),
        object_cache.key_of(["b", "a"], host(), TRIPLE),
        object_cache.key_of(["a", "b"], AVX2, TRIPLE),
        object_cache.key_of(["a", "b"], BASELINE, TRIPLE),
        object_cache.key_of(["a", "b"], host(), "aarch64-unknown-linux-gnu"),
    ]
    assert len({key, *others}) == 6


def test_other_versions_are_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    key = object_cache.key_of(["a"], host(), TRIPLE)
    for owner, name, value in (
        (object_cache, "PIPELINE", "another"),
        (object_cache.llvmlite, "__version__", "0.0.0"),
        (object_cache.llvm, "llvm_version_info", (0, 0, 0)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            assert object_cache.key_of(["a"], host(), TRIPLE) != key


@pytest.mark.parametrize("cut", [0, 1, 12, 13, 77, 78, 79, 300, -1])
def test_a_file_cut_short_is_compiled_again(folder: Path, cut: int) -> None:
    run()
    (entry,) = files(folder)
    whole = entry.read_bytes()
    entry.write_bytes(whole[:cut])
    run()
    assert entry.read_bytes() == whole


def test_a_damaged_file_is_compiled_again(folder: Path) -> None:
    run()
    (entry,) = files(folder)
    whole = entry.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 40)):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        entry.write_bytes(damaged)
        assert object_cache.read(entry.stem) is None
        assert not entry.exists()
    run()
    assert entry.read_bytes() == whole


def test_an_entry_of_another_name_is_not_used(folder: Path) -> None:
    run(37)
    (first,) = files(folder)
    run(38)
    second = next(f for f in files(folder) if f != first)
    second.write_bytes(first.read_bytes())
    run(38)
    assert second.read_bytes() != first.read_bytes()


def test_an_object_without_the_functions_is_compiled_again(folder: Path) -> None:
    run(37)
    (first,) = files(folder)
    data = object_cache.read(first.stem)
    assert data is not None
    key = object_cache.key_of([emit(kernel(38))], host(), jit._target_machine(host()).triple)
    object_cache.write(key, data)
    run(38)
    assert object_cache.read(key) not in (None, data)


def test_links_and_files_that_others_write_are_not_used(folder: Path, tmp_path: Path) -> None:
    run()
    (entry,) = files(folder)
    entry.chmod(0o622)
    assert object_cache.read(entry.stem) is None
    entry.chmod(0o600)
    assert object_cache.read(entry.stem) is not None
    moved = tmp_path / "elsewhere"
    entry.rename(moved)
    entry.symlink_to(moved)
    assert object_cache.read(entry.stem) is None


@pytest.mark.parametrize("which", ["root", "kernels"])
def test_a_folder_that_others_write_is_not_used(folder: Path, which: str) -> None:
    run()
    (folder.parent if which == "root" else folder).chmod(0o777)
    with pytest.warns(UserWarning, match="is not private"):
        run(39)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        run(40)
    assert len(files(folder)) == 1


def test_switched_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IRC_CACHE", "off")
    run()
    assert not folder.exists()


def test_no_place_to_write_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.parent.parent.mkdir(exist_ok=True)
    folder.parent.write_text("a file where the folder would be")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run()

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    folder.parent.unlink()
    monkeypatch.setattr(object_store.tempfile, "mkstemp", full)
    run()
    assert files(folder) == []


def test_the_least_recently_used_go_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(8):
        object_cache.write(f"{number:064x}", bytes(1000))
        os.utime(folder / f"{number:064x}.o", (number, number))
    assert object_cache.read(f"{0:064x}") is not None  # used: now the latest
    monkeypatch.setenv("IRC_CACHE_BYTES", "5000")
    object_cache.write(f"{9:064x}", bytes(1000))
    left = {int(f.stem, 16) for f in files(folder)}
    assert left == {0, 6, 7, 9}
    monkeypatch.setenv("IRC_CACHE_BYTES", "much")
    assert object_cache.limit() == object_cache.MOST_BYTES


PROCESS = """
import sys
from irc.backends.cpu import object_cache
for i in range(60):
    key = f"{i % 5:064x}"
    found = object_cache.read(key)
    assert found is None or found == bytes([i % 5]) * 5000, "foreign or half-written"
    object_cache.write(key, bytes([i % 5]) * 5000)
"""


def test_many_processes(folder: Path) -> None:
    """They write and read the same names at once; two are killed on the way."""
    environment = {**os.environ, "IRC_CACHE_BYTES": "22000"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS], env=environment, stderr=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    doomed = subprocess.Popen([sys.executable, "-c", PROCESS.replace("60", "10**9")])
    for process in running:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    doomed.kill()
    doomed.wait()
    for entry in files(folder):
        assert object_cache.read(entry.stem) == bytes([int(entry.stem, 16)]) * 5000


def test_the_bound_holds_without_a_look_at_each_write(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IRC_CACHE_BYTES", "100000")
    looks: list[int] = []
    prune = object_store.prune
    monkeypatch.setattr(object_store, "prune", lambda *a: looks.append(1) or prune(*a))
    for number in range(200):
        object_cache.write(f"{number:064x}", bytes(1000))
        assert sum(file.stat().st_size for file in files(folder)) <= 100000
    assert 4 <= len(looks) <= 120, "it looks at each write"
