"""Files to machine code: by NVRTC, a stand-in for it, and nvcc; kept on disk."""

import ctypes
import shutil
from pathlib import Path

import pytest

from irc.backends.cuda import build, nvrtc
from irc.backends.cuda.build import machine_code
from irc.backends.cuda.file import emit_kernel
from irc.backends.cuda.nvrtc import Nvrtc, find_nvrtc, header_folder
from irc.errors import InternalError, IrcError
from tests.backends import gpu_kernels as g
from tests.backends.cuda.host_machine import run_tool

FAKE = Path(__file__).with_name("fake_nvrtc.cpp")
FLOATS, HALVES = emit_kernel(g.softmax(), 80), emit_kernel(g.softmax(dtype="bf16"), 80)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    path = tmp_path_factory.mktemp("nvrtc") / "libnvrtc.so"
    run_tool("g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-o", path, FAKE)
    return ctypes.CDLL(str(path))


@pytest.fixture
def fake(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ctypes.CDLL:
    monkeypatch.setenv("IRC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "find_nvrtc", lambda: Nvrtc(library))
    monkeypatch.setattr(build, "header_folder", lambda: Path("/headers"))
    return library


def test_a_file_is_compiled_for_one_architecture(fake: ctypes.CDLL) -> None:
    one, other, later = (*machine_code([FLOATS, HALVES], 80), *machine_code([FLOATS], 90))
    flags = "-std=c++17\n-fmad=false\n"
    assert one.decode() == f"--gpu-architecture=sm_80\n{flags}{FLOATS}"
    # Only what has halves needs CUDA's headers.
    assert other.decode() == f"--gpu-architecture=sm_80\n{flags}--include-path=/headers\n{HALVES}"
    assert later.decode().startswith("--gpu-architecture=sm_90a\n")
    assert fake.fake_programs() == 0


def test_machine_code_is_kept(fake: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fake.fake_compiled()
    first = machine_code([FLOATS], 80)
    assert machine_code([FLOATS], 80) == first and fake.fake_compiled() == before + 1
    machine_code([FLOATS], 90)
    assert fake.fake_compiled() == before + 2
    monkeypatch.setenv("IRC_CACHE", "off")
    assert machine_code([FLOATS], 80) == first and fake.fake_compiled() == before + 3


def test_what_the_compiler_rejects_is_our_bug(fake: ctypes.CDLL) -> None:
    with pytest.raises(InternalError, match="as the file says"):
        machine_code(["#error"], 80)
    assert fake.fake_programs() == 0


def test_without_a_compiler_the_user_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_nvrtc", lambda: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(IrcError, match="NVRTC or nvcc") as caught:
        machine_code([FLOATS], 80)
    assert caught.value.code == "compiler-missing"


def test_without_headers_the_user_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_folders", lambda *_: iter(()))
    header_folder.cache_clear()
    with pytest.raises(IrcError, match=r"cuda_fp16\.h") as caught:
        header_folder()
    assert caught.value.code == "compiler-missing"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_nvcc_does_where_there_is_no_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("IRC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "find_nvrtc", lambda: None)
    (image,) = machine_code([FLOATS], 80)
    assert image.startswith(b"\x7fELF") and b"kernel_softmax" in image


@pytest.mark.skipif(find_nvrtc() is None, reason="needs NVRTC")
def test_nvrtc_takes_each_kind_of_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tests.backends.cuda.test_launch import TABLES
    from tests.backends.cuda.test_packed import CASES, packed_kernel

    monkeypatch.setenv("IRC_CACHE_DIR", str(tmp_path / "cache"))
    texts = [emit_kernel(kernel, arch) for kernel, arch in TABLES.values()]
    texts += [FLOATS, HALVES, emit_kernel(packed_kernel(CASES["nibbles"]), 80)]
    for image in machine_code(texts, 90):
        assert image.startswith(b"\x7fELF")
