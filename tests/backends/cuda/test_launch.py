"""Plans of the CUDA backend run as a whole: the launch path, on a driver that checks each call."""

from __future__ import annotations

import copy
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import irc
from irc.backends.cuda import load, machine
from irc.backends.cuda.file import emit_kernel
from irc.backends.cuda.launch_table import PREFIX, read_table
from irc.backends.cuda.libcuda import Driver, find_driver
from irc.dialects.task import KernelOp
from irc.errors import InternalError, IrcError
from irc.frontends.torch.capture import capture
from irc.pipeline import Options, make_plan
from irc.runtime.device import device_of, target_at_hand
from irc.runtime.executor import Executor
from irc.runtime.torch_driver import TorchDriver
from irc.train import training_program
from tests.backends import gpu_kernels as g
from tests.backends.cuda import host
from tests.backends.cuda.host_machine import STREAM, HostMachine
from tests.models.gpt import GPT, GPTConfig

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostMachine]:
    with machine.use(HostMachine(tmp_path_factory.mktemp("gpu"))) as emulated:
        assert emulated is machine.current()
        yield emulated


@pytest.fixture
def here(gpu: HostMachine) -> HostMachine:
    gpu.forget()
    return gpu


def launches(here: HostMachine) -> list[list[str]]:
    """Return name, blocks, threads, shared bytes and error of each launch."""
    return [note.split()[1:] for note in here.notes if note.startswith("launch ")]


