"""`differentiate`: gradients of whole models, blocks, what is frozen, what is refused."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from xdsl.dialects.builtin import ModuleOp, StringAttr

from irc.dialects.builder import entry, functions, results
from irc.dialects.flow import ExternOp, id_of, tensor
from irc.dialects.literals import RandomOp
from irc.dialects.placement import Mesh, Partial
from irc.dialects.text import dump, load
from irc.errors import IrcError
from irc.interpret.flow import run_function
from irc.interpret.spmd import run_spmd
from irc.passes.differentiate import DifferentiatePass
from irc.pipeline import run_passes
from irc.plugin import parse_passes
from irc.program import Program
from tests.models import hugging_face
from tests.training.models import (
    TARGETS,
    TOKENS,
    Classifier,
    Dropping,
    all_double,
    gradients,
    program_of,
    run,
    small_gpt,
    torch_gradients,
)


def differentiate(program: Program, **options: str) -> Program:
    """Apply the pass; what it makes verifies, prints, parses back, and has a line everywhere."""
    run_passes(program.module, [DifferentiatePass(**options)])
    program.module.verify()
    text = dump(program.module)
    assert dump(load(text)) == text
    assert 'loc = "unknown"' not in text
    ids = Counter(id_of(op) for func in functions(program.module).values() for op in func.walk())
    assert max(count for name, count in ids.items() if name) == 1
    return program


def assert_equal(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert set(mine) == set(theirs)
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value, rtol=1e-9, atol=1e-9, msg=name)


def contractions(module: ModuleOp, part: str, function: str = "") -> int:
    """How many backward contractions serve inputs or weights."""
    text = dump(module)
    if function:
        text = str(functions(module)[function])
    return sum("flow.contract" in line and f'grad = "{part}"' in line for line in text.splitlines())


@pytest.mark.parametrize("tied", [True, False])
def test_gpt(tied: bool) -> None:
    program = differentiate(program_of(small_gpt(tied=tied), TOKENS, TARGETS))
    outputs = run(program, TOKENS, TARGETS)
    loss, wanted = torch_gradients(small_gpt(tied=tied), lambda m: m(TOKENS, TARGETS))
    torch.testing.assert_close(outputs["output", program.output_names[0]], loss)
    assert_equal(gradients(outputs), wanted)


def test_llama_of_hugging_face() -> None:
    options = {"labels": TARGETS, "use_cache": False}
    program = program_of(hugging_face.llama(2), TOKENS, **options)
    differentiate(program, loss="loss")
    assert list(functions(program.module)) == ["block_0_forward", "block_0_backward", "forward"]
    with all_double():
        loss, wanted = torch_gradients(hugging_face.llama(2), lambda m: m(TOKENS, **options).loss)
    outputs = run(program, TOKENS, TARGETS)
    torch.testing.assert_close(outputs["output", "loss"], loss)
    assert len(wanted) == 21
    assert_equal(gradients(outputs), wanted)


def test_t5_with_a_learned_attention_bias() -> None:
    tokens, labels = TOKENS[:2], TARGETS[1:3, :4].contiguous()
    options = {"decoder_input_ids": labels, "labels": labels, "use_cache": False}
    # In float32 its constants would be rounded.
    program = program_of(hugging_face.t5().double(), tokens, **options)
    differentiate(program, loss="loss")
    with all_double():
        _, wanted = torch_gradients(hugging_face.t5(), lambda m: m(tokens, **options).loss)
    names = {"input_ids": tokens, "decoder_input_ids": labels, "labels": labels}
    outputs = run(program, *(names[name] for name in program.input_names))
    assert_equal(gradients(outputs), wanted)


def test_cnn_in_training_mode_keeps_its_statistics() -> None:
    image, label = torch.randn(3, 3, 23, 29, dtype=torch.float64), torch.tensor([1, 3, 6])
    module = Classifier()
    program = differentiate(program_of(module.double(), image, label))
    outputs = run(program, image, label)
    assert sum(role == "state" for role, _ in outputs) == 21
    _, wanted = torch_gradients(Classifier(), lambda m: m(image, label))
    assert_equal(gradients(outputs), wanted)


def test_depth_does_not_grow_the_program() -> None:
    short, long = (
        differentiate(program_of(small_gpt(layers), TOKENS, TARGETS)).module for layers in (2, 6)
    )
    for name in ("block_0_forward", "block_0_backward"):
        assert len(list(functions(short)[name].walk())) == len(list(functions(long)[name].walk()))
    more = len(list(entry(long).walk())) - len(list(entry(short).walk()))
    assert more == 4 * 2, "two calls for each further layer"


def test_saved_values_are_no_views_literals_or_weights() -> None:
    module = differentiate(program_of(small_gpt(), TOKENS, TARGETS)).module
    forward = functions(module)["block_0_forward"]
    end = forward.body.block.last_op
    assert end is not None
    kept = [value.owner for value in end.operands[1:]]
    assert not [op for op in kept if op.name in ("flow.reshape", "flow.transpose", "flow.constant")]
    # Among them the log-sums of attention, a number for each row and head.
    assert len(kept) <= 15


def test_phases_say_what_can_be_delayed() -> None:
    module = differentiate(program_of(small_gpt(), TOKENS, TARGETS)).module
    assert contractions(module, "weight", "block_0_backward") == 4
    # Four layers' inputs; the gradients of attention are one op.
    assert contractions(module, "input", "block_0_backward") == 4
    (kept,) = (op for op in module.walk() if "irc::attention_backward" in str(op.properties))
    assert kept.attributes["grad"] == StringAttr("input")
    for func in functions(module).values():
        for op in func.body.block.ops:
            assert op.name == "func.return" or "phase" in op.attributes


def test_gradients_stop_at_frozen_layers() -> None:
    program = program_of(small_gpt(tied=False), TOKENS, TARGETS)
    differentiate(program, trainable="head.*,norm.*,layers.1.mlp.*")
    named_gradients = gradients(run(program, TOKENS, TARGETS))
    assert set(named_gradients) == {"head.weight", "norm.weight", "norm.bias"} | {
        f"layers.1.mlp.{layer}.{kind}" for layer in ("up", "down") for kind in ("weight", "bias")
    }
    _, wanted = torch_gradients(small_gpt(tied=False), lambda m: m(TOKENS, TARGETS))
    assert_equal(named_gradients, {name: wanted[name] for name in named_gradients})
    # The first layer is called as it was; the second has no backward of its attention.
    assert "block_0" in functions(program.module)
    assert contractions(program.module, "weight", "block_0_backward") == 2
    assert contractions(program.module, "input", "block_0_backward") == 1


def test_frozen_weights_between_trained_ones_pass_gradients_on() -> None:
    program = program_of(small_gpt(tied=False), TOKENS, TARGETS)
    differentiate(program, frozen="layers.*")
    assert contractions(program.module, "weight", "block_0_backward") == 0
    assert contractions(program.module, "input", "block_0_backward") == 4
    named_gradients = gradients(run(program, TOKENS, TARGETS))
    _, wanted = torch_gradients(small_gpt(tied=False), lambda m: m(TOKENS, TARGETS))
    assert_equal(named_gradients, {n: g for n, g in wanted.items() if not n.startswith("layers.")})


def test_an_argument_says_that_it_is_frozen() -> None:
    text = dump(program_of(small_gpt(), TOKENS, TARGETS).module)
    marked = text.replace('name = "norm.weight"}', 'name = "norm.weight", trainable = false}')
    assert marked != text
    module = load(marked)
    run_passes(module, [DifferentiatePass()])
    names = [name for role, name in results(entry(module)) if role == "gradient"]
    assert "norm.bias" in names
    assert "norm.weight" not in names


def test_a_parameter_that_does_not_matter_has_no_gradient() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(5, 3), nn.Linear(5, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.used(x).sum(), self.idle(x)

    module = Idle()
    program = differentiate(program_of(module, torch.randn(2, 5)), outputs="all")
    assert [n for r, n in results(entry(program.module)) if r == "gradient"] == [
        "used.weight",
        "used.bias",
    ]
    assert len(program.output_names) == 2


def test_dropout_uses_one_draw_forward_and_backward() -> None:
    x = torch.randn(6, 7, dtype=torch.float64)
    program = differentiate(program_of(Dropping().double().train(), x))
    assert sum(isinstance(op, RandomOp) for op in program.module.walk()) == 1
    program.tensors["seed"] = torch.tensor(17)
    drawn: list[torch.Tensor] = []

    def keep(key: str, index: int, value: torch.Tensor, op: object) -> None:
        if isinstance(op, RandomOp):
            drawn.append(value)

    inputs = program.bind({program.input_names[0]: x})
    outputs = run_function(program.module, inputs, dtype=torch.float64, trace=keep)
    mask = drawn[0] >= 0.3
    assert 0 < mask.sum() < mask.numel()
    module = Dropping().double()
    loss = (module.down(torch.where(mask, module.up(x) / 0.7, 0)) ** 2).mean()
    loss.backward()
    named = dict(zip(results(entry(program.module)), outputs, strict=True))
    assert_equal(gradients(named), {n: p.grad for n, p in module.named_parameters()})


def test_the_row_of_padding_is_not_trained() -> None:
    module = nn.Sequential(nn.Embedding(7, 3, padding_idx=2), nn.Linear(3, 1)).double()
    module[0].weight.data[2] = 1.0  # type: ignore[operator,union-attr]
    tokens = torch.tensor([[2, 5, 2], [0, 2, 5]])
    program = differentiate(program_of(module, tokens), seeds="inputs")
    g = torch.randn(2, 3, 1).double()
    named_gradients = gradients(run(program, tokens, g))
    module(tokens).backward(g)
    assert_equal(named_gradients, {n: p.grad for n, p in module.named_parameters()})
    assert not named_gradients["0.weight"][2].any()


def test_gradients_of_inputs_from_gradients_of_results() -> None:
    """A stage of a pipeline: what comes back from the next stage goes on to the one before."""
    torch.manual_seed(5)
    module = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3)).double()
    x, g = torch.randn(4, 5).double().requires_grad_(), torch.randn(4, 3).double()
    program = program_of(module, x.detach())
    differentiate(program, seeds="inputs", inputs="*", outputs="all")
    assert program.input_names == ["input", "gradient.output"]
    named_gradients = gradients(run(program, x.detach(), g))
    module(x).backward(g)
    wanted = {n: p.grad for n, p in module.named_parameters()}
    assert_equal(named_gradients, {**wanted, "input": x.grad})


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({}, "loss-unknown", "0 results are one real number"),
        ({"loss": "logits"}, "loss-unknown", "'logits' is no result"),
        ({"seeds": "inputs", "frozen": "nrom.*"}, "option-value", "no parameter matches 'nrom"),
        ({"outputs": "some"}, "option-value", "outputs='some'"),
        ({"seeds": "ones"}, "option-value", "seeds='ones'"),
    ],
)
def test_errors(options: dict[str, str], code: str, text: str) -> None:
    with pytest.raises(IrcError, match=text) as caught:
        differentiate(program_of(small_gpt(), TOKENS), **options)
    assert caught.value.code == code


MESHES = ["data=4", "data=2,tensor=2"]


@pytest.mark.parametrize("mesh", MESHES)
def test_sharded(mesh: str) -> None:
    """The planner takes a backward graph as any other; gradients of a split batch are reduced."""
    program = differentiate(program_of(small_gpt(), TOKENS, TARGETS))
    inputs = program.bind(dict(zip(program.input_names, (TOKENS, TARGETS), strict=True)))
    wanted = run_function(program.module, inputs, dtype=torch.float64)
    cluster = f'auto-shard{{mesh="{mesh}" cluster=demo-gpus report=false}}'
    run_passes(program.module, parse_passes(f"canonicalize,{cluster},lower-boxing"))
    program.module.verify()
    outputs = run_spmd(program.module, inputs, Mesh.parse(mesh), dtype=torch.float64)
    for value, want in zip(outputs, wanted, strict=True):
        torch.testing.assert_close(value, want, rtol=1e-9, atol=1e-9)
    reduced = [
        op for op in program.module.walk() if op.name in ("comm.all_reduce", "comm.reduce_scatter")
    ]
    assert reduced


@pytest.mark.parametrize("mesh", MESHES)
def test_a_split_batch_leaves_partial_gradients(mesh: str) -> None:
    """With the batch pinned to be split, every weight's gradient is a sum over ranks."""
    program = differentiate(program_of(Classifier(), torch.randn(4, 3, 23, 29), torch.arange(4)))
    inputs = {"image": torch.randn(4, 3, 23, 29), "label": torch.arange(4)}
    bound = program.bind(inputs)
    wanted = run_function(program.module, bound, dtype=torch.float64)
    pins = "image = [data = S(0)]; label = [data = S(0)]"
    if "tensor" in mesh:
        pins = "image = [data = S(0), tensor = B]; label = [data = S(0), tensor = B]"
    shard = f'auto-shard{{mesh="{mesh}" cluster=demo-gpus report=false inputs=any pins="{pins}"}}'
    run_passes(program.module, parse_passes(f"canonicalize,{shard}"))
    kernels = [
        tensor(op.outputs[0]).placement
        for op in program.module.walk()
        if isinstance(op, ExternOp) and op.plain["target"] == "aten::convolution_backward"
    ]
    assert len(kernels) == 3, "the stem, and two of a residual block"
    assert all(placed is not None and isinstance(placed["data"], Partial) for placed in kernels)
    run_passes(program.module, parse_passes("lower-boxing"))
    outputs = run_spmd(program.module, bound, Mesh.parse(mesh), dtype=torch.float64)
    for value, want in zip(outputs, wanted, strict=True):
        torch.testing.assert_close(value, want, rtol=1e-9, atol=1e-9)
