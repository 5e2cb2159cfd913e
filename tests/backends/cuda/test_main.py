"""Each file is a program: it runs, checks itself against a plain kernel, and says so."""

import shutil
import subprocess
from pathlib import Path

import pytest

from irc.backends.cuda.build import FLAGS, find_nvcc, target_of
from irc.backends.cuda.file import emit_kernel
from irc.dialects.task import KernelOp
from tests.backends import gpu_kernels as g
from tests.backends.cuda.host import SHIM

LARGE = {"block_m": 128, "block_n": 128}
PROGRAMS: dict[str, tuple[KernelOp, int]] = {
    "softmax": (g.softmax(), 80),
    "embedding": (g.embedding(), 80),
    "causal_any": (g.causal_any(), 80),
    "flat_add": (g.flat_add(dtype="f16"), 80),
    "simt": (g.matmul(), 80),
    "integers": (g.matmul(9, 20, 7, dtype="i32", epilogue=False), 80),
    "mma": (g.matmul(70, 90, 200, dtype="f16", transposed=True, split_k=2), 80),
    "wgmma": (g.matmul(70, 90, 200, dtype="bf16", transposed=True, **LARGE), 90),
    "no_rows": (g.empty(), 80),
}


def program(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    """Compile a file with its main against the shim, and run it."""
    (folder / "kernel.cu").write_text(source)
    command = ["g++", "-std=c++17", "-O1", "-fwrapv", "-DIRC_MAIN", "-include", str(SHIM)]
    command += ["-Wno-unknown-pragmas", "-x", "c++", str(folder / "kernel.cu")]
    done = subprocess.run(
        [*command, "-o", str(folder / "kernel")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[:3000]
    return subprocess.run(
        [str(folder / "kernel"), "1"], capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("name", ["softmax", "mma"])
def test_a_file_checks_itself(tmp_path: Path, name: str) -> None:
    kernel, arch = PROGRAMS[name]
    done = program(tmp_path, emit_kernel(kernel, arch))
    assert done.returncode == 0 and done.stdout.startswith("ok: 0 elements wrong"), done


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_kind_of_file_checks_itself(tmp_path: Path, name: str) -> None:
    test_a_file_checks_itself(tmp_path, name)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_wrong_kernel_fails_its_own_check(tmp_path: Path) -> None:
    kernel, arch = PROGRAMS["simt"]
    source = emit_kernel(kernel, arch)
    wrong = source.replace("fmaf(a[i], b[j], sum[i][j])", "fmaf(a[i], b[j], 0.0f)")
    assert wrong != source
    done = program(tmp_path, wrong)
    assert done.returncode == 1 and "FAILED" in done.stdout and "element" in done.stdout


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_nvcc_makes_a_program_of_each_kind(tmp_path: Path, name: str) -> None:
    kernel, arch = PROGRAMS[name]
    (tmp_path / "kernel.cu").write_text(emit_kernel(kernel, arch))
    target = f"-gencode={target_of(arch)}"
    command = [find_nvcc(), *FLAGS, target, "-DIRC_MAIN", "-o", str(tmp_path / "kernel")]
    done = subprocess.run(
        [*command, str(tmp_path / "kernel.cu")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[:3000]