class Counting(nn.Module):
    """A module with a state that a call moves, and an op that torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return torch.linalg.inv(x * self.calls) + 1


def mlp(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(24, 33), nn.GELU(), nn.Linear(33, 7), nn.Softmax(-1)
    return nn.Sequential(*layers).to(dtype).eval()


def executor(module: nn.Module, *inputs: torch.Tensor, target: str) -> Executor:
    program = capture(module, inputs).program
    plan = make_plan(program, Options(backend="cuda", target=target), keep_ir=False)
    return TorchDriver(program.tensors).bind(plan)


def test_a_module_runs_and_sees_weights_that_change(here: HostMachine) -> None:
    mine, theirs, x = mlp(), mlp(), torch.randn(5, 24)
    fast = irc.compile(mine, backend="cuda")
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x), theirs(x), atol=2e-6, rtol=2e-6)
            for weight, other in zip(mine.parameters(), theirs.parameters(), strict=True):
                weight.mul_(1.5)
                other.mul_(1.5)
    assert len(launches(here)) == 9
    assert not any("stream" in note for note in here.notes)


@pytest.mark.slow
def test_kernels_are_compiled_once_in_a_process(here: HostMachine) -> None:
    x = torch.randn(5, 24)
    with torch.no_grad():
        irc.compile(mlp(), backend="cuda")(x)
        before = here.compiled
        irc.compile(copy.deepcopy(mlp()), backend="cuda")(x)
    assert here.compiled == before


def test_wgmma_gets_tensor_maps_of_its_operands(here: HostMachine) -> None:
    """Encoded once for the same addresses, again for others."""
    torch.manual_seed(0)
    module, x = nn.Linear(64, 40).bfloat16().eval(), torch.randn(70, 64).bfloat16()
    with torch.no_grad():
        run = executor(module, x, target="sm_90")
        for batch, encoded in ((x, 2), (x, 2), (x.clone() + 1, 3)):
            torch.testing.assert_close(run(batch)[0], module(batch), atol=0.02, rtol=0.02)
            assert here.notes.count("encode 9 2") == encoded
    ((_, _, threads, shared, error), *_) = launches(here)
    assert (int(threads) % 128, error) == (0, "0") and int(shared) > 32 * 1024


@pytest.mark.slow
def test_a_long_sum_has_memory_of_its_own(here: HostMachine) -> None:
    module, x = nn.Linear(1500, 3).eval(), torch.randn(40, 1500)
    with torch.no_grad():
        run = executor(module.half(), x.half(), target="sm_80")
        torch.testing.assert_close(run(x.half())[0], module(x.half()), atol=0.02, rtol=0.02)
    assert [name.endswith("_sum") for name, *_ in launches(here)] == [False, True]


@pytest.mark.parametrize("offset", [1, 2, 4])
def test_a_tensor_may_begin_anywhere(here: HostMachine, offset: int) -> None:
    whole, module = torch.randn(5 * 24 + offset), mlp()
    x = whole[offset:].view(5, 24)
    with torch.no_grad():
        run = executor(module, torch.randn(5, 24), target="sm_80")
        torch.testing.assert_close(run(x)[0], module(x), atol=2e-6, rtol=2e-6)
    assert sum(note.startswith("copy") for note in here.notes) == (offset != 4)


def test_a_state_is_written_where_it_lies_aligned_or_not(here: HostMachine) -> None:
    for offset in (0, 1):
        mine, theirs, x = Counting(), Counting(), torch.eye(3) + 0.1
        mine.calls = torch.zeros(2)[offset : offset + 1]
        fast = irc.compile(mine, backend="cuda")
        with torch.no_grad():
            for _ in range(2):
                torch.testing.assert_close(fast(x), theirs(x), atol=1e-5, rtol=1e-5)
        assert mine.calls.item() == 2


def test_without_tasks_nothing_is_launched(here: HostMachine, tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(emit_kernel(g.empty(), 80))
    load(tmp_path / "k.cu")(torch.empty(0), torch.empty(0))
    assert launches(here) == []


def test_a_file_is_loaded_by_itself(here: HostMachine, tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(emit_kernel(g.softmax(), 80))
    args = [torch.randn(arg.type.num_elements) for arg in g.softmax().args]
    load(tmp_path / "k.cu")(*args)
    assert len(launches(here)) == 1 and args[-1].isfinite().all()


def test_threads_take_turns(here: HostMachine) -> None:
    module = mlp()
    run, wrong = executor(module, torch.randn(5, 24), target="sm_80"), list[float]()

    def work(seed: int) -> None:
        x = torch.randn(5, 24, generator=torch.Generator().manual_seed(seed))
        for _ in range(5):
            wrong.append(float((run(x)[0] - module(x)).detach().abs().max()))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 15 and max(wrong) < 2e-6
    # A thread that has no context yet is given the device's.
    assert here.notes.count("retain") == 3


TABLES: dict[str, tuple[KernelOp, int]] = {
    "rows": (g.softmax(), 80),
    "split": (g.matmul(70, 90, 200, dtype="f16", transposed=True, split_k=2), 80),
    "wgmma": (g.matmul(70, 90, 200, dtype="bf16", transposed=True, split_k=2, arch=90), 90),
    "none": (g.empty(), 80),
}


@pytest.mark.parametrize("name", TABLES)
def test_the_table_says_what_the_launcher_does(name: str) -> None:
    kernel, arch = TABLES[name]
    text = emit_kernel(kernel, arch)
    table = read_table(text)
    assert [buffer.size for buffer in table.buffers] == [a.type.num_elements for a in kernel.args]
    written = [line.strip() for line in text.splitlines() if line.startswith("  IRC_LAUNCH(")]
    told = [
        f"IRC_LAUNCH({each.kernel}, {each.blocks}, {each.threads}, {each.shared}, stream,"
        for each in table.launches
    ]
    main = text.count("IRC_LAUNCH(plain")
    assert [w[: len(t)] for w, t in zip(written, told, strict=False)] == told
    assert len(written) == len(told) + main
    assert (table.arch == 90) == (name == "wgmma") == bool(table.maps)


def test_a_table_that_cannot_be_read_is_our_bug() -> None:
    for text in ("int x;", PREFIX + "{", PREFIX + "{}", PREFIX + json.dumps({"buffers": 3})):
        with pytest.raises(InternalError, match="launch table"):
            read_table(text)


def test_another_gpu_is_a_user_error(tmp_path: Path) -> None:
    for arch, (kernel, target) in ((100, TABLES["wgmma"]), (75, TABLES["rows"])):
        (tmp_path / f"{arch}").mkdir()
        (tmp_path / "k.cu").write_text(emit_kernel(kernel, target))
        with machine.use(HostMachine(tmp_path / f"{arch}", arch=arch)):
            with pytest.raises(IrcError) as caught:
                load(tmp_path / "k.cu")
            assert caught.value.code == "device-unfit" and f"sm_{arch}" in str(caught.value)


def test_what_the_driver_refuses_is_said(here: HostMachine, tmp_path: Path) -> None:
    here.place()
    with pytest.raises(IrcError, match="device kernel image is invalid") as caught:
        here.driver.load_module(b"nothing\0")
    assert caught.value.code == "device-failed"
    (tmp_path / "k.cu").write_text(emit_kernel(g.softmax(), 80).replace("x0[", "x0[1000000 + "))
    args = [torch.zeros(arg.type.num_elements) for arg in g.softmax().args]
    with pytest.raises(IrcError, match="cuLaunchKernel: unspecified launch failure"):
        load(tmp_path / "k.cu")(*args)


WRONG: dict[str, Callable[[Driver, int], None]] = {
    "stream": lambda d, f: d.launch(f, 1, 128, 0, STREAM + 1, 8),
    "threads": lambda d, f: d.launch(f, 1, 1025, 0, STREAM, 8),
    "blocks": lambda d, f: d.launch(f, 0, 128, 0, STREAM, 8),
    "shared": lambda d, f: d.launch(f, 1, 128, 64 << 10, STREAM, 8),
    "handle": lambda d, f: d.launch(f + 8, 1, 128, 0, STREAM, 8),
}


@pytest.fixture(scope="module")
def softmax(gpu: HostMachine) -> int:
    (path,) = gpu.compile([emit_kernel(g.softmax(), 80)], 80)
    gpu.place()
    return gpu.driver.function(gpu.driver.load_module(path), "kernel_softmax", 0)


@pytest.mark.parametrize("name", WRONG)
def test_the_stand_in_refuses_what_a_driver_does(
    here: HostMachine, softmax: int, name: str
) -> None:
    with pytest.raises(IrcError, match="device-failed"):
        WRONG[name](here.driver, softmax)


def test_a_driver_that_is_missing_is_a_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("irc.backends.cuda.libcuda.LIBRARIES", ("libcuda-none.so",))
    find_driver.cache_clear()
    with pytest.raises(IrcError, match="no NVIDIA driver") as caught:
        find_driver()
    assert caught.value.code == "device-missing"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_user_is_told() -> None:
    with machine.use(machine.Gpu()), pytest.raises(IrcError, match="device-missing"):
        device_of("cuda")


@pytest.mark.parametrize(
    ("capability", "wanted"),
    [((9, 0), "sm_90"), ((8, 0), "sm_80"), ((8, 9), "sm_80"), ((10, 0), "sm_80")],
)
def test_the_target_is_the_gpu_at_hand(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], wanted: str
) -> None:
    with machine.use(machine.Gpu()):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert target_at_hand("cuda", ("sm_90", "sm_80")) == "sm_90"
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
        assert target_at_hand("cuda", ("sm_90", "sm_80")) == wanted


def _bert() -> tuple[nn.Module, torch.Tensor]:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=32, attn_implementation="sdpa",
    )  # fmt: skip

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = BertModel(config).eval()

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.model(tokens).last_hidden_state

    return Encoder().eval(), torch.randint(0, 61, (2, 19))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("order", range(len(host.ORDERS)))
def test_a_bert_runs_whole(tmp_path: Path, target: str, dtype: torch.dtype, order: int) -> None:
    pytest.importorskip("transformers")
    module, tokens = _bert()
    with torch.no_grad(), machine.use(HostMachine(tmp_path, order=order)) as here:
        wanted = module(tokens)
        run = executor(module.to(dtype), tokens, target=target)
        (output,) = run(tokens)
        again = run(tokens)[0]
    worst = float((output.float() - wanted).abs().max())
    assert worst < (2e-5 if dtype == torch.float32 else 0.1), worst
    assert torch.equal(output, again)
    assert len(launches(here)) > 2 * 10 and not {e for *_, e in launches(here)} - {"0"}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_a_training_step_runs_whole(tmp_path: Path, target: str) -> None:
    """Forward, backward (that of attention too) and AdamW, against the kernels of the CPU."""
    states: dict[str, dict[str, torch.Tensor]] = {}
    losses: dict[str, list[float]] = {}
    with machine.use(HostMachine(tmp_path)) as here:
        for backend in ("cpu", "cuda"):
            program, tokens = _training()
            options = Options(backend=backend, target=target if backend == "cuda" else "")
            states[backend] = {name: t.clone() for name, t in program.tensors.items()}
            run = TorchDriver(states[backend]).bind(make_plan(program, options, keep_ir=False))
            rate = torch.tensor(1e-3, dtype=torch.float64)
            losses[backend] = [float(run(tokens, tokens, rate)[0]) for _ in range(2)]
        names = [name for name, *_ in launches(here)]
    assert sum(name.endswith("attention_backward") for name in names) == 2 * 2
    torch.testing.assert_close(losses["cuda"], losses["cpu"], atol=2e-6, rtol=2e-6)
    for name, state in states["cpu"].items():
        torch.testing.assert_close(states["cuda"][name], state, atol=1e-5, rtol=1e-5)


def _training() -> tuple[Any, torch.Tensor]:
    torch.manual_seed(0)
    module = GPT(GPTConfig(layers=1, hidden=32, heads=2, block=20, vocab=29)).eval()
    tokens = torch.randint(0, 29, (2, 19))
    program = capture(module, (tokens, tokens)).program
    return training_program(program, trainable=module, optimizer="adamw", loss=""), tokens


def test_a_table_of_pointers_is_read_once_for_each_call(here: HostMachine, tmp_path: Path) -> None:
    """The arguments of one launch are not those of the next."""
    (tmp_path / "k.cu").write_text(emit_kernel(g.softmax(), 80))
    launch = load(tmp_path / "k.cu")
    sizes = [arg.type.num_elements for arg in g.softmax().args]
    first, second = ([torch.randn(size) for size in sizes] for _ in range(2))
    launch(*first)
    kept = first[-1].clone()
    launch(*second)
    assert torch.equal(first[-1], kept) and not torch.equal(second[-1], kept)
