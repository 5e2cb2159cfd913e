"""What shapes add to the work of kernels."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xdsl.ir import Block

from irc.cluster.load import find_cluster
from irc.cost.kernels import local_work, op_work, shape_work
from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import ContractOp, FlowOp
from irc.dialects.placement import Mesh
from irc.dialects.types import TensorType
from irc.dialects.whole_attention import AttentionOp
from irc.dialects.windows import ConvolutionOp
from irc.ops.shapes import Attention, Product, shape_of
from irc.ops.work import factors, flops, local_flops
from irc.sharding.signatures import signatures

A100 = find_cluster("8xA100").device
MESH = Mesh.parse("t=2")
SIZES = st.integers(1, 5000)


def op(cls: type[FlowOp], *shapes: tuple[int, ...], **attrs: object) -> FlowOp:
    block = Block(arg_types=[TensorType.of(shape, "f16") for shape in shapes])
    flow_op = FlowBuilder(block).op(cls, block.args, **attrs).owner
    assert isinstance(flow_op, FlowOp)
    return flow_op


@given(SIZES, SIZES, SIZES, st.integers(1, 40))
def test_no_product_is_faster_than_the_peak(m: int, n: int, k: int, batch: int) -> None:
    assert shape_work(A100, Product(batch, m, n, k)) >= 2 * batch * m * n * k


@given(SIZES, SIZES, SIZES)
def test_more_rows_never_take_less_time(m: int, n: int, k: int) -> None:
    more = shape_work(A100, Product(1, m + 1, n, k))
    assert more >= shape_work(A100, Product(1, m, n, k))


def test_one_tile_more_than_fits_is_a_wave_more() -> None:
    """108 multiprocessors have 108 tiles of 128 x 256, or of 256 x 128, in the time of one."""
    full, more = (shape_work(A100, Product(1, 128 * m, 256, 8192)) for m in (108, 109))
    assert 1.05 * full < more < 2 * full


def test_batch_and_rows_are_told_apart() -> None:
    """Rows of several sequences meet one weight; heads have matrices of their own."""
    weight = op(ContractOp, (8, 64, 512), (512, 256), spec="bmk,kn->bmn")
    heads = op(ContractOp, (8, 64, 512), (8, 512, 256), spec="bmk,bkn->bmn")
    assert op_work(A100, weight) == shape_work(A100, Product(1, 512, 256, 512))
    assert op_work(A100, heads) == shape_work(A100, Product(8, 64, 256, 512))


def test_places_of_a_convolution_are_rows() -> None:
    convolution = op(
        ConvolutionOp, (8, 64, 56, 56), (128, 64, 3, 3),
        strides=(1, 1), low=(1, 1), high=(1, 1), dilations=(1, 1), groups=1,
    )  # fmt: skip
    assert shape_of(convolution, *factors(convolution)) == Product(1, 8 * 56 * 56, 128, 64 * 9)
    # Groups of one channel each are no products of tiles.
    each = op(
        ConvolutionOp, (8, 64, 56, 56), (64, 1, 3, 3),
        strides=(1, 1), low=(1, 1), high=(1, 1), dilations=(1, 1), groups=64,
    )  # fmt: skip
    assert op_work(A100, each) == flops(each)


def test_rows_of_one_do_not_fill_plain_units_in_vain() -> None:
    """A matrix by a vector in float32 takes as long as the matrix is read."""
    work = shape_work(A100, Product(1, 8192, 1, 8192), "f32")
    assert work / A100.flops("f32") < 4 * 8192**2 / A100.bytes_per_s


def test_a_rank_has_the_work_of_what_it_holds() -> None:
    product = op(ContractOp, (4096, 4096), (4096, 4096), spec="mk,kn->mn")
    rows = next(s for s in signatures(product, MESH) if s.splits == ("m",))
    half = shape_work(A100, Product(1, 2048, 4096, 4096))
    assert local_work(A100, product, rows, MESH) == half
    # A host has no multiprocessors: its prices are those of plain arithmetic.
    host = find_cluster("this-host").device
    assert local_work(host, product, rows, MESH) == local_flops(product, rows, MESH)
    assert op_work(host, product) == flops(product)


def test_a_causal_mask_saves_half_where_units_are_known() -> None:
    shape = (4, 16, 8192, 128)
    causal, whole = (
        op(AttentionOp, shape, shape, shape, is_causal=causal, scale=1.0)
        for causal in (True, False)
    )
    assert op_work(A100, causal) / op_work(A100, whole) == pytest.approx(0.52, abs=0.01)
    unknown = replace(A100, units=0)
    assert op_work(unknown, causal) == op_work(unknown, whole) == flops(whole)


def test_later_rows_of_a_causal_mask_see_more() -> None:
    """Of ranks that share the rows, the last has the most to do."""
    rows = Attention(32, 1024, 8192, 512, causal=True, shifted=True)
    first = Attention(32, 1024, 8192, 512, causal=True)
    whole = Attention(32, 1024, 8192, 512)
    times = [shape_work(A100, each) for each in (first, rows, whole)]
    assert times == sorted(times)
    assert times[1] / times[2] == pytest.approx(15 / 16, abs=0.01)
