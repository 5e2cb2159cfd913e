"""A training step whose kernels run as Triton in its interpreter, attention's gradients too."""

import json
from pathlib import Path

import pytest
import torch

from tests.backends.triton.interpreting import run_interpreted

pytest.importorskip("triton")
ROOT = Path(__file__).parents[3]


def _step() -> None:
    """Print which templates a step of a small GPT uses, and its error against level flow."""
    import tempfile

    from irc.backends.triton import emit, load
    from irc.dialects.flow import ExternOp
    from irc.dialects.launches import LaunchOp
    from irc.dialects.task import KernelOp
    from irc.frontends.torch.capture import capture
    from irc.interpret.flow import run_function
    from irc.interpret.levels import difference, random_inputs
    from irc.interpret.spmd import run_spmd
    from irc.interpret.task import run_memory
    from irc.pipeline import Options, default_pipeline, run_passes
    from irc.sharding.mesh import mesh_of
    from irc.train import training_program
    from tests.fuzz.launched import output_buffers
    from tests.models.gpt import GPT, GPTConfig

    torch.manual_seed(0)
    tokens = torch.randint(0, 19, (2, 21))
    model = GPT(GPTConfig(layers=1, hidden=24, heads=3, block=21, vocab=19)).eval()
    program = training_program(
        capture(model, (tokens, tokens), {}).program, trainable=model, optimizer="sgd", loss=""
    )
    module = program.module
    inputs = random_inputs(module)
    wanted = run_function(module, inputs, dtype=torch.float64)
    run_passes(module, default_pipeline(Options(backend="triton", target="sm_90")))
    kernels = [op for op in module.body.block.ops if isinstance(op, KernelOp)]
    launches = {}
    with tempfile.TemporaryDirectory() as folder:
        for kernel in kernels:
            path = Path(folder) / f"{kernel.sym_name.data}.py"
            path.write_text(emit(kernel))
            launches[kernel.sym_name.data] = load(path)

        def launch(op, operands):
            if not isinstance(op, LaunchOp):
                return [run_memory(op, operands[0])]
            outputs = output_buffers(op)
            flat = [x.contiguous().reshape(-1) for x in operands]
            launches[op.kernel_name](*flat, *[out.view(-1) for out in outputs])
            return outputs

        results = run_spmd(module, inputs, mesh_of(module), launch=launch)
    errors = [difference(a, b) for a, b in zip(results, wanted, strict=True)]
    library = [op.target for op in module.walk() if isinstance(op, ExternOp)]
    templates = [kernel.template.data for kernel in kernels]
    print(json.dumps({"error": max(errors), "templates": templates, "library": library}))


@pytest.mark.slow
def test_a_training_step_streams_attention_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    printed = run_interpreted(
        ["-c", "from tests.backends.triton.test_training import _step; _step()"]
    )
    figures = json.loads(printed.splitlines()[-1])
    assert figures["error"] < 1e-4
    assert figures["templates"].count("attention") == 1
    assert figures["templates"].count("attention_backward") == 2
    assert not [name for name in figures["library"] if "attention" in name]
