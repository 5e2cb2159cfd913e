"""Programs of plans, run with numpy: numbers, inputs, threads, and what is refused."""

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import irc
from irc.backends.cpu.variants import VARIANTS
from irc.errors import IrcError
from irc.plan.native import MANIFEST, PROGRAM, WEIGHTS
from irc.runtime import load
from irc.runtime.native import folder, processor

pytestmark = pytest.mark.skipif(
    processor.system() != "linux-x86_64", reason="programs are for Linux on x86-64"
)


class Tower(nn.Module):
    """Look-ups, a convolution, a softmax, matmuls: indices, windows, scratch, packed weights."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 24)
        self.conv = nn.Conv1d(24, 40, 3, padding=1)
        self.norm = nn.LayerNorm(40)
        self.out = nn.Linear(40, 17)

    def forward(self, ids: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.conv(self.table(ids).transpose(1, 2)).transpose(1, 2)
        y = self.out(self.norm(torch.relu(h)) * scale)
        return torch.softmax(y, -1), y.transpose(1, 2)


IDS = np.random.default_rng(0).integers(0, 11, (3, 29))
SCALE = np.random.default_rng(1).standard_normal((29, 40)).astype(np.float32)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    out = tmp_path_factory.mktemp("plans") / "tower"
    arguments = (torch.from_numpy(IDS), torch.from_numpy(SCALE))
    text = irc.export_plan(Tower().eval(), arguments, out=out)
    assert "native      x86-64-v4 " in text  # and no code for dots, of which there are none
    assert text.endswith("\nneeds       numpy alone")
    return out


@pytest.fixture(scope="module")
def wanted(plan: Path) -> list[np.ndarray]:
    return [y.numpy() for y in irc.load(plan)(torch.from_numpy(IDS), torch.from_numpy(SCALE))]


def copied(plan: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(plan, tmp_path / "copy"))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("mapped", [False, True])
def test_the_numbers_are_those_of_the_plan(
    plan: Path, wanted: list[np.ndarray], threads: int, mapped: bool
) -> None:
    program = load(plan, threads=threads, mapped=mapped)
    assert [each.name for each in program.inputs] == ["ids", "scale"]
    assert [each.shape for each in program.outputs] == [(3, 29, 17), (3, 17, 29)]
    for inputs in ([IDS, SCALE], {"scale": SCALE, "ids": IDS}):
        for want, got in zip(wanted, program.run(inputs), strict=True):
            assert np.array_equal(want, got)


@pytest.mark.parametrize("code", ["x86-64-v3", "x86-64-v4"])
def test_each_kind_of_processor_gives_these_numbers(
    plan: Path, wanted: list[np.ndarray], code: str
) -> None:
    if missing := set(VARIANTS[code].requires) - processor.flags():
        pytest.skip(f"no {', '.join(sorted(missing))} here")
    program = load(plan, threads=2, code=code)
    assert program.code == code
    for want, got in zip(wanted, program.run([IDS, SCALE]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_several_threads_call_at_once(plan: Path, wanted: list[np.ndarray]) -> None:
    program = load(plan, threads=2)
    scales = [SCALE * factor for factor in range(8)]
    expected = [program.run([IDS, scale]) for scale in scales]
    assert np.array_equal(expected[1][0], wanted[0])
    wrong: list[int] = []

    def call(k: int) -> None:
        for _ in range(60):
            outputs = program.run([IDS, scales[k]])
            same = zip(outputs, expected[k], strict=True)
            if not all(np.array_equal(a, b) for a, b in same):
                wrong.append(k)

    callers = [threading.Thread(target=call, args=(k,)) for k in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_results_are_the_callers(plan: Path) -> None:
    program = load(plan, threads=1)
    first = program.run([IDS, SCALE])
    kept = [y.copy() for y in first]
    program.run([IDS, SCALE * 0])
    assert all(np.array_equal(a, b) for a, b in zip(first, kept, strict=True))


def test_inputs_come_with_gaps_or_through_dlpack(plan: Path, wanted: list[np.ndarray]) -> None:
    program = load(plan, threads=1)
    wide = np.zeros((29, 80), np.float32)
    wide[:, ::2] = SCALE
    strided = wide[:, ::2]
    assert not strided.flags.c_contiguous
    for ids, scale in ((IDS, strided), (torch.from_numpy(IDS), torch.from_numpy(SCALE))):
        assert np.array_equal(program.run([ids, scale])[0], wanted[0])


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ([IDS], "takes 2 inputs, not 1"),
        ({"ids": IDS}, "input 'scale' is missing"),
        ({"ids": IDS, "scale": SCALE, "mask": IDS}, "'mask' is not an input"),
        ([IDS[:2], SCALE], r"'ids' is \[2, 29\] int64; the program takes \[3, 29\] int64"),
        ([IDS.astype(np.int32), SCALE], "int32"),
        ([IDS, SCALE.astype(">f4")], "float32|f4"),
        ([IDS, SCALE.tolist()], "of list"),
    ],
)
def test_other_inputs_are_refused(plan: Path, inputs: Any, said: str) -> None:
    with pytest.raises(IrcError, match=said) as caught:
        load(plan, threads=1).run(inputs)
    assert caught.value.code == "input-mismatch"


def test_an_index_outside_is_refused_and_the_next_call_is_right(
    plan: Path, wanted: list[np.ndarray]
) -> None:
    program = load(plan, threads=2)
    with pytest.raises(IrcError, match="index-out-of-range"):
        program.run([IDS + 11, SCALE])
    assert np.array_equal(program.run([IDS, SCALE])[0], wanted[0])


def test_the_folder_stands_for_itself(plan: Path, wanted: list[np.ndarray], tmp_path: Path) -> None:
    alone = Path(shutil.copytree(plan / "native", tmp_path / "elsewhere"))
    assert np.array_equal(load(alone, threads=1).run([IDS, SCALE])[0], wanted[0])


@pytest.mark.parametrize("name", [WEIGHTS, PROGRAM, ".so"])
@pytest.mark.parametrize("mapped", [False, True])
def test_what_was_changed_is_refused(plan: Path, tmp_path: Path, name: str, mapped: bool) -> None:
    copy = copied(plan, tmp_path)
    code = load(plan, threads=1).code
    victim = next(p for p in (copy / "native").iterdir() if p.name.endswith(name)
                  and (name != ".so" or p.name.startswith(f"{code}-")))  # fmt: skip
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    with pytest.raises(IrcError, match="plan-corrupt"):
        load(copy, threads=2, mapped=mapped)
    victim.write_bytes(content[:-1])
    with pytest.raises(IrcError, match="plan-corrupt"):
        load(copy, threads=2, mapped=mapped)
    victim.unlink()
    with pytest.raises(IrcError, match="plan-corrupt"):
        load(copy, threads=1, mapped=mapped)


def test_a_program_beside_another_plan_is_refused(plan: Path, tmp_path: Path) -> None:
    copy = copied(plan, tmp_path)
    (copy / "manifest.json").write_text((copy / "manifest.json").read_text() + " ")
    with pytest.raises(IrcError, match="was made from plan"):
        load(copy, threads=1)


def test_a_hash_says_which_program_it_must_be(plan: Path, tmp_path: Path) -> None:
    digest = load(plan, threads=1).hash
    for requested in (digest, digest[:8], digest[:16].upper()):
        assert load(plan, threads=1, hash=requested).hash == digest
    for requested in ("0" * 16, digest[:4], "x"):
        with pytest.raises(IrcError, match="plan-hash-mismatch"):
            load(plan, threads=1, hash=requested)
    copy = copied(plan, tmp_path)
    manifest = copy / "native" / MANIFEST
    manifest.write_text(manifest.read_text() + "\n")
    with pytest.raises(IrcError, match="plan-hash-mismatch"):
        load(copy, threads=1, hash=digest)


def test_a_machine_that_lacks_what_code_needs_is_named(
    plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    have = processor.flags()
    have |= set(VARIANTS["x86-64-v4"].requires)
    monkeypatch.setattr(folder, "flags", lambda: have - {"avx512bw"})
    assert load(plan, threads=1).code == "x86-64-v3"
    with pytest.raises(IrcError, match=r"x86-64-v4: the processor lacks avx512bw") as caught:
        load(plan, threads=1, code="x86-64-v4")
    assert caught.value.code == "processor-unsupported"
    monkeypatch.setattr(folder, "flags", lambda: have - {"avx512bw", "fma", "f16c"})
    with pytest.raises(IrcError, match="x86-64-v3: the processor lacks f16c, fma"):
        load(plan, threads=1)
    monkeypatch.setattr(folder, "system", lambda: "darwin-aarch64")
    with pytest.raises(IrcError, match="is for linux-x86_64, this is darwin-aarch64"):
        load(plan, threads=1)


def test_what_is_not_there_is_named(plan: Path, tmp_path: Path) -> None:
    with pytest.raises(IrcError, match="plan-missing"):
        load(tmp_path)
    copy = copied(plan, tmp_path)
    shutil.rmtree(copy / "native")
    with pytest.raises(IrcError, match="native-missing"):
        load(copy)
    with pytest.raises(IrcError, match="no code for 'x86-64-v5'"):
        load(plan, code="x86-64-v5")
    for threads in (0, -1, 5000):
        with pytest.raises(IrcError, match="option-value"):
            load(plan, threads=threads)


@pytest.mark.parametrize("text", ["{}", "[]", '{"format": 2}', '{"format": 1}', "nonsense"])
def test_a_program_that_is_none_is_refused(plan: Path, tmp_path: Path, text: str) -> None:
    copy = copied(plan, tmp_path)
    (copy / "native" / MANIFEST).write_text(text)
    with pytest.raises(IrcError, match=r"plan-corrupt|plan-version"):
        load(copy)


def test_a_manifest_cannot_lead_out_of_the_folder(plan: Path, tmp_path: Path) -> None:
    copy = copied(plan, tmp_path)
    manifest = json.loads((copy / "native" / MANIFEST).read_text())
    manifest["files"]["../evil.so"] = {"bytes": 1, "sha256": ["0"]}
    (copy / "native" / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(IrcError, match="is not the name of a file"):
        load(copy)
    copy = Path(shutil.copytree(plan, tmp_path / "other"))
    weights = copy / "native" / WEIGHTS
    weights.rename(tmp_path / "moved")
    weights.symlink_to(tmp_path / "moved")
    with pytest.raises(IrcError, match="plan-corrupt"):
        load(copy)


def test_compiling_again_over_a_loaded_program(tmp_path: Path) -> None:
    out, x = tmp_path / "plan", torch.randn(4, 8)
    for module in (nn.Linear(8, 5), nn.Sequential(nn.Linear(8, 5), nn.Sigmoid())):
        irc.export_plan(module, (x,), out=out, force=True, native="x86-64-v3")
        (got,) = load(out, threads=1).run([x.numpy()])
        np.testing.assert_allclose(got, module(x).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_kinds_are_chosen_by_name(tmp_path: Path) -> None:
    x = torch.randn(4, 8)
    text = irc.export_plan(nn.Linear(8, 5), (x,), out=tmp_path / "a", native="x86-64-v3")
    assert "native      x86-64-v3 " in text
    assert load(tmp_path / "a", threads=1).code == "x86-64-v3"
    text = irc.export_plan(nn.Linear(8, 5), (x,), out=tmp_path / "b", native="none")
    assert "native      none: none was asked for" in text
    with pytest.raises(IrcError, match="native-missing"):
        load(tmp_path / "b")
    with pytest.raises(IrcError, match="did you mean 'x86-64-v3'"):
        irc.export_plan(nn.Linear(8, 5), (x,), out=tmp_path / "c", native="x86-64-3")
    text = irc.export_plan(nn.Linear(8, 5), (x,), out=tmp_path / "d", mesh="data=2")
    assert "native      none: it is for 2 ranks" in text
