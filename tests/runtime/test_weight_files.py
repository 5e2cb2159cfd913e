"""Folders of safetensors: each rank reads its slices, and transformers reads what is written."""

# pyright: basic
from __future__ import annotations

import errno
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import irc
from irc.errors import IrcError
from irc.interpret.parts import HostParts
from irc.runtime.weight_files import FILE, INDEX, WeightFiles, WeightFilesStart
from tests.calls.test_step import X, Y, net
from tests.models.hugging_face import llama
from tests.programs.test_parts_check import planned

LOSS = nn.functional.cross_entropy


class Tied(nn.Module):
    """Two layers with one weight, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(7, 7), nn.Linear(7, 7, bias=False)
        self.b.weight = self.a.weight
        self.register_buffer("shift", torch.arange(7.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x) + self.shift)


def test_transformers_weights_come_and_go(tmp_path: Path) -> None:
    """Sharded files into a model on the meta device; what it writes `from_pretrained` reads."""
    from transformers import AutoModelForCausalLM, LlamaForCausalLM

    model = llama(1)
    model.save_pretrained(tmp_path / "hub", max_shard_size="60KB")
    assert (tmp_path / "hub" / INDEX).exists()
    with torch.device("meta"):
        empty = LlamaForCausalLM(model.config).train()
    options: dict[str, Any] = {"optimizer": {"kind": "sgd", "lr": 0.0}, "init": empty._init_weights}
    step = irc.compile_step(empty, loss="loss", **options)
    irc.load_safetensors(step, tmp_path / "hub")
    tokens = torch.randint(0, 131, (2, 8), generator=torch.Generator().manual_seed(5))
    named = {"input_ids": tokens, "labels": tokens}
    with torch.no_grad():
        wanted = float(model(**named).loss)
    assert float(step(**named)) == pytest.approx(wanted, abs=1e-5)
    irc.save_safetensors(step, tmp_path / "mine", max_bytes=60_000)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "mine").state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(again[name], value), name
    files = json.loads((tmp_path / "mine" / INDEX).read_text())["weight_map"]
    assert len(set(files.values())) > 2
    assert not list((tmp_path / "mine").glob(".*"))


def test_a_rank_reads_its_slices_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, weights, _ = planned("gpt", "1f1b", "pipe=2,data=2", "* = [data = S(0)]", torch.float32)
    module = nn.ParameterDict({n.replace(".", "_"): nn.Parameter(w) for n, w in weights.items()
                               if n in plan.trained})  # fmt: skip
    irc.save_safetensors(module, tmp_path)
    names = {name: name.replace(".", "_") for name in plan.trained}
    start = WeightFilesStart(WeightFiles(tmp_path), names)
    read: list[int] = []
    own = WeightFiles.read

    def counted(self: WeightFiles, name: str, where: Any) -> torch.Tensor:
        piece = own(self, name, where)
        read.append(piece.numel())
        return piece

    monkeypatch.setattr(WeightFiles, "read", counted)
    for rank in range(4):
        parts = HostParts(plan, rank)
        parts.adopt_stages(plan, {n: w for n, w in weights.items() if n not in names}, names)
        before = sum(read)
        start.fill(parts, [*names])
        held = {n: p for n, p in parts.local.items() if n in names}
        assert sum(read) - before == sum(p.numel() for p in held.values())
        for name, part in held.items():
            (where,) = parts.pieces(name).values()
            assert torch.equal(part, weights[name][where]), name
    assert sum(read) < 0.6 * 4 * sum(weights[name].numel() for name in names)


def test_tied_weights_and_other_dtypes(tmp_path: Path) -> None:
    """One name of two is enough; a step that runs already takes them; states stay."""
    module = Tied()
    irc.save_safetensors(module.half(), tmp_path)
    assert WeightFiles(tmp_path).names == ["a.bias", "a.weight", "shift"]
    other = Tied()
    step = irc.compile_step(other, loss=lambda y: y.square().mean())
    x = torch.randn(3, 7)
    step(x)
    moments = step.state_dict()["optimizer"]["state"]["a.weight"]["exp_avg"].clone()
    irc.load_safetensors(step, tmp_path)
    assert other.a.weight is other.b.weight
    assert torch.equal(other.a.weight, module.a.weight.float())
    assert torch.equal(step.state_dict()["optimizer"]["state"]["a.weight"]["exp_avg"], moments)
    wanted = step.evaluate(x).square().mean()
    assert float(step(x)) == pytest.approx(float(wanted), abs=1e-6)


def refusal(call: Any, code: str) -> str:
    with pytest.raises(IrcError) as caught:
        call()
    assert caught.value.code == code
    return f"{caught.value}"


def refused_read(*_: Any) -> bytes:
    raise OSError(errno.EACCES, os.strerror(errno.EACCES))


def test_what_is_no_folder_of_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = irc.compile_step(net(), loss=LOSS)
    step(X, Y)
    before = step.state_dict()["model"]["0.weight"]
    folder = tmp_path / "w"

    def load(**options: Any) -> None:
        irc.load_safetensors(step, folder, **options)

    assert "neither" in refusal(load, "checkpoint-missing")
    irc.save_safetensors(step, folder)
    for missing_ok in (False, True):  # nothing begins anew
        resume = partial(step.load, folder, missing_ok=missing_ok)
        assert "irc.load_safetensors" in refusal(resume, "state-mismatch")
    assert "has weights already" in refusal(
        lambda: irc.save_safetensors(step, folder), "checkpoint-failed"
    )
    whole = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(whole[: len(whole) // 2])
    assert "is damaged" in refusal(load, "checkpoint-corrupt")
    (folder / FILE).unlink()
    (folder / INDEX).write_text('{"weight_map": {"0.weight": "../w.safetensors"}}')
    assert "no file '../w.safetensors'" in refusal(load, "checkpoint-corrupt")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"0.weight": "w" * 300}}))
    assert "too long" in refusal(load, "checkpoint-corrupt")
    (folder / INDEX).write_text("[")
    assert "is damaged" in refusal(load, "checkpoint-corrupt")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refused_read)
        assert "Permission denied" in refusal(load, "checkpoint-corrupt")
    (folder / INDEX).unlink()
    wide = nn.Sequential(nn.Linear(7, 12), nn.GELU(), nn.Linear(12, 5))
    irc.save_safetensors(wide, folder)
    assert "'0.weight' is [12, 7]" in refusal(load, "state-mismatch")
    (folder / FILE).unlink()
    irc.save_safetensors(nn.Sequential(net()[0]), folder)
    assert "lacks '2.weight'" in refusal(load, "state-mismatch")
    (folder / FILE).unlink()
    irc.save_safetensors(nn.Sequential(*net(), nn.Linear(5, 5)), folder)
    assert "the module has no '3.bias'" in refusal(load, "state-mismatch")
    assert torch.equal(step.state_dict()["model"]["0.weight"], before)
    load(strict=False)
    assert torch.equal(step.state_dict()["model"]["0.weight"], net()[0].weight)
    lazy = nn.Sequential(nn.LazyLinear(5))
    for call in (irc.load_safetensors, irc.save_safetensors):
        assert "no shape yet" in refusal(lambda c=call: c(lazy, tmp_path / "v"), "weights-missing")
    assert "not of str" in refusal(lambda: irc.load_safetensors("net", folder), "input-mismatch")
    assert "max_bytes" in refusal(
        lambda: irc.save_safetensors(step, tmp_path / "v", max_bytes=0), "option-value"
    )


def test_a_module_without_memory_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    irc.save_safetensors(net(), tmp_path)
    module = net()
    with torch.no_grad():
        module[0].weight.zero_()
    module[2].to("meta")
    said = refusal(lambda: irc.load_safetensors(module, tmp_path), "weights-missing")
    assert "'2.weight'" in said
    assert not module[0].weight.any()


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_numbers_without_their_scales_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    """The other way, too; between floats, and as they are, they are taken."""
    coded = nn.ParameterDict({"w": nn.Parameter(torch.ones(3).to(dtype), requires_grad=False)})
    plain = nn.ParameterDict({"w": nn.Parameter(torch.zeros(3))})
    irc.save_safetensors(coded, tmp_path / "coded")
    irc.save_safetensors(plain, tmp_path / "plain")
    name = str(dtype).removeprefix("torch.")
    said = refusal(lambda: irc.load_safetensors(plain, tmp_path / "coded"), "state-mismatch")
    assert "the module has float32" in said
    said = refusal(lambda: irc.load_safetensors(coded, tmp_path / "plain"), "state-mismatch")
    assert f"'w' is F32 in '{tmp_path / 'plain'}'; the module has {name}" in said
    assert not plain["w"].any()
    irc.load_safetensors(coded, tmp_path / "coded")
