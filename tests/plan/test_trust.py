"""Whose code is run: that of this user's irc, of trusted keys, and where the caller says so."""

# pyright: basic

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import irc
from irc.backends.cpu.allowed import refusal
from irc.cli import main
from irc.errors import IrcError
from irc.plan import built, json_text
from irc.plan.load import load_plan
from irc.runtime.code import runnable
from irc.runtime.native import program as native

CANARY = '@command = constant [{size} x i8] c"touch {path}\\00"\ndeclare i32 @system(ptr)\n'
X = torch.arange(24.0).reshape(3, 8) / 7


class Net(nn.Module):
    """A matrix product, a nonlinear function and a norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


@pytest.fixture(scope="module", params=["fixed", "open"])
def compiled(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trust") / "plan"
    irc.export_plan(Net().eval(), (X,), out=out, dynamic=True if request.param == "open" else None)
    return out


@pytest.fixture
def plan(compiled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(compiled, tmp_path / "plan"))


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user on whose machine irc has written nothing."""
    monkeypatch.setenv("IRC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(built, "_here", set())


def edit_kernels(plan: Path, change: Callable[[str], str]) -> None:
    """Change the text of each kernel, and make the digests of the plan right again."""
    for path in (plan / "kernels").iterdir():
        path.write_text(change(path.read_text()))
    redo_digests(plan, "plan.json")


def redo_digests(plan: Path, *_: str) -> None:
    manifest = json.loads((plan / "manifest.json").read_text())
    for name, entry in manifest["files"].items():
        content = (plan / name).read_bytes()
        entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (plan / "manifest.json").write_text(json_text.dump(manifest))


def with_command(canary: Path) -> Callable[[str], str]:
    text = CANARY.format(size=len(f"touch {canary}") + 1, path=canary)
    call = "entry:\n  %evil = call i32 @system(ptr @command)"
    return lambda kernel: kernel.replace("entry:", call, 1) + text


def code_of(error: pytest.ExceptionInfo[IrcError]) -> str:
    return error.value.code


def test_a_plan_that_was_written_here_is_run_as_it_is(plan: Path) -> None:
    assert runnable(load_plan(plan)).code == "trusted"
    assert native.load(plan).run([X.numpy()])[0].shape == (3, 16)


@pytest.mark.usefixtures("stranger")
def test_kernels_of_others_are_written_again(plan: Path, tmp_path: Path) -> None:
    expected = irc.load(plan)(X)[0]
    canary = tmp_path / "canary"
    edit_kernels(plan, with_command(canary))
    loaded = runnable(load_plan(plan))
    assert loaded.code == "rewritten"
    assert not any(b"@system" in t for n, t in loaded.texts.items() if n.startswith("kernels/"))
    torch.testing.assert_close(irc.load(plan)(X)[0], expected)
    assert not canary.exists()


def test_an_edited_plan_is_a_stranger_to_who_wrote_it(plan: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    edit_kernels(plan, with_command(canary))
    assert runnable(load_plan(plan)).code == "rewritten"
    irc.load(plan)(X)
    assert not canary.exists()


def test_trusted_kernels_call_nothing_outside(plan: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    edit_kernels(plan, with_command(canary))
    with pytest.raises(IrcError) as caught:
        irc.load(plan, trust=True)(X)
    assert code_of(caught) == "kernel-invalid"
    assert not canary.exists()


@pytest.mark.usefixtures("stranger")
def test_what_was_written_again_alike_is_not_written_twice(
    plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert runnable(load_plan(plan)).code == "rewritten"
    monkeypatch.setattr("irc.runtime.code._written", lambda *_: pytest.fail("written again"))
    assert runnable(load_plan(plan)).code == "rewritten"


@pytest.mark.usefixtures("stranger")
def test_a_plan_without_a_program_cannot_be_written_again(plan: Path) -> None:
    manifest = json.loads((plan / "manifest.json").read_text())
    for name in [n for n in manifest["files"] if n.startswith("ir/") or n == "sizes/shared.mlir"]:
        del manifest["files"][name]
    (plan / "manifest.json").write_text(json_text.dump(manifest))
    with pytest.raises(IrcError) as caught:
        irc.load(plan)
    assert code_of(caught) == "plan-untrusted"


@pytest.mark.usefixtures("stranger")
def test_a_program_of_larger_buffers_than_the_plans_is_refused(plan: Path) -> None:
    """Else a kernel would be written that reaches behind the buffers that plan.json gives it."""
    stages = sorted((plan / "ir").iterdir())
    shared = plan / "sizes" / "shared.mlir"
    path = shared if shared.exists() else stages[-1]
    path.write_text(path.read_text().replace("buffer<16, f32>", "buffer<99, f32>"))
    redo_digests(plan)
    with pytest.raises(IrcError) as caught:
        irc.load(plan)
    assert code_of(caught) == "plan-corrupt"


@pytest.mark.usefixtures("stranger")
def test_machine_code_of_others_is_refused(plan: Path) -> None:
    with pytest.raises(IrcError, match="trust=True") as caught:
        native.load(plan)
    assert code_of(caught) == "plan-untrusted"
    digest = hashlib.sha256((plan / "native" / "manifest.json").read_bytes()).hexdigest()
    with pytest.raises(IrcError) as caught:
        native.load(plan, hash=digest[:16])
    assert code_of(caught) == "plan-untrusted"
    accepted: tuple[dict[str, Any], ...] = ({"trust": True}, {"hash": digest})
    for options in accepted:
        assert native.load(plan, **options).run([X.numpy()])[0].shape == (3, 16)


@pytest.mark.usefixtures("stranger")
def test_irc_trust_notes_a_plan(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trust", str(plan), "--show"]) == 0
    assert capsys.readouterr().out.count("not trusted") == 2
    assert main(["trust", str(plan)]) == 0
    assert runnable(load_plan(plan)).code == "trusted"
    native.load(plan)


@pytest.mark.usefixtures("stranger")
class TestSignatures:
    """Keys that the user trusts."""

    @pytest.fixture
    def key(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Path, str]:
        pytest.importorskip("cryptography")
        path = tmp_path / "key.pem"
        assert main(["sign", "--new-key", str(path)]) == 0
        assert path.stat().st_mode & 0o777 == 0o600
        return path, capsys.readouterr().out.strip()

    @pytest.fixture
    def trusted(self, tmp_path: Path) -> Path:
        path = tmp_path / "config" / "irc" / "trusted-keys"
        path.parent.mkdir(parents=True)
        return path

    def test_of_a_trusted_key(self, plan: Path, key: tuple[Path, str], trusted: Path) -> None:
        assert main(["sign", str(plan), "--key", str(key[0])]) == 0
        assert runnable(load_plan(plan)).code == "rewritten"
        trusted.write_text(f"# machines\n{key[1]} the build machine\n")
        trusted.chmod(0o600)
        built._here.clear()  # that it was written alike is known by now
        assert runnable(load_plan(plan)).code == "trusted"
        irc.load(plan)
        native.load(plan)
        native.load(plan / "native")

    def test_by_who_compiles(
        self, tmp_path: Path, key: tuple[Path, str], trusted: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "net.py").write_text(
            "import torch\ndef build(): return torch.nn.Linear(8, 8), (torch.ones(3, 8),)\n"
        )
        out = tmp_path / "signed"
        words = ["compile", f"{tmp_path / 'net.py'}:build", "-o", str(out), "--sign-key"]
        assert main([*words, str(tmp_path / "absent.pem")]) == 2
        assert not out.exists()
        assert main([*words, str(key[0])]) == 0
        monkeypatch.setenv("IRC_CACHE_DIR", str(tmp_path / "another"))
        built._here.clear()
        trusted.write_text(f"{key[1]}\n")
        trusted.chmod(0o600)
        assert runnable(load_plan(out)).code == "trusted"

    def test_of_another_plan(self, plan: Path, key: tuple[Path, str], trusted: Path) -> None:
        trusted.write_text(f"{key[1]}\n")
        trusted.chmod(0o600)
        assert main(["sign", str(plan), "--key", str(key[0])]) == 0
        edit_kernels(plan, lambda text: text + "; another\n")
        with pytest.raises(IrcError) as caught:
            irc.load(plan)
        assert code_of(caught) == "signature-invalid"

    def test_that_was_forged(self, plan: Path, key: tuple[Path, str], trusted: Path) -> None:
        trusted.write_text(f"{key[1]}\n")
        trusted.chmod(0o600)
        assert main(["sign", str(plan), "--key", str(key[0])]) == 0
        edit_kernels(plan, lambda text: text + "; another\n")
        path = plan / "signature.json"
        signature = json.loads(path.read_text())
        digest = hashlib.sha256((plan / "manifest.json").read_bytes()).hexdigest()
        signature["files"]["manifest.json"] = digest
        path.write_text(json.dumps(signature))
        with pytest.raises(IrcError) as caught:
            irc.load(plan)
        assert code_of(caught) == "signature-invalid"

    def test_of_weights_too(self, plan: Path, key: tuple[Path, str], trusted: Path) -> None:
        trusted.write_text(f"{key[1]}\n")
        trusted.chmod(0o600)
        assert main(["sign", str(plan), "--key", str(key[0])]) == 0
        flip(plan / "weights.safetensors")
        path = plan / "weights.digests.json"
        digests = json.loads(path.read_text())
        content = (plan / "weights.safetensors").read_bytes()
        digests["sha256"] = [hashlib.sha256(content).hexdigest()]
        path.write_text(json_text.dump(digests))
        with pytest.raises(IrcError) as caught:
            irc.load(plan)
        assert code_of(caught) == "signature-invalid"

    @pytest.mark.parametrize("line", ["rsa:00", "ed25519:zz", "ed25519:" + "0" * 63])
    def test_lines_that_are_no_keys(
        self, plan: Path, key: tuple[Path, str], trusted: Path, line: str
    ) -> None:
        assert main(["sign", str(plan), "--key", str(key[0])]) == 0
        trusted.write_text(f"{line}\n")
        trusted.chmod(0o600)
        with pytest.raises(IrcError) as caught:
            irc.load(plan)
        assert code_of(caught) == "key-invalid"

    def test_a_list_that_others_can_write(
        self, plan: Path, key: tuple[Path, str], trusted: Path
    ) -> None:
        assert main(["sign", str(plan), "--key", str(key[0])]) == 0
        trusted.write_text(f"{key[1]}\n")
        trusted.chmod(0o666)
        with pytest.raises(IrcError) as caught:
            irc.load(plan)
        assert code_of(caught) == "key-invalid"

    def test_a_key_is_never_overwritten(self, key: tuple[Path, str]) -> None:
        assert main(["sign", "--new-key", str(key[0])]) == 2

    def test_without_the_package(
        self, plan: Path, key: tuple[Path, str], trusted: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert main(["sign", str(plan), "--key", str(key[0])]) == 0
        trusted.write_text(f"{key[1]}\n")
        trusted.chmod(0o600)
        name = "cryptography.hazmat.primitives.asymmetric.ed25519"
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(IrcError) as caught:
            irc.load(plan)
        assert code_of(caught) == "package-missing"


def flip(path: Path, bit: int = 4) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= bit
    path.write_bytes(content)


class TestWeights:
    """Digests of what is outside the plan's hash."""

    @pytest.mark.parametrize("options", [{}, {"verify": True}, {"trust": True}])
    def test_one_bit_is_noticed(self, plan: Path, options: dict[str, Any]) -> None:
        irc.load(plan, **options)
        flip(plan / "weights.safetensors")
        with pytest.raises(IrcError, match="weights are not what") as caught:
            irc.load(plan, **options)
        assert code_of(caught) == "plan-corrupt"
        assert main(["check", str(plan), "--weights"]) == 2
        flip(plan / "weights.safetensors")
        irc.load(plan, **options)
        assert main(["check", str(plan), "--weights"]) == 0

    def test_what_was_compared_is_not_read_again(
        self, plan: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        irc.load(plan)
        monkeypatch.setattr("irc.plan.digests._compare", lambda *_: pytest.fail("compared again"))
        irc.load(plan)
        with pytest.raises(BaseException, match="compared again"):
            irc.load(plan, verify=True)

    @pytest.mark.usefixtures("stranger")
    def test_a_stranger_must_have_digests(self, plan: Path) -> None:
        (plan / "weights.digests.json").unlink()
        with pytest.raises(IrcError, match="no digests") as caught:
            irc.load(plan)
        assert code_of(caught) == "plan-corrupt"

    def test_of_native_programs_are_checked_on_request_too(self, plan: Path) -> None:
        flip(plan / "native" / "weights.bin")
        assert main(["check", str(plan), "--weights"]) == 2


SOUND = """define void @"k"(ptr %args, i64 %thread, i64 %threads, ptr %scratch) {
entry:
  %x = load float, ptr %args
  %y = call float @llvm.sqrt.f32(float %x)
  %z = call float @twice(float %y)
  store float %z, ptr %args
  ret void
}
define internal float @twice(float %x) {
  %y = fadd float %x, %x
  ret float %y
}
declare float @llvm.sqrt.f32(float)
"""
UNSOUND = {
    "a library": ("@llvm.sqrt.f32(", "@sqrt_of("),
    "a foreign intrinsic": ("@llvm.sqrt.f32(float", "@llvm.experimental.deoptimize.f32(float"),
    "assembler": ("%z = call float @twice(float %y)",
                  '%z = call float asm "nop", "=x,x"(float %y)'),
    "an address as a number": ("%x = load float, ptr %args",
                               "%x = load float, ptr inttoptr (i64 4096 to ptr)"),
    "an indirect call": ("%z = call float @twice(float %y)",
                         "%f = load ptr, ptr %args\n  %z = call float %f(float %y)"),
    "a stored address": ("store float %z, ptr %args", "store ptr @twice, ptr %args"),
    "a second function that others see": ("define internal float", "define float"),
    "a global": ("define internal", "@g = global i32 0\ndefine internal"),
    "a constructor": ("define internal",
                      "@llvm.global_ctors = appending global [1 x {i32, ptr, ptr}] "
                      "[{i32, ptr, ptr} {i32 1, ptr @twice, ptr null}]\ndefine internal"),
    "an alias": ("define internal", "@a = alias float (float), ptr @twice\ndefine internal"),
    "an ifunc": ("define internal", "@a = ifunc float (float), ptr @twice\ndefine internal"),
    "assembler of the module": ("define internal", 'module asm ".globl evil"\ndefine internal'),
    "bytes before a function": ("define internal float @twice(float %x) {",
                                "define internal float @twice(float %x) prefix i32 7 {"),
    "bytes in front of a body": ("define internal float @twice(float %x) {",
                                 "define internal float @twice(float %x) prologue i32 7 {"),
    "a section": ("define internal float @twice(float %x) {",
                  'define internal float @twice(float %x) section ".init_array" {'),
    "an attribute that calls": ("define internal float @twice(float %x) {",
                                'define internal float @twice(float %x) "probe-stack"="evil" {'),
    "a garbage collector": ("define internal float @twice(float %x) {",
                            'define internal float @twice(float %x) gc "shadow-stack" {'),
}  # fmt: skip
"""What a kernel may not hold: what to put in place of what."""


def printed(text: str) -> str:
    import llvmlite.binding as llvm

    return str(llvm.parse_assembly(text))


def test_a_sound_text_is_compiled() -> None:
    assert refusal(printed(SOUND), "k") is None


@pytest.mark.parametrize("case", UNSOUND)
def test_an_unsound_text_is_not(case: str) -> None:
    old, new = UNSOUND[case]
    assert old in SOUND
    assert refusal(printed(SOUND.replace(old, new)), "k") is not None


class Writing(nn.Module):
    """A module with an op that torch and ONNX do not have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.irc_trust_test.twice(x) + 1


@pytest.mark.usefixtures("stranger")
def test_ops_of_others_are_declared_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = torch.library.Library("irc_trust_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    torch.library.register_fake("irc_trust_test::twice", torch.empty_like, lib=library)
    out = tmp_path / "plan"
    irc.export_plan(Writing(), (X,), out=out)
    irc.load(out)
    monkeypatch.setenv("IRC_CACHE_DIR", str(tmp_path / "another"))
    monkeypatch.setattr(built, "_here", set())
    with pytest.raises(IrcError, match="irc_trust_test::twice") as caught:
        irc.load(out)
    assert code_of(caught) == "plan-untrusted"
    assert main(["check", str(out)]) == 2
    torch.testing.assert_close(irc.load(out, trust=True)(X)[0], X * 2 + 1)


class Functions(nn.Module):
    """What float64 has of the C library, and a table of the lengths of parts."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.tan() + x.abs() ** y + torch.erfc(y) + torch.fmod(x, y) + y.cumsum(0)


def halves(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.bfloat16)


def attended(q: torch.Tensor) -> torch.Tensor:
    return nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)


@pytest.mark.parametrize(
    ("module", "args"),
    [
        (Functions(), (X.double() + 1, X.double() + 2)),
        (nn.Sequential(nn.Conv2d(3, 32, 3), nn.GELU(), nn.Conv2d(32, 32, 3)).bfloat16().eval(),
         (halves(2, 3, 16, 16),)),
        (attended, (halves(1, 4, 128, 64),)),
    ],
)  # fmt: skip
def test_what_irc_writes_is_sound(
    module: Any, args: tuple[torch.Tensor, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For all kinds of processors, so that no trusted plan of irc's own is refused."""
    from irc.backends.cpu import jit
    from irc.backends.cpu import native as linked

    checked: list[str] = []
    parse = linked.parse_kernel

    def guarded(text: str, symbol: str, around: Any) -> Any:
        jit.check_text(text)
        checked.append(symbol)
        return parse(text, symbol, around)

    monkeypatch.setenv("IRC_CACHE", "off")
    monkeypatch.setattr(linked, "parse_kernel", guarded)
    irc.export_plan(module, args, out=tmp_path / "plan")
    assert checked


OPS = """
import torch
@torch.library.custom_op("irc_import_test::shifted", mutates_args=())
def shifted(x: torch.Tensor) -> torch.Tensor: return x + 3
@shifted.register_fake
def _(x: torch.Tensor) -> torch.Tensor: return torch.empty_like(x)
"""
NET = """
import torch, ops
class Net(torch.nn.Module):
    def forward(self, x): return torch.ops.irc_import_test.shifted(x) * 2
def build(): return Net(), (torch.ones(3, 4),)
"""


@pytest.mark.slow
def test_a_file_that_defines_ops_is_imported_where_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "ops.py").write_text(OPS)
    (tmp_path / "net.py").write_text(NET)

    def said(*words: str) -> str:
        root = str(Path(__file__).parents[2])
        done = subprocess.run(
            [sys.executable, "-m", "irc.cli", *words], cwd=tmp_path, capture_output=True,
            text=True, check=False, env={**os.environ, "PYTHONPATH": root},
        )  # fmt: skip
        return f"{done.returncode} {done.stdout}{done.stderr}"

    assert said("compile", "net.py:build", "-o", "plan").startswith("0")
    missing = said("run", "plan")
    assert "error[op-undeclared]" in missing
    assert "--import" in missing
    assert said("run", "plan", "--import", "ops.py").rstrip().endswith("OK")
    assert said("check", "plan", "--import", "ops.py").rstrip().endswith("agrees with eager")
    assert "error[model-missing]" in said("run", "plan", "--import", "opps.py")


@pytest.mark.parametrize("backend", ["cuda", "triton"])
def test_sources_of_gpu_kernels_are_written_again_too(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "plan"
    irc.export_plan(Net().eval(), (X,), out=out, backend=backend, cluster="8xH100")
    before = {path.name: path.read_text() for path in (out / "kernels").iterdir()}
    edit_kernels(out, lambda text: f'import os; os.system("touch {tmp_path}/canary")\n{text}')
    monkeypatch.setattr(built, "_here", set())
    loaded = runnable(load_plan(out))
    assert loaded.code == "rewritten"
    assert loaded.kernel_sources() == {Path(name).stem: text for name, text in before.items()}
