"""Each converter against onnxruntime: odd sizes, negative axes, several opsets."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontends.onnx.compare import check_text, op_counts

RNG = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


UNARY = [
    "Abs",
    "Ceil",
    "Cos",
    "Erf",
    "Exp",
    "Floor",
    "Identity",
    "LeakyRelu",
    "Neg",
    "Relu",
    "Round",
    "Selu",
    "Elu",
    "Sigmoid",
    "Sign",
    "Sin",
    "Softplus",
    "Softsign",
    "Tan",
    "Tanh",
    "HardSigmoid",
    "Atan",
    "Sinh",
    "Cosh",
    "Asinh",
    "ThresholdedRelu",
    "Shrink",
]


@pytest.mark.parametrize("kind", UNARY)
def test_unary(kind: str) -> None:
    check_text(f"y = {kind} (x)", "float[3,5] x", "y:2", feeds={"x": normal(3, 5) * 3})


def test_the_sign_of_nan_is_nan() -> None:
    x = np.array([np.nan, -np.inf, -0.0, 0, 2], np.float32)
    check_text("y = Sign (x)", "float[5] x", "y:1", feeds={"x": x})


@pytest.mark.parametrize("kind", ["Sqrt", "Log", "Reciprocal"])
def test_unary_of_positive(kind: str) -> None:
    check_text(f"y = {kind} (x)", "float[7] x", "y:1", feeds={"x": abs(normal(7)) + 0.1})


@pytest.mark.parametrize("kind", ["Acos", "Asin", "Atanh"])
def test_unary_of_small(kind: str) -> None:
    check_text(f"y = {kind} (x)", "float[7] x", "y:1", feeds={"x": np.tanh(normal(7))})


@pytest.mark.parametrize(
    ("opset", "body"),
    [
        (9, "y = Clip <min = -0.5, max = 0.75> (x)"),
        (17, "l = Constant <value_float = -0.5> ()\ny = Clip (x, l)"),
        (20, "y = Gelu (x)"),
        (20, 'y = Gelu <approximate = "tanh"> (x)'),
        (17, "y = HardSwish (x)"),
        (18, "y = Mish (x)"),
        (17, "y = Celu <alpha = 0.7> (x)"),
        (17, "y = Elu <alpha = 0.3> (x)"),
        (17, "y = LeakyRelu <alpha = 0.2> (x)"),
        (17, "y = Hardmax <axis = 0> (x)"),
        (17, "y = Softmax (x)"),
        (13, "y = Softmax <axis = -2> (x)"),
        (11, "y = Softmax <axis = 1> (x)"),
        (9, "y = LogSoftmax <axis = 0> (x)"),
        (17, "y = LogSoftmax <axis = 0> (x)"),
        (17, "y = LpNormalization <axis = 0, p = 1> (x)"),
        (17, "y = LpNormalization (x)"),
        (17, "y = Dropout (x)"),
        (17, "y = Sum (x, x, x)"),
        (17, "y = Mean (x, x)"),
        (17, "z = Neg (x)\ny = Max (x, z)"),
        (17, "z = IsNaN (x)\ny = Where (z, x, x)"),
        (17, "z = Cast <to = 7> (x)\ny = Cast <to = 1> (z)"),
        (17, "z = Cast <to = 9> (x)\ny = Cast <to = 1> (z)"),
        (17, "y = Trilu <upper = 0> (x)"),
        (17, "k = Constant <value_int = -1> ()\ny = Trilu (x, k)"),
        (17, "y = EyeLike <k = 1> (x)"),
    ],
)
def test_elementwise_forms(opset: int, body: str) -> None:
    check_text(body, "float[3,5] x", "y:2", opset=opset, feeds={"x": normal(3, 5) * 2})


@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "Div", "Pow", "PRelu"])
def test_binary_broadcasts(kind: str) -> None:
    feeds = {"a": abs(normal(3, 5)) + 0.5, "b": normal(1, 5)}
    check_text(f"y = {kind} (a, b)", "float[3,5] a, float[1,5] b", "y:2", feeds=feeds)


@pytest.mark.parametrize("kind", ["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"])
def test_comparison(kind: str) -> None:
    feeds = {"a": RNG.integers(0, 3, (5, 3)), "b": RNG.integers(0, 3, 3)}
    check_text(f"y = {kind} (a, b)", "int64[5,3] a, int64[3] b", "bool/y:2", feeds=feeds)


@pytest.mark.parametrize("kind", ["And", "Or", "Xor"])
def test_logic(kind: str) -> None:
    feeds = {"a": normal(7) > 0, "b": normal(7) > 0}
    body = f"z = {kind} (a, b)\ny = Not (z)"
    check_text(body, "bool[7] a, bool[7] b", "bool/y:1", feeds=feeds)


@pytest.mark.parametrize(
    "body", ["y = Div (a, b)", "y = Mod (a, b)", "y = Mod <fmod = 1> (a, b)", "y = Mul (a, b)"]
)
def test_integers_divide_as_onnx_says(body: str) -> None:
    feeds = {"a": np.array([7, -7, 5, -1]), "b": np.array([2, 2, -3, 4])}
    check_text(body, "int64[4] a, int64[4] b", "int64/y:1", feeds=feeds)


@pytest.mark.parametrize(
    ("a", "b", "y"),
    [
        ("3,5", "5,7", 2), ("5", "5,7", 1), ("3,5", "5", 1), ("5", "5", 0), ("2,3,5", "5,7", 3),
        ("2,1,3,5", "4,5,7", 4), ("1,3,5", "2,5,7", 3), ("3,5", "2,3,5,7", 4),
        ("1,3,5", "1,5,7", 3),
    ],
)  # fmt: skip
def test_matmul(a: str, b: str, y: int) -> None:
    check_text("y = MatMul (a, b)", f"float[{a}] a, float[{b}] b", f"y:{y}")


@pytest.mark.parametrize("flags", ["", "transA = 1", "transB = 1", "alpha = 0.5, beta = 2.0"])
@pytest.mark.parametrize("opset", [9, 17])
def test_gemm(flags: str, opset: int) -> None:
    a = "5,3" if "transA" in flags else "3,5"
    b = "7,5" if "transB" in flags else "5,7"
    body = f"y = Gemm <{flags}> (a, b, c)" if flags else "y = Gemm (a, b, c)"
    check_text(body, f"float[{a}] a, float[{b}] b, float[7] c", "y:2", opset=opset)


@pytest.mark.parametrize(
    ("equation", "a", "b", "y"),
    [
        ("ij,jk->ik", "3,5", "5,2", 2), ("bij,bkj->bki", "2,3,5", "2,4,5", 3),
        ("...ij,...jk->...ik", "2,3,5", "2,5,4", 3), ("ij,jk", "3,5", "5,2", 2),
        ("ii,ij->j", "3,3", "3,5", 1), ("ab,cd->abcd", "1,3", "2,1", 4),
    ],
)  # fmt: skip
def test_einsum(equation: str, a: str, b: str, y: int) -> None:
    body = f'y = Einsum <equation = "{equation}"> (a, b)'
    check_text(body, f"float[{a}] a, float[{b}] b", f"y:{y}")


@pytest.mark.parametrize(
    "flags",
    [
        "", "pads = [1,2,0,1]", "strides = [2,3]", "dilations = [2,1]", 'auto_pad = "SAME_UPPER"',
        'auto_pad = "SAME_LOWER", strides = [2,2]', 'auto_pad = "VALID"',
    ],
)  # fmt: skip
def test_conv(flags: str) -> None:
    body = f"y = Conv <{flags}> (x, w, b)" if flags else "y = Conv (x, w, b)"
    check_text(body, "float[2,3,9,11] x, float[5,3,3,2] w, float[5] b", "y:4", absolute=1e-5)


def test_conv_of_other_dims_and_groups() -> None:
    check_text("y = Conv <group = 3> (x, w)", "float[1,6,9] x, float[9,2,3] w", "y:3")
    check_text("y = Conv (x, w)", "float[1,2,4,5,6] x, float[3,2,2,2,2] w", "y:5", absolute=1e-5)


@pytest.mark.parametrize(
    "flags",
    [
        "", "strides = [2,3]", "pads = [1,0,2,1]", "output_padding = [1,0], strides = [2,2]",
        "dilations = [1,2]", 'auto_pad = "SAME_UPPER", strides = [2,2]',
        "output_shape = [9,13], strides = [2,2]",
    ],
)  # fmt: skip
def test_conv_transpose(flags: str) -> None:
    body = f"y = ConvTranspose <{flags}> (x, w, b)" if flags else "y = ConvTranspose (x, w, b)"
    inputs = "float[2,3,5,7] x, float[3,4,3,2] w, float[4] b"
    program = check_text(body, inputs, "y:4", absolute=1e-5)
    assert op_counts(program) == {"onnx::ConvTranspose": 1}


@pytest.mark.parametrize(
    "flags",
    [
        "", "strides = [2,2]", "pads = [1,1,1,0]", "strides = [2,2], ceil_mode = 1",
        'auto_pad = "SAME_UPPER", strides = [2,2]',
        "strides = [3,2], pads = [1,1,1,1], ceil_mode = 1",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
def test_pool(kind: str, flags: str) -> None:
    body = f"y = {kind} <kernel_shape = [3,2]{', ' + flags if flags else ''}> (x)"
    check_text(body, "float[2,3,9,10] x", "y:4", opset=19)


def test_pools_of_other_kinds() -> None:
    x = "float[2,3,7,8] x"
    check_text(
        "y = AveragePool <kernel_shape = [3,3], pads = [1,1,1,1], count_include_pad = 1> (x)",
        x,
        "y:4",
    )
    check_text("y = MaxPool <kernel_shape = [2,2], dilations = [2,3]> (x)", x, "y:4")
    check_text("y, i = MaxPool <kernel_shape = [2,3], strides = [2,2]> (x)", x, "y:4 int64/i:4")
    check_text("y = LpPool <kernel_shape = [2,2], p = 3> (x)", x, "y:4", opset=18)
    for kind in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
        check_text(f"y = {kind} (x)", x, "y:4")
    check_text("y = LRN <size = 3, alpha = 0.01, beta = 0.5, bias = 1.5> (x)", x, "y:4")
    # What lies further away than the last channel is no channel, and no work.
    for size in (9, 100_001):
        check_text(f"y = LRN <size = {size}, alpha = 9.0, beta = 0.5, bias = 1.5> (x)", x, "y:4")


@pytest.mark.parametrize("opset", [9, 15])
def test_batch_norm(opset: int) -> None:
    feeds = {
        "x": normal(2, 3, 4, 5),
        **{name: normal(3) for name in "smb"},
        "v": abs(normal(3)) + 0.2,
    }
    inputs = "float[2,3,4,5] x, float[3] s, float[3] b, float[3] m, float[3] v"
    body = "y = BatchNormalization <epsilon = 0.01> (x, s, b, m, v)"
    check_text(body, inputs, "y:4", opset=opset, feeds=feeds)


def test_batch_norm_folds_into_the_convolution_before_it() -> None:
    body = "z = Conv (x, w, c)\ny = BatchNormalization (z, s, b, m, v)"
    stored = (
        "float[2,1,2,2] w = {1,2,3,4,5,6,7,8}, float[2] c = {1,-1}, float[2] s = {1,2}, "
        "float[2] b = {0.5,1}, float[2] m = {3,4}, float[2] v = {0.5,2}"
    )
    program = check_text(body, "float[1,1,4,5] x", "y:4", stored=stored)
    assert op_counts(program) == {"flow.convolution": 1}
    assert len(program.tensors) == 2
    both = check_text(body + "\nk = Relu (z)", "float[1,1,4,5] x", "y:4 k:4", stored=stored)
    # The convolution has another reader, so its own result must stay.
    assert op_counts(both)["flow.pointwise"] == 3


@pytest.mark.parametrize(
    ("opset", "body", "inputs"),
    [
        (17, "y = LayerNormalization <axis = -1> (x, w, b)", "float[5] w, float[5] b"),
        (17, "y = LayerNormalization <axis = 1, epsilon = 0.1> (x, w)", "float[6,5] w"),
        (17, "y = InstanceNormalization (x, w, b)", "float[6] w, float[6] b"),
        (21, "y = GroupNormalization <num_groups = 2> (x, w, b)", "float[6] w, float[6] b"),
        (18, "y = MeanVarianceNormalization <axes = [0,2]> (x)", ""),
        (23, "y = RMSNormalization (x, w)", "float[5] w"),
    ],
)
def test_norms(opset: int, body: str, inputs: str) -> None:
    typed = ", ".join(filter(None, ["float[2,6,5] x", inputs]))
    check_text(body, typed, "y:3", opset=opset, absolute=1e-5)


REDUCTIONS = [
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
]


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_reductions(kind: str) -> None:
    x = "float[2,3,5] x"
    check_text(f"y = {kind} <axes = [-1,0]> (x)", x, "y:3", opset=11)
    check_text(f"y = {kind} <keepdims = 0> (x)", x, "y:0", opset=13)
    body = f"a = Constant <value_ints = [1]> ()\ny = {kind} <keepdims = 0> (x, a)"
    check_text(body, x, "y:2", opset=18)


def test_arg_reductions_and_sums() -> None:
    feeds = {"x": RNG.integers(0, 3, (4, 5)).astype(np.float32)}
    x = "float[4,5] x"
    check_text("y = ArgMax <axis = -1> (x)", x, "int64/y:2", feeds=feeds)
    check_text("y = ArgMin <axis = 0, keepdims = 0> (x)", x, "int64/y:1", feeds=feeds)
    body = "y = ArgMax <axis = 1, select_last_index = 1> (x)"
    check_text(body, x, "int64/y:2", opset=13, feeds=feeds)
    for flags in ("", "<exclusive = 1>", "<reverse = 1>", "<exclusive = 1, reverse = 1>"):
        check_text(f"a = Constant <value_int = -1> ()\ny = CumSum {flags} (x, a)", x, "y:2")


def test_top_k_and_one_hot() -> None:
    feeds = {"x": RNG.permutation(15).reshape(3, 5).astype(np.float32)}
    body = "k = Constant <value_ints = [2]> ()\ny, i = TopK <axis = 0, largest = 0> (x, k)"
    check_text(body, "float[3,5] x", "y:2 int64/i:2", feeds=feeds)
    check_text("y, i = TopK <k = 3> (x)", "float[3,5] x", "y:2 int64/i:2", opset=9, feeds=feeds)
    body = "d = Constant <value_int = 4> ()\ny = OneHot <axis = 0> (i, d, v)"
    feeds = {"i": np.array([1, -1, 7]), "v": np.array([0.5, 2], np.float32)}
    check_text(body, "int64[3] i, float[2] v", "y:2", feeds=feeds)


@pytest.mark.parametrize(
    ("body", "y"),
    [
        ("s = Constant <value_ints = [0,-1,3]> ()\ny = Reshape (x, s)", 3),
        ("y = Flatten <axis = 2> (x)", 2),
        ("y = Flatten <axis = -1> (x)", 2),
        ("y = Transpose (x)", 3),
        ("y = Transpose <perm = [1,2,0]> (x)", 3),
        ("a = Constant <value_ints = [-1,1]> ()\ny = Unsqueeze (x, a)", 5),
        ("s = Constant <value_ints = [2,1,1,6]> ()\ny = Expand (x, s)", 4),
        ("r = Constant <value_ints = [1,2,3]> ()\ny = Tile (x, r)", 3),
        ("y = Concat <axis = -2> (x, x, x)", 3),
        ("y, z = Split <axis = 1> (x)", 3),
        ("s = Constant <value_ints = [1,5]> ()\nz, y = Split <axis = -1> (x, s)", 3),
        ("i = Constant <value_int = -2> ()\ny = Gather <axis = 1> (x, i)", 2),
        ("i = Constant <value_ints = [3,-1,0]> ()\ny = Gather <axis = 1> (x, i)", 3),
        ("y = Slice <starts = [1], ends = [9], axes = [2]> (x)", 3),
    ],
)
def test_moving_elements(body: str, y: int) -> None:
    opset = 9 if "starts" in body else 13
    outputs = f"y:{y} z:3" if "y, z" in body or "z, y" in body else f"y:{y}"
    check_text(body, "float[3,4,6] x", outputs, opset=opset)


@pytest.mark.parametrize(
    ("start", "end", "step"), [(1, 9, 2), (-1, -99, -1), (-2, 0, -3), (5, 2, 1), (0, 2**62, 1)]
)
def test_slice(start: int, end: int, step: int) -> None:
    body = (
        f"s = Constant <value_ints = [{start}]> ()\ne = Constant <value_ints = [{end}]> ()\n"
        f"a = Constant <value_ints = [-1]> ()\nt = Constant <value_ints = [{step}]> ()\n"
        "y = Slice (x, s, e, a, t)"
    )
    check_text(body, "float[2,7] x", "y:2")


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pad(mode: str) -> None:
    body = f'p = Constant <value_ints = [1,2,0,3]> ()\ny = Pad <mode = "{mode}"> (x, p)'
    check_text(body, "float[4,5] x", "y:2", opset=19)
    if mode != "wrap":
        old = f'y = Pad <mode = "{mode}", pads = [0,1,2,0]> (x)'
        check_text(old, "float[4,5] x", "y:2", opset=9)


def test_pad_with_a_value_of_the_input() -> None:
    body = "p = Constant <value_ints = [1,0]> ()\ny = Pad (x, p, v)"
    feeds = {"x": normal(5), "v": np.array([-3], np.float32)}
    check_text(body, "float[5] x, float[1] v", "y:1", feeds=feeds)


def test_depth_and_space() -> None:
    for mode in ("DCR", "CRD"):
        body = f'y = DepthToSpace <blocksize = 2, mode = "{mode}"> (x)'
        check_text(body, "float[2,8,3,5] x", "y:4")
    check_text("y = SpaceToDepth <blocksize = 3> (x)", "float[2,2,3,6] x", "y:4")


def test_gathers() -> None:
    data, index = normal(3, 4, 5), RNG.integers(-4, 4, (3, 2, 5))
    inputs = "float[3,4,5] x, int64[3,2,5] i"
    feeds = {"x": data, "i": index}
    check_text("y = GatherElements <axis = 1> (x, i)", inputs, "y:3", feeds=feeds)
    feeds = {"x": data, "i": RNG.integers(-3, 3, (2, 6, 2))}
    check_text("y = GatherND (x, i)", "float[3,4,5] x, int64[2,6,2] i", "y:3", feeds=feeds)
    feeds = {"x": data, "i": RNG.integers(-4, 4, (3, 1))}
    body = "y = GatherND <batch_dims = 1> (x, i)"
    check_text(body, "float[3,4,5] x, int64[3,1] i", "y:2", feeds=feeds)
    feeds = {"x": data, "i": RNG.integers(-3, 3, (2, 2))}
    check_text("y = Gather (x, i)", "float[3,4,5] x, int64[2,2] i", "y:4", feeds=feeds)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatters(reduction: str) -> None:
    index = np.stack([RNG.permutation(4)[:2] - 4 * (i % 2) for i in range(5)], 1)
    feeds = {"x": normal(4, 5), "i": index, "u": normal(2, 5)}
    body = f'y = ScatterElements <axis = 0, reduction = "{reduction}"> (x, i, u)'
    check_text(body, "float[4,5] x, int64[2,5] i, float[2,5] u", "y:2", opset=18, feeds=feeds)
    feeds = {"x": normal(4, 5), "i": np.array([[-1], [0]]), "u": normal(2, 5)}
    body = f'y = ScatterND <reduction = "{reduction}"> (x, i, u)'
    check_text(body, "float[4,5] x, int64[2,1] i, float[2,5] u", "y:2", opset=18, feeds=feeds)


def test_reverse_sequence_and_compress() -> None:
    feeds = {"x": normal(5, 3), "n": np.array([1, 5, 3])}
    check_text("y = ReverseSequence (x, n)", "float[5,3] x, int64[3] n", "y:2", feeds=feeds)
    body = "y = Compress <axis = -1> (x, c)"
    check_text(body, "float[2,3] x", "y:2", stored="bool[3] c = {1,0,1}")


def test_range_and_shapes_fold() -> None:
    body = (
        "s = Shape (x)\nn = Size (x)\nz = Constant <value_int = 0> ()\n"
        "t = Constant <value_int = 2> ()\nr = Range (z, n, t)\nf = ConstantOfShape (s)\n"
        "y = Add (x, f)"
    )
    program = check_text(body, "float[3,5] x", "y:2 int64/r:1")
    assert set(op_counts(program)) == {"flow.constant", "flow.pointwise"}


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    "place", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"]
)
def test_resize(mode: str, place: str) -> None:
    attributes = f'mode = "{mode}", coordinate_transformation_mode = "{place}"'
    for stored in ("float[4] s = {1,1,2.0,1.5}", "float[4] s = {1,1,0.6,0.5}"):
        body = f"y = Resize <{attributes}> (x, , s)"
        check_text(body, "float[2,3,5,6] x", "y:4", opset=13, stored=stored, absolute=1e-5)
    body = f"y = Resize <{attributes}> (x, , , s)"
    check_text(
        body, "float[2,3,5,6] x", "y:4", opset=13, stored="int64[4] s = {2,3,7,4}", absolute=1e-5
    )


@pytest.mark.parametrize("scale", [0.6, 0.7, 1.7, 2.3])
@pytest.mark.parametrize("how", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("place", ["asymmetric", "half_pixel"])
def test_resize_to_the_nearest_by_fractions(scale: float, how: str, place: str) -> None:
    # 17 / 1.7 is 10 in float32, and below it in float64: one element beside the right one.
    body = (
        f'y = Resize <mode = "nearest", nearest_mode = "{how}", '
        f'coordinate_transformation_mode = "{place}"> (x, , s)'
    )
    feeds = {"x": np.arange(29, dtype=np.float32)}
    check_text(body, "float[29] x", "y:1", stored=f"float[1] s = {{{scale}}}", feeds=feeds)


def test_resize_antialiased_and_upsample() -> None:
    body = 'y = Resize <mode = "linear", antialias = 1> (x, , s)'
    stored = "float[4] s = {1,1,0.5,0.7}"
    check_text(body, "float[1,2,9,10] x", "y:4", opset=18, stored=stored, absolute=1e-5)
    body = "y = Upsample (x, s)"
    check_text(body, "float[1,2,3,4] x", "y:4", opset=9, stored="float[4] s = {1,1,2,3}")


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("kind", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent(kind: str, gates: int, direction: str) -> None:
    d, hidden = (2 if direction == "bidirectional" else 1), 5
    inputs = (
        f"float[6,3,4] x, float[{d},{gates * hidden},4] w, float[{d},{gates * hidden},{hidden}] r, "
        f"float[{d},{2 * gates * hidden}] b, int32[3] n, float[{d},3,{hidden}] h"
    )
    feeds = {
        "x": normal(6, 3, 4), "w": normal(d, gates * hidden, 4),
        "r": normal(d, gates * hidden, hidden), "b": normal(d, 2 * gates * hidden),
        "n": np.array([6, 2, 4], np.int32),
        "h": normal(d, 3, hidden),
    }  # fmt: skip
    last = ", c" if kind == "LSTM" else ""
    flags = f'hidden_size = {hidden}, direction = "{direction}"'
    if kind == "GRU" and direction != "reverse":
        flags += ", linear_before_reset = 1"
    body = f"y, z{last} = {kind} <{flags}> (x, w, r, b, n, h)"
    outputs = "y:4 z:3 c:3" if last else "y:4 z:3"
    check_text(body, inputs, outputs, opset=14, feeds=feeds, absolute=1e-5)


def test_quantization() -> None:
    feeds = {"x": normal(4, 6) * 10, "s": np.array([0.1, 0.3, 0.2, 1], np.float32)}
    body = "q = QuantizeLinear <axis = 0> (x, s, z)\ny = DequantizeLinear <axis = 0> (q, s, z)"
    inputs = "float[4,6] x, float[4] s"
    check_text(body, inputs, "y:2", stored="uint8[4] z = {0,128,7,255}", feeds=feeds)
    check_text("y, s, z = DynamicQuantizeLinear (x)", "float[4,6] x", "uint8/y:2 s:0 uint8/z:0")
    feeds = {
        "a": RNG.integers(0, 255, (3, 5)).astype(np.uint8),
        "b": RNG.integers(-99, 99, (5, 2)).astype(np.int8),
    }
    body = "y = MatMulInteger (a, b, z)"
    check_text(body, "uint8[3,5] a, int8[5,2] b", "int32/y:2", stored="uint8 z = {9}", feeds=feeds)


def test_one_scale_needs_no_axis() -> None:
    # Biases, as quantize_static of ONNX Runtime writes them: one dim, and the default axis 1.
    body = "y = DequantizeLinear (q, s, z)"
    stored = "int32[4] q = {1,-20,300,7}, float[1] s = {0.5}, int32 z = {0}"
    program = check_text(
        body, "float x", "y:1", stored=stored, feeds={"x": np.zeros((), np.float32)}
    )
    assert not any(name.startswith("onnx::") for name in op_counts(program))


def test_functions_without_converter_expand() -> None:
    feeds = {"x": normal(3, 5), "t": np.array([0, 4, 2])}
    body = 'y = SoftmaxCrossEntropyLoss <reduction = "mean"> (x, t)'
    check_text(body, "float[3,5] x, int64[3] t", "y:0", feeds=feeds)


def test_grid_sample_and_determinant() -> None:
    feeds = {"x": normal(2, 3, 5, 6), "g": np.tanh(normal(2, 4, 7, 2))}
    body = 'y = GridSample <mode = "bilinear", padding_mode = "border"> (x, g)'
    check_text(body, "float[2,3,5,6] x, float[2,4,7,2] g", "y:4", opset=16, feeds=feeds)
    check_text("y = Det (x)", "float[2,3,3] x", "y:1")


def test_half_types_compute_in_single() -> None:
    body = "h = Cast <to = 10> (x)\ns = Softmax (h)\ny = Cast <to = 1> (s)"
    check_text(body, "float[3,50] x", "y:2", relative=2e-3, absolute=1e-4)
