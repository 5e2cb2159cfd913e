"""flex_attention, packed sequences and document masks: captured, planned, and run as torch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.attention.varlen import varlen_attn
from xdsl.dialects.builtin import ModuleOp

from irc.dialects.flow import FlowOp, tensor
from irc.dialects.placement import Broadcast, Mesh
from irc.dialects.text import context
from irc.frontends.torch.capture import capture
from irc.interpret.flow import run_function
from irc.interpret.spmd import run_spmd
from irc.passes.auto_shard import AutoShardPass
from irc.passes.canonicalize import CanonicalizePass
from irc.passes.lower_boxing import LowerBoxingPass
from irc.program import Program

torch.manual_seed(0)
Q, K, V = (torch.randn(2, 4, 16, 8) for _ in range(3))
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 11, [0] * 9 + [1] * 3 + [2] * 4])


class Flex(nn.Module):
    """The common score and mask functions."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        generator = torch.Generator().manual_seed(1)
        self.slopes = nn.Parameter(torch.rand(4, generator=generator))
        self.table = nn.Parameter(torch.randn(4, 40, generator=generator))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, doc: Tensor) -> Any:
        """Attend."""

        def alibi(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return score + self.slopes[h] * (j - i)

        def relative(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return score + self.table[h, i - j + 16]

        def capped(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return 2.0 * torch.tanh(score / 2.0)

        def causal(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return torch.where(i >= j, score, -float("inf"))

        def same_document(b: Any, h: Any, i: Any, j: Any) -> Any:
            return (doc[b, i] == doc[b, j]) & (i >= j)

        def near(b: Any, h: Any, i: Any, j: Any) -> Any:
            return (i - j).abs() < 3

        documents = create_block_mask(same_document, 2, None, 16, 16, device="cpu")
        window = create_block_mask(near, None, None, 16, 16, device="cpu")
        match self.kind:
            case "documents":
                return flex_attention(q, k, v, block_mask=documents)
            case "alibi":
                return flex_attention(q, k, v, score_mod=alibi, block_mask=documents)
            case "relative":
                return flex_attention(q, k, v, score_mod=relative)
            case "causal":
                return flex_attention(q, k, v, score_mod=causal, scale=0.2)
            case "grouped":
                few = k[:, :2], v[:, :2]
                return flex_attention(q, *few, block_mask=window, enable_gqa=True)
            case "capped":
                return flex_attention(q, k, v, score_mod=capped, block_mask=window)
            case "log-sums":
                return flex_attention(q, k, v, score_mod=causal, return_lse=True)
            case _:
                return flex_attention(q, k, v)


def ops(module: ModuleOp, name: str) -> list[FlowOp]:
    return [op for op in module.walk() if isinstance(op, FlowOp) and op.name == name]


def bound(program: Program, *inputs: Tensor) -> list[Tensor]:
    return program.bind(dict(zip(program.input_names, inputs, strict=True)))


WHOLE = ("documents", "alibi", "relative", "causal", "grouped", "plain")
APART = ("capped", "log-sums")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", [*WHOLE, *APART])
def test_flex_attention_is_captured_and_right(kind: str) -> None:
    model, inputs = Flex(kind), (Q, K, V, DOCUMENTS)
    with torch.no_grad():
        expected = model(*inputs)
    program = capture(model, inputs).program
    outputs = run_function(program.module, bound(program, *inputs))
    wanted = expected if isinstance(expected, tuple) else (expected,)
    for value, reference in zip(outputs, wanted, strict=True):
        torch.testing.assert_close(value, reference, rtol=1e-5, atol=1e-5)
    assert not ops(program.module, "flow.extern"), "nothing falls back"
    assert len(ops(program.module, "flow.attention")) == (kind in WHOLE)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_mask_is_as_large_as_what_it_reads() -> None:
    sizes = {}
    for kind in ("documents", "grouped", "causal"):
        program = capture(Flex(kind), (Q, K, V, DOCUMENTS)).program
        (attention,) = ops(program.module, "flow.attention")
        sizes[kind] = tensor(attention.inputs[3])
    assert sizes["documents"].static_shape() == (2, 1, 16, 16)
    assert sizes["grouped"].static_shape() == sizes["causal"].static_shape() == (1, 1, 16, 16)
    assert {kind.dtype for kind in sizes.values()} == {"i1"}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tracing_leaves_flex_attention_as_it_was() -> None:
    before = flex_attention.__code__, flex_attention.__kwdefaults__, create_block_mask.__code__
    capture(Flex("documents"), (Q, K, V, DOCUMENTS))
    after = flex_attention.__code__, flex_attention.__kwdefaults__, create_block_mask.__code__
    assert after == before


def planned(model: nn.Module, inputs: tuple[Tensor, ...], mesh: str) -> tuple[Program, FlowOp]:
    """Plan a model on slow devices, where sharding pays for small sizes too."""
    program = capture(model, inputs).program
    CanonicalizePass().apply(context(), program.module)
    AutoShardPass(mesh=mesh, cluster="demo-gpus").apply(context(), program.module)
    (attention,) = ops(program.module, "flow.attention")
    return program, attention


class Wide(nn.Module):
    """Attention of something else's, repeated so that its work decides the plan."""

    def __init__(self, inner: Callable[..., Tensor]) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> Tensor:
        """Attend."""
        return self.inner(q, k, v, *rest)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "mesh", [pytest.param("data=4", marks=pytest.mark.slow), "data=2,tensor=2"]
)
def test_flex_attention_is_split_and_right_on_virtual_ranks(mesh: str) -> None:
    """Trap T-27: an attention that no rule knows is replicated and destroys the plan."""

    def documents(q: Tensor, k: Tensor, v: Tensor, doc: Tensor) -> Tensor:
        def same(b: Any, h: Any, i: Any, j: Any) -> Any:
            return (doc[b, i] == doc[b, j]) & (i >= j)

        rows = q.shape[2]
        mask = create_block_mask(same, q.shape[0], None, rows, rows, device="cpu")
        return flex_attention(q, k, v, block_mask=mask)

    inputs = (
        *(torch.randn(2, 8, 512, 16) for _ in range(3)),
        torch.arange(1024).view(2, 512) // 90,
    )
    model = Wide(documents)
    with torch.no_grad():
        expected = model(*inputs)
    program, attention = planned(model, inputs, mesh)
    placement = tensor(attention.outputs[0]).placement
    assert placement is not None
    assert not any(isinstance(placed, Broadcast) for placed in placement), str(placement)
    LowerBoxingPass(cluster="demo-gpus").apply(context(), program.module)
    (output,) = run_spmd(program.module, bound(program, *inputs), Mesh.parse(mesh))
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)


class Packed(nn.Module):
    """``torch.nn.attention.varlen`` with a window."""

    def __init__(self, window: tuple[int, int]) -> None:
        super().__init__()
        self.window = window

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, starts_q: Tensor, starts_k: Tensor
    ) -> Tensor:
        """Attend inside each sequence."""
        grouped = q.shape[1] != k.shape[1]
        return varlen_attn(
            q, k, v, starts_q, starts_k, 9, 9, window_size=self.window, enable_gqa=grouped
        )


def sequence_by_sequence(
    q: Tensor, k: Tensor, v: Tensor, starts_q: Tensor, starts_k: Tensor, window: tuple[int, int]
) -> Tensor:
    y = torch.zeros_like(q)
    for n in range(len(starts_q) - 1):
        mine, theirs = slice(*starts_q[n : n + 2]), slice(*starts_k[n : n + 2])
        rows, columns = mine.stop - mine.start, theirs.stop - theirs.start
        ahead = torch.arange(columns) - torch.arange(rows)[:, None] - int(columns - rows)
        mask = torch.ones(int(rows), int(columns), dtype=torch.bool)
        for side, limit in zip((-ahead, ahead), window, strict=True):
            mask &= (side <= limit) | (limit < 0)
        parts = [x.transpose(0, 1) for x in (q[mine], k[theirs], v[theirs])]
        y[mine] = F.scaled_dot_product_attention(*parts, attn_mask=mask, enable_gqa=True).transpose(
            0, 1
        )
    return y


STARTS = torch.tensor([0, 5, 6, 14], dtype=torch.int32)
OTHERS = torch.tensor([0, 7, 9, 18], dtype=torch.int32)


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (2, 3)])
@pytest.mark.parametrize(("groups", "starts"), [(4, STARTS), (2, STARTS), (2, OTHERS)])
def test_packed_sequences_do_not_see_each_other(
    window: tuple[int, int], groups: int, starts: Tensor
) -> None:
    """No CPU kernel of torch does this: the reference takes the sequences one by one."""
    count = 18 if starts is OTHERS else 16
    q, k, v = torch.randn(16, 4, 8), *torch.randn(2, count, groups, 8)
    inputs = (q, k, v, STARTS, starts)
    program = capture(Packed(window), inputs).program
    (output,) = run_function(program.module, bound(program, *inputs))
    torch.testing.assert_close(output, sequence_by_sequence(*inputs, window), rtol=1e-5, atol=1e-5)
    assert not ops(program.module, "flow.extern")


def test_packed_sequences_are_split_and_right_on_virtual_ranks() -> None:
    q, k, v = torch.randn(3, 512, 8, 16)
    starts = torch.tensor([0, 100, 130, 500], dtype=torch.int32)
    inputs = (q, k, v, starts, starts)
    program, attention = planned(Packed((-1, 0)), inputs, "data=2,tensor=2")
    placement = tensor(attention.outputs[0]).placement
    assert placement is not None
    assert not any(isinstance(placed, Broadcast) for placed in placement), str(placement)
    LowerBoxingPass(cluster="demo-gpus").apply(context(), program.module)
    (output,) = run_spmd(program.module, bound(program, *inputs), Mesh.parse("data=2,tensor=2"))
    torch.testing.assert_close(output, sequence_by_sequence(*inputs, (-1, 0)), rtol=1e-4, atol=1e-5)
