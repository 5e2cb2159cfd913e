"""`pad-parameters`: rows that ranks do not share equally are stored with padding."""

# pyright: basic
from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import irc
from irc.dialects.builder import arguments, entry, results
from irc.dialects.flow import tensor
from irc.dialects.placement import Mesh, Split
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.interpret.check import check_plan
from irc.interpret.flow import run_function
from irc.interpret.levels import padded_inputs
from irc.interpret.spmd import run_spmd
from irc.pipeline import run_passes
from irc.plugin import parse_passes
from irc.program import Program
from irc.search.whole_work import WholeWorkWarning
from irc.sharding.padding import names_of_padded
from irc.train import training_program
from tests.training.models import program_of

LR = torch.tensor(1e-2, dtype=torch.float64)


class Words(nn.Module):
    """An embedding of 25 words and a loss over them; 2 and 3 divide no size, unless it is told."""

    def __init__(
        self,
        width: int = 35,
        inner: int = 11,
        words: int = 25,
        *,
        tied: bool = True,
        biased: bool = False,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(words, width)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.head = nn.Linear(width, words, bias=biased)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of words [b, t] that are followed by others."""
        h = self.words(x)
        h = h + self.down(F.gelu(self.up(h)))
        return F.cross_entropy(self.head(h).flatten(0, 1), y.flatten())


DRAW = torch.Generator().manual_seed(1)
X, Y = (torch.randint(0, 25, (6, 4), generator=DRAW) for _ in range(2))


def step(module: nn.Module, passes: str = "") -> tuple[Program, list[torch.Tensor]]:
    """Return a step of training, padded first where a pass does it, and its arguments."""
    program = program_of(module, X, Y)
    if passes:
        run_passes(program.module, parse_passes(f"canonicalize,{passes}"))
    # The optimiser's states take the shapes of the padded parameters.
    program = training_program(program, optimizer={"kind": "adamw", "clip_norm": 0.5})
    inputs = dict(zip(program.input_names, (X, Y, LR), strict=True))
    return program, program.bind(inputs)


def check(module: nn.Module, mesh: str, layout: str = "", pins: str = "") -> Program:
    """Hold a step on a mesh against the step of one device; return it, placed."""
    plain, inputs = step(module)
    wanted = run_function(plain.module, inputs, dtype=torch.float64)
    chosen = f'mesh="{mesh}" layout="{layout}" pins="{pins}"'
    program, inputs = step(module, f"pad-parameters{{{chosen}}}")
    inputs = padded_inputs(program.module, inputs)
    more = f"{chosen} cluster=demo-gpus report=false"
    run_passes(program.module, parse_passes(f"canonicalize,auto-shard{{{more}}},lower-boxing"))
    program.module.verify()
    outputs = run_spmd(program.module, inputs, Mesh.parse(mesh), dtype=torch.float64)
    for (_, name), value, want in zip(results(entry(program.module)), outputs, wanted, strict=True):
        if want.ndim:
            assert not value[len(want) :].any(), name
            value = value[: len(want)]
        torch.testing.assert_close(value, want, rtol=1e-9, atol=1e-11, msg=name)
    return program


def splits(program: Program, name: str) -> bool:
    """Whether the first axis splits the rows of an argument."""
    func = entry(program.module)
    assert func.arg_attrs is not None
    index = [n for _, n, _ in arguments(func)].index(name)
    placed = func.arg_attrs.data[index].data["sbp"].data  # type: ignore[attr-defined]
    return next(iter(dict(placed.axes).values())) == Split(0)


@pytest.mark.parametrize("mesh", ["data=2", "data=3"])
def test_fsdp_stores_a_part_of_each_parameter_and_of_its_states(mesh: str) -> None:
    program = check(Words(), mesh, "fsdp")
    padded = names_of_padded(entry(program.module))
    parameters = {"words.weight", "up.weight", "up.bias", "down.weight", "down.bias"}
    assert padded.keys() >= parameters | {f"optimizer.exp_avg.{name}" for name in parameters}
    assert all(splits(program, name) for name in padded)


@pytest.mark.parametrize(("tied", "biased"), [(True, False), (False, False), (False, True)])
def test_a_vocabulary_is_split_over_an_axis_that_does_not_divide_it(
    tied: bool, biased: bool
) -> None:
    """As embedding and as output layer; the last of 4 ranks has one class less."""
    program = check(Words(36, 12, 1003, tied=tied, biased=biased), "tensor=4", "tp")
    padded, name = names_of_padded(entry(program.module)), f"{'words' if tied else 'head'}.weight"
    assert padded[name] == padded["words.weight"] == 1003
    assert splits(program, name)
    assert not any(
        tensor(value).shape[-1:] == (1003,)
        for op in program.module.walk()
        if op.name == "flow.contract"
        for value in op.results
    )


def test_a_vocabulary_that_is_pinned_to_an_axis_for_matrices_is_used_in_parts() -> None:
    program = check(Words(36, 12), "tensor=2", pins="words.weight = [tensor = S(0)]")
    assert splits(program, "words.weight")
    rows = [v.type for op in program.module.walk() if op.name == "flow.slice" for v in op.results]
    assert TensorType.of((25, 36), "f32") not in rows, "its own rows are not put together"


def test_what_a_layout_does_not_divide_is_said() -> None:
    program = training_program(program_of(Words(), X[:5, :3], Y[:5, :3]))
    shard = 'auto-shard{mesh="tensor=2" layout=tp cluster=demo-gpus}'
    with pytest.warns(WholeWorkWarning, match="as tensor=2 does not divide 5, 3, 35, 11"):
        run_passes(program.module, parse_passes(shard))


def test_pins_pad_unless_they_ask_for_equal_parts() -> None:

    def padded(pins: str, mesh: str) -> dict[str, int]:
        program = program_of(Words(), X, Y)
        run_passes(program.module, parse_passes(f'pad-parameters{{mesh="{mesh}" pins="{pins}"}}'))
        return names_of_padded(entry(program.module))

    assert padded("up.weight = [data = S(0)]", "data=2") == {"up.weight": 11}
    assert padded("up.weight = [data = S(1)]", "data=2") == {}
    assert padded("up.weight = [data = S(0)] equal", "data=2") == {}
    with pytest.raises(IrcError, match="not a multiple of 2"):
        run_passes(
            program_of(Words(), X, Y).module,
            parse_passes(
                'auto-shard{mesh="data=2" cluster=demo-gpus pins="up.weight = [data = S(0)] equal"}'
            ),
        )


def test_irc_check_sees_no_padding(tmp_path: Path) -> None:
    """Of a plan whose pins pad."""
    plan, pins = tmp_path / "plan", "weight = [data = S(0)]"
    linear, x = nn.Linear(7, 11).eval(), torch.randn(4, 7)
    irc.export_plan(linear, (x,), out=plan, pins=pins, mesh="data=2", cluster="demo-gpus")
    assert "every stage agrees" in str(check_plan(str(plan)))


@pytest.mark.slow
def test_irc_check_sees_no_padding_of_states(tmp_path: Path) -> None:
    """Of a step, whose parameters and states are padded."""
    plan, linear = tmp_path / "plan", nn.Linear(7, 11).train()
    batch, options = (torch.randn(4, 7), torch.arange(4)), {"mesh": "data=2", "layout": "fsdp"}
    trained = {"optimizer": "adamw", "loss": F.cross_entropy, "cluster": "demo-gpus"}
    irc.export_plan(linear, batch, out=plan, **options, **trained)
    assert "every stage agrees" in str(check_plan(str(plan)))
