"""Exports that run without irc: on one process by shapes, on several by numbers."""

import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from irc.cli import main
from irc.dialects.placement import B, Split
from irc.errors import IrcError
from irc.report.evidence import Evidence
from irc.report.export import export_plan
from irc.report.modules import module_uses
from irc.report.parallelize import collapsed
from irc.report.styles import styles_of
from irc.search.stated import read_stated

HERE = Path(__file__).parent


def imported(source: str, path: Path) -> ModuleType:
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("exported_plan", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def four_ranks() -> Iterator[None]:
    """Pretend to be rank 0 of four: collectives do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


def nets() -> ModuleType:
    return sys.modules["irc_report_nets"]


def local_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(p.to_local().shape if isinstance(p, DTensor) else p.shape)
        for name, p in model.named_parameters()
    }


@pytest.mark.usefixtures("four_ranks")
def test_the_source_shards_the_module(plans: dict[str, Path], tmp_path: Path) -> None:
    source = export_plan(plans["grid"], "parallelize-module")
    exported = imported(source, tmp_path / "plan.py")
    assert exported.MESH == {"data": 2, "tensor": 2}
    styles = exported.PLAN["tensor"]
    assert {name: type(style) for name, style in styles.items()} == {
        "blocks.*.up": ColwiseParallel,
        "blocks.*.down": RowwiseParallel,
    }
    assert exported.PLACEMENTS["blocks.*.up.weight"] == [Replicate(), Shard(0)]
    module, x = nets().net()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    held = local_shapes(exported.parallelize(module, mesh))
    assert held["blocks.2.up.weight"] == (48, 48)
    assert held["blocks.2.down.weight"] == (48, 48)
    assert held["blocks.2.down.bias"] == (48,)
    assert module(x).shape == (6, 5, 48)
    wrong = init_device_mesh("cpu", (1, 4), mesh_dim_names=("data", "tensor"))
    with pytest.raises(ValueError, match="the plan has 2 ranks on axis data, not 1"):
        exported.parallelize(nets().net()[0], wrong)


@pytest.mark.usefixtures("four_ranks")
def test_sequence_parallelism_is_exported(transformers: dict[str, Path], tmp_path: Path) -> None:
    source = export_plan(transformers["sequence"], "parallelize-module")
    exported = imported(source, tmp_path / "plan.py")
    styles = exported.PLAN["tensor"]
    assert isinstance(styles["layers.*.norm1"], SequenceParallel)
    assert isinstance(styles["norm"], SequenceParallel)
    assert '"layers.*.q": ColwiseParallel(input_layouts=Shard(1)),' in source
    assert '"layers.*.o": RowwiseParallel(output_layouts=Shard(1)),' in source
    tokens = '"tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),'
    assert tokens in source
    assert "must write -1" in source
    module, tokens = nets().transformer()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    assert exported.parallelize(module, mesh)(tokens).shape == (3, 12, 52)


def test_what_is_not_expressed_is_said(
    plans: dict[str, Path], transformers: dict[str, Path]
) -> None:
    # Here the plan splits the residual where no module ends, which torch cannot.
    pair = styles_of(Evidence.of(plans["pair"]), "tensor")
    assert pair.level == "pairs"
    assert "'blocks.0.up' would be given B" in "\n".join(pair.lost)
    assert pair.modules["blocks.0.up"].gives == Split(2)
    assert pair.modules["blocks.0.down"].gives == B
    source = export_plan(plans["grid"], "parallelize-module")
    assert "# - norm.weight, norm.bias: [Replicate(), Shard(0)] in the plan, and whole" in source
    assert "# - axis 'data' splits the batch" in source
    assert "PLAN: dict[str, dict] = {}" in export_plan(plans["free"], "parallelize-module")
    sequence = styles_of(Evidence.of(transformers["sequence"]), "tensor")
    assert (sequence.level, sequence.lost) == ("exact", ())


def test_modules_are_found_by_how_their_weights_are_read(transformers: dict[str, Path]) -> None:
    uses = module_uses(Evidence.of(transformers["whole"]))
    kinds = {name: {use.kind for use in of} for name, of in uses.items()}
    assert kinds.pop("tokens") == {"embedding"}
    assert set(map(frozenset, kinds.values())) == {frozenset({"linear"})}
    assert len(kinds) == 2 * 6 + 1


def test_a_star_is_written_where_it_says_the_same_of_all() -> None:
    lines = {"h.0.up": "C", "h.1.up": "C", "h.0.x": "C", "h.1.x": "R"}
    assert collapsed(lines) == {"h.*.up": "C", "h.0.x": "C", "h.1.x": "R"}
    assert "h.*.up" not in collapsed(lines, ["h.2.up"])


def test_torchtitan_reads_the_section(
    plans: dict[str, Path], transformers: dict[str, Path]
) -> None:
    section = tomllib.loads(export_plan(plans["grid"], "torchtitan"))["parallelism"]
    assert section == {
        "data_parallel_replicate_degree": 2,
        "data_parallel_shard_degree": 1,
        "context_parallel_degree": 1,
        "tensor_parallel_degree": 2,
        "pipeline_parallel_degree": 1,
        "disable_loss_parallel": True,
    }
    # Three sequences do not split in two, so the plan splits positions over the other axis.
    text = export_plan(transformers["sequence"], "torchtitan")
    assert tomllib.loads(text)["parallelism"]["context_parallel_degree"] == 2
    assert "adds sequence parallelism" not in text


def test_json_has_every_placement(plans: dict[str, Path]) -> None:
    exported = json.loads(export_plan(plans["grid"], "json"))
    assert exported["arguments"]["blocks.1.up.weight"]["placements"] == ["Replicate()", "Shard(0)"]
    assert exported["axes"]["data"]["role"] == "data"
    assert exported["modules"]["tensor"]["blocks.1.down"]["style"] == "RowwiseParallel"


def test_names_are_data(tmp_path: Path) -> None:
    """A module may have any name that is no dot; it must not become code."""
    from irc.exports import export_plan as compile_plan

    name = 'x"]\nhacked = 1#'

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module(name, nn.Linear(8, 16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.get_submodule(name)(x)

    pins = "*weight = [tensor = S(0)]"
    inputs = (torch.ones(3, 8),)
    compile_plan(
        Model(), inputs, out=tmp_path / "p", mesh="tensor=2", cluster="demo-gpus", pins=pins
    )
    source = export_plan(tmp_path / "p", "parallelize-module")
    exported = imported(source, tmp_path / "plan.py")
    assert list(exported.PLAN["tensor"]) == [name]
    assert not hasattr(exported, "hacked")


def test_a_plan_for_one_device_has_nothing_to_export(plans: dict[str, Path]) -> None:
    with pytest.raises(IrcError, match="for one device"):
        export_plan(plans["one"], "json")


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(
    ("plan", "net", "processes"),
    [
        ("grid", "net", 4),
        ("pair", "net", 2),
        ("whole", "transformer", 2),
        ("sequence", "transformer", 4),
    ],
)
def test_processes_compute_what_eager_does(
    plan: str,
    net: str,
    processes: int,
    plans: dict[str, Path],
    transformers: dict[str, Path],
    tmp_path: Path,
) -> None:
    path = tmp_path / "plan.py"
    path.write_text(export_plan({**plans, **transformers}[plan], "parallelize-module"))
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    words += [f"--nproc-per-node={processes}", str(HERE / "exported.py"), str(path)]
    done = subprocess.run(
        [*words, str(HERE / "nets.py"), net],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "gradients agree" in done.stdout


STAGES = """
import torch
from torch import nn
from irc.commands.demo_gpt import GPT, GPTConfig

def build():
    config = GPTConfig(layers=5, hidden=32, heads=2, block=16, vocab=64, tied=False)
    tokens = torch.randint(64, (8, 16))
    return GPT(config), (tokens, tokens)
"""


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of two stages, on two copies of two ranks each."""
    folder = tmp_path_factory.mktemp("staged")
    (folder / "net.py").write_text(STAGES)
    words = [
        "compile", f"{folder / 'net.py'}:build", "-o", f"{folder / 'plan'}", "--train", "adamw",
        "--mesh", "pipe=2,data=2,tensor=2", "--micro-batches", "2", "--recompute", "full",
        "--stages", "tokens, positions, layers.0-layers.2; layers.3-layers.4, norm, head",
    ]  # fmt: skip
    assert main(words) == 0
    return folder / "plan"


def test_a_plan_in_stages_is_settings_of_trainers_that_read_back(
    staged: Path, tmp_path: Path
) -> None:
    """Degrees, batch, schedule and recompute by irc's own reader, the cut by name."""
    for form, name in (("torchtitan", "job.toml"), ("megatron", "job.args")):
        path = tmp_path / name
        path.write_text(export_plan(staged, form))
        stated = read_stated(str(path)).on(8, 8)
        assert f"{stated.mesh}" == "pipe=2,data=2,tensor=2"
        assert (stated.micro_batches, stated.schedule, stated.recompute) == (2, "1f1b", "full")
    section = tomllib.loads((tmp_path / "job.toml").read_text())
    first, last = section["parallelism"]["module_fqns_per_model_part"]
    assert {*first} == {"tokens", "positions", "layers.0", "layers.1", "layers.2"}
    assert {*last} == {"layers.3", "layers.4", "norm", "head"}
    assert section["training"]["seq_len"] == 16
    arguments = (tmp_path / "job.args").read_text()
    assert "--pipeline-model-parallel-layout Et*3|ttL" in arguments
    assert "--num-layers 5" in arguments


def test_what_a_plan_in_stages_is_not_written_as(staged: Path, plans: dict[str, Path]) -> None:
    with pytest.raises(IrcError, match="a plan in stages is not written as json"):
        export_plan(staged, "json")
    with pytest.raises(IrcError, match="given arguments for a plan in stages"):
        export_plan(plans["grid"], "megatron")
    with pytest.raises(IrcError, match="did you mean 'megatron'"):
        export_plan(plans["grid"], "megatrom")
