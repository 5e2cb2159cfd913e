"""Programs with open sizes that are called wrongly, were changed, or were made wrongly."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import irc
from irc.errors import InternalError, IrcError
from irc.native import sizes as native_sizes
from irc.plan.native import SIZES
from irc.plan.native_sizes import NativeSizes
from irc.runtime import load
from irc.runtime.native import processor
from tests.native.open_models import Pictures
from tests.native.tied import tie

pytestmark = pytest.mark.skipif(
    processor.system() != "linux-x86_64", reason="programs are for Linux on x86-64"
)
X = np.random.default_rng(0).standard_normal((5, 3, 9, 11)).astype(np.float32)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[Any, ...]]:
    """A plan, and what its sizes were verified with."""
    torch.manual_seed(0)
    verified: list[tuple[Any, ...]] = []
    whole = native_sizes.verify_sizes
    out = tmp_path_factory.mktemp("plans") / "pictures"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_sizes, "verify_sizes", lambda *args: verified.append(args))
        irc.export_plan(
            Pictures().eval(), (torch.randn(3, 3, 9, 11),), out=out, dynamic={"x": {0: "n"}},
            native="x86-64-v3,x86-64-v4",
        )  # fmt: skip
    whole(*verified[0])
    return out, verified[0]


@pytest.fixture
def plan(compiled: tuple[Path, tuple[Any, ...]]) -> Path:
    return compiled[0]


@pytest.mark.parametrize(
    ("array", "code"),
    [
        (X[:1], "size-outside"),
        (np.zeros((4000, 3, 9, 11), np.float32), "size-outside"),
        (X[:, :2], "input-mismatch"),
        (X[0], "input-mismatch"),
        (X.reshape(5, 3, 11, 9), "input-mismatch"),
    ],
)
def test_other_sizes_are_refused_as_the_plan_refuses_them(
    plan: Path, array: np.ndarray, code: str
) -> None:
    with pytest.raises(IrcError) as wanted:
        irc.load(plan)(torch.from_numpy(array.copy()))
    program = load(plan, threads=1)
    with pytest.raises(IrcError) as caught:
        program.run([array])
    assert str(caught.value) == str(wanted.value)
    assert caught.value.code == code
    assert program.run([X])[0].shape == (5, 7)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ([], "takes 1 inputs, not 0"),
        ({"y": X}, "input 'y' is not an input"),
        ([X.astype(np.float64)], r"float64; the program takes \[5, 3, 9, 11\] float32"),
        ([X.tolist()], r"is of list; it takes \['n', 3, 9, 11\] float32"),
    ],
)
def test_other_inputs_are_refused(plan: Path, inputs: Any, said: str) -> None:
    with pytest.raises(IrcError, match=said) as caught:
        load(plan, threads=1).run(inputs)
    assert caught.value.code == "input-mismatch"


def test_a_changed_byte_is_refused(plan: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(plan, tmp_path / "copy"))
    place = copy / "native" / SIZES
    content = place.read_bytes()
    place.write_bytes(content.replace(b'"high": 1', b'"high": 9', 1))
    with pytest.raises(IrcError, match=r"plan-corrupt.*sizes.json"):
        load(copy, trust=True)
    place.unlink()
    with pytest.raises(IrcError, match="plan-corrupt"):
        load(copy, trust=True)


def rewritten(plan: Path, tmp_path: Path, change: Callable[[Any], object]) -> Path:
    """Return a copy whose sizes were changed by somebody who can write manifests."""
    copy = Path(shutil.copytree(plan, tmp_path / "copy"))
    place = copy / "native" / SIZES
    data = json.loads(place.read_bytes())
    change(data)
    place.write_text(json.dumps(data))
    tie(copy / "native")
    return copy


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(format=7), "format 7"),
        (lambda d: d.update(more=1), "unknown key"),
        (lambda d: d.pop("spans"), "'spans' is missing"),
        (lambda d: d["given"]["symbols"][0].update(dim=9), "stands in no input"),
        (lambda d: d["given"]["symbols"][0].update(example=7), "another program"),
        (lambda d: d["polynomials"].append([[1, ["nobody"]]]), "no size is called 'nobody'"),
        (lambda d: d["numbers"][0].update(value=[[1, ["a b"]]]), "is no name of a size"),
        (lambda d: d["blocks"][0].update(name=d["blocks"][1]["name"]), "two sizes have one name"),
        (lambda d: d["blocks"][0].update(bytes=999), "beyond the"),
        (lambda d: d["blocks"][0].update(bytes=-1), "beyond the"),
        (lambda d: d["spans"][0].update(offset=-2), "beyond the"),
        (lambda d: d["spans"][0].update(base=99), "names a base outside"),
        (lambda d: d["spans"][0].update(base=-1), "names a base outside"),
        (lambda d: d["order"].pop(), "places other buffers"),
        (lambda d: d["below"][0].append(-1), "places other buffers"),
        (lambda d: d["tables"].append(d["tables"][0]), "segments of"),
        (lambda d: d["divisions"].pop(), "codes of"),
        (lambda d: d["tables"][0]["spans"].pop(), "sizes cannot be put in"),
        (lambda d: d["tables"][0]["values"].pop(), "sizes cannot be put in"),
        (lambda d: d["numbers"].append({"path": "num_bases", "value": [[1, ["s77"]]]}), "corrupt"),
        (lambda d: d["numbers"].pop(), "another program|put in|none"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    plan: Path, tmp_path: Path, change: Callable[[Any], object], said: str
) -> None:
    def changed(data: Any) -> None:
        symbol = data["given"]["symbols"][0]["symbol"]
        change(data)
        for number in data["numbers"]:
            for term in number["value"]:
                term[1] = [symbol if name == "s77" else name for name in term[1]]

    copy = rewritten(plan, tmp_path, changed)
    with pytest.raises(IrcError, match=said) as caught:
        load(copy, trust=True, threads=1).run([X])
    assert caught.value.code in ("plan-corrupt", "plan-version")


def test_what_leads_outside_at_other_sizes_is_refused(plan: Path, tmp_path: Path) -> None:
    """Right for the example: a buffer that grows less than what kernels are given of it."""

    def change(data: Any) -> None:
        place = data["blocks"][data["order"][-1]]["bytes"]
        ((slope, (name,)),) = data["polynomials"][place]
        data["polynomials"].append([[1, [name]], [3 * (slope - 1), []]])
        data["blocks"][data["order"][-1]]["bytes"] = len(data["polynomials"]) - 1

    program = load(rewritten(plan, tmp_path, change), threads=1, trust=True)
    assert program.run([X[:3]])[0].shape == (3, 7)
    with pytest.raises(IrcError, match=r"plan-corrupt.*fewer than used"):
        program.run([X])


def tilted(sizes: NativeSizes, place: int, steps: int) -> NativeSizes:
    """Return sizes with one polynomial wrong everywhere but at the example."""
    (symbol,) = sizes.given.symbols
    own = sizes.polynomials[place]
    wrong = (*own, (steps, (symbol.symbol,)), (-steps * symbol.example, ()))
    listed = (*sizes.polynomials[:place], wrong, *sizes.polynomials[place + 1 :])
    return replace(sizes, polynomials=listed)


def test_a_wrong_polynomial_is_found_when_the_plan_is_compiled(
    compiled: tuple[Path, tuple[Any, ...]],
) -> None:
    sizes, program, sized, kinds = compiled[1]
    # How much work there is only decides on threads.
    divisions = [each for code in sizes.divisions for each in code]
    held = {block.bytes for block in sizes.blocks}
    held |= {n for span in sizes.spans for n in (span.offset, span.bytes)}
    held |= {n for table in sizes.tables for n in table.values}
    held |= {n for each in divisions for n in each.scratch}
    assert held | {n for each in divisions for n in each.work} == set(range(len(sizes.polynomials)))
    for place in held:
        steps = 1 << 20 if any(place in each.scratch for each in divisions) else 64
        with pytest.raises(InternalError, match=r"than its plan|cannot be put in"):
            native_sizes.verify_sizes(tilted(sizes, place, steps), program, sized, kinds)


def test_a_wrong_number_is_found_when_the_plan_is_compiled(
    compiled: tuple[Path, tuple[Any, ...]],
) -> None:
    sizes, program, sized, kinds = compiled[1]
    (symbol,) = sizes.given.symbols
    for place, number in enumerate(sizes.numbers):
        wrong = (*number.value, (1, (symbol.symbol,)), (-symbol.example, ()))
        numbers = list(sizes.numbers)
        numbers[place] = replace(number, value=wrong)
        with pytest.raises(InternalError):
            native_sizes.verify_sizes(replace(sizes, numbers=tuple(numbers)), program, sized, kinds)
    with pytest.raises(InternalError):
        native_sizes.verify_sizes(replace(sizes, order=sizes.order[::-1]), program, sized, kinds)
    (tables,) = sizes.tables
    few = replace(tables, spans=(-1,) * len(tables.spans))
    with pytest.raises(InternalError, match="has other codes for x86-64-v4 than its plan"):
        native_sizes.verify_sizes(replace(sizes, tables=(few,)), program, sized, kinds)


def test_a_slip_in_the_making_does_not_reach_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    right = native_sizes.sizes_of

    def wrong(*args: Any) -> NativeSizes:
        sizes = right(*args)
        return tilted(sizes, sizes.blocks[0].bytes, 64)

    monkeypatch.setattr(native_sizes, "sizes_of", wrong)
    arguments = (torch.randn(3, 6),)
    with pytest.raises(InternalError):
        irc.export_plan(
            torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Softmax(-1)).eval(), arguments,
            out=tmp_path / "plan", dynamic=True, native="x86-64-v3",
        )  # fmt: skip
    assert not (tmp_path / "plan").exists()
