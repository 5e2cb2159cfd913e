"""``python -m tests.gpu`` without a GPU: it says so, dry runs, and runs in Triton's interpreter."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.backends.triton.interpreting import run_interpreted
from tests.benchmarks.models import lacks
from tests.gpu import __main__ as command
from tests.gpu import isolated, launching, slices
from tests.gpu.__main__ import main
from tests.gpu.compiling import Row, Work, compile_all, summary
from tests.gpu.known import Compiled, Known, canonical
from tests.gpu.programs import Case, cases
from tests.gpu.record import Record

pytest.importorskip("triton")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert main(["--only", "rows"]) == 3
    assert "error[device-missing]" in capsys.readouterr().err


def test_a_dry_run_compiles_and_writes_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "found.json"
    words = ["--dry-run", "--only", "matmul,attention,models", "--limit", "2", "--models", "mlp"]
    assert main([*words, "--dtypes", "f16", "--target", "sm_80", "--json", str(path)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    ran = "matmul, attention, models"
    assert last == f"gpu: {ran} on none (dry run) for sm_80: all compiled"
    record = json.loads(path.read_text())
    assert record["target"] == "sm_80"
    assert set(record["slices"]) == {"matmul", "attention", "models"}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A device that is made up: kernels take 1 ms, torch's 2 ms, and half of the error allowed."""
    monkeypatch.setenv("IRC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(command, "_device", lambda: "Fake GPU/9000")
    monkeypatch.setattr(command, "_target", lambda: "sm_90")
    monkeypatch.setattr(slices, "kernel_seconds", lambda kernel: 1e-3)
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    monkeypatch.setattr(launching, "DEVICE", "meta")
    monkeypatch.setattr(launching, "compile_together", lambda kernels: None)
    monkeypatch.setattr(launching, "prepare", lambda kernel, inputs, backend="triton": kernel)
    monkeypatch.setattr(launching, "error", lambda kernel, launch, inputs: 0.5)
    irc_s = iter([1e-3, 2e-3] * 100)
    monkeypatch.setattr(launching, "seconds", lambda run, **options: next(irc_s))
    return tmp_path


def test_what_a_device_gives_is_written(
    fake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "matmul,rows,attention,backward,int4,grouped,tuned"
    assert main(["--only", words, "--limit", "1", "--in-process"]) == 0
    (path,) = fake.glob("gpu-Fake-GPU-9000-*.json")
    record = json.loads(path.read_text())
    assert record["device"] == "Fake GPU/9000" and record["wrong"] == []
    assert set(record["slices"]) == set(words.split(","))
    assert list(record["ratios"].values()) == [2.0] * 12  # six slices, two backends
    assert "2.00x torch's best by geometric mean" in capsys.readouterr().out
    monkeypatch.setattr(launching, "error", lambda kernel, launch, inputs: 1.5)
    assert main(["--only", "rows", "--limit", "1", "--in-process"]) == 1


def test_an_item_that_raises_is_wrong_and_the_others_go_on(
    fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def error(kernel: object, launch: object, inputs: object, calls: list[int] = []) -> float:  # noqa: B006
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("an illegal memory access was encountered")
        return 0.5

    monkeypatch.setattr(launching, "error", error)
    words = ["--only", "rows", "--limit", "3", "--in-process", "--backends", "triton"]
    assert main(words) == 1
    (path,) = fake.glob("gpu-*.json")
    record = json.loads(path.read_text())
    (name,) = record["wrong"]
    assert name.startswith("triton softmax")
    assert sum("error 0.500" in row for row in record["slices"]["rows"]) == 2
    assert any("illegal memory access" in row for row in record["slices"]["rows"])


@pytest.mark.parametrize(
    ("code", "wrong"), [(isolated.LOST, ["b"]), (-11, ["b"])], ids=["lost", "ended"]
)
def test_a_slice_goes_on_behind_what_ended_its_process(
    monkeypatch: pytest.MonkeyPatch, code: int, wrong: list[str]
) -> None:
    """The second of three items takes the process with it."""
    seen: list[list[str]] = []

    def run(command: list[str], **_: object) -> object:
        seen.append(command)
        skip, path = int(command[command.index("--skip") + 1]), Path(command[-1])
        part = Record("gpu", "sm_90", path=path)
        names = ["a", "b", "c"]
        for number in range(skip, 3):
            part.at = ("rows", number, names[number])
            if names[number] == "b":
                if code == isolated.LOST:
                    part.wrong.append("b")
                part.save()
                return type("Done", (), {"returncode": code})
            part.add("rows", names[number])
        part.save()
        return type("Done", (), {"returncode": 0})

    monkeypatch.setattr(isolated.subprocess, "run", run)
    record = Record("gpu", "sm_90")
    isolated.run_apart("rows", ["--limit", "3"], record, 60)
    assert len(seen) == 2 and seen[1][seen[1].index("--skip") + 1] == "2"
    assert record.wrong == wrong
    assert [row for row in record.slices["rows"] if row in "abc"] == ["a", "c"]


def test_a_slice_that_takes_too_long_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> object:
        part = Record("gpu", "sm_90", path=Path(command[-1]))
        part.add("rows", "a")
        part.at = ("rows", 1, "b")
        part.save()
        raise isolated.subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(isolated.subprocess, "run", run)
    record = Record("gpu", "sm_90")
    isolated.run_apart("rows", [], record, 1)
    assert record.slices["rows"] == ["a", "time is up after 1 s, at b"]
    assert record.wrong == []


BARE = """
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        missing = name.partition(".")[0] in {
            "llvmlite", "highspy", "onnx", "onnxruntime", "scipy", "pytest", "hypothesis",
            "transformers", "safetensors", "ml_dtypes", "onnxscript"}
        return None if missing else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
import irc.backends.cuda.segment
from tests.gpu.__main__ import main
sys.exit(main(["--dry-run", "--only", "rows,int4,models", "--limit", "1", "--models", "mlp",
               "--dtypes", "f32", "--backends", "triton"]))
"""


def test_it_needs_torch_triton_and_pure_python_alone() -> None:
    """Neither what compiles for CPUs nor what reads ONNX: a GPU machine may lack them."""
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_checks_run_in_the_interpreter(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    words = ["--only", "matmul,attention,rows", "--limit", "3", "--json", str(path)]
    printed = run_interpreted(["-m", "tests.gpu", *words])
    assert "all right" in printed.splitlines()[-1]
    assert "Triton's interpreter" in printed


def test_a_kernel_that_fails_or_a_program_that_is_missing_fails_the_run() -> None:
    good = Compiled("k0", 40)
    assert summary([Row("a", "sm_90", 1, [good])])[1]
    assert not summary([Row("a", "sm_90", 1, [good, Compiled("k1", error="ValueError: no")])])[1]
    assert not summary([Row("a", "sm_90", error="error[op-unsupported]")])[1]


def test_a_part_of_the_zoo_compiles() -> None:
    """Seeded; `-m slow` and `python -m tests.gpu --only compile --all` take more."""
    work = Work([Case("zoo/llama", "training", "bf16")], ["sm_80", "sm_100"], 0.1)
    rows = list(compile_all(work))
    line, ok = summary(rows)
    assert ok, line
    assert sum(len(row.compiled) for row in rows) > 5


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.skipif(lacks("minilm") is not None, reason="needs the models of tests/models.txt")
def test_every_kernel_of_the_zoo_compiles() -> None:
    rows = list(compile_all(Work(cases(), ["sm_80", "sm_90", "sm_100"], jobs=2)))
    line, ok = summary(rows)
    print("\n".join(map(str, rows)), line, sep="\n")
    assert ok, line


HEAD = "import x\n\n@triton.jit\n"


def file_of(name: str, note: str, size: int, line: str = "v = x0") -> str:
    return (
        f"# from: {note}\n{HEAD}def kernel_{name}(x0):\n    {line}  # {note}\n\n\n"
        f"GRID = ({size},)\n"
        f'KERNEL = "kernel_{name}"\nBUFFERS = (\n    ("x0", {size}, torch.float32, 9),\n)\n\n\n'
        "def launch(*buffers):\n    pass\n"
    )


def test_kernels_that_compile_to_the_same_code_are_one() -> None:
    one = canonical(file_of("k1_add", "n3", 40), "k1_add")
    assert one == canonical(file_of("k17_add", "n36.g2", 50), "k17_add")
    assert one != canonical(file_of("k1_add", "n3", 40, "v = x0 + 1"), "k1_add")


def test_reports_are_kept_by_version_and_target(tmp_path: Path) -> None:
    path = tmp_path / "known.jsonl"
    known = Known("triton 1", path)
    key = known.key("sm_90", "text")
    known.add(key, Compiled("k0", 40, 8))
    assert Known("triton 1", path).get(key) == Compiled("k0", 40, 8)
    assert Known("triton 2", path).key("sm_90", "text") != key != known.key("sm_80", "text")


def test_a_row_for_a_file_names_only_what_spills_or_fails() -> None:
    row = Row("a", "sm_90", 2, [Compiled("k0", 40), Compiled("k1", 255, 16)])
    (named,) = row.compact()["named"]
    assert named["kernel"] == "k1"
