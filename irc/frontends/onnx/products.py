"""Converters of sums of products: MatMul, Gemm, Einsum, convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_letters

from xdsl.ir import SSAValue

from irc.dialects.flow import ContractOp, tensor
from irc.dialects.size import Dim, Size, decided, is_traced
from irc.dialects.windows import ConvolutionOp
from irc.frontends.onnx.elementwise import Converter, scalar
from irc.frontends.onnx.extern import extern
from irc.frontends.onnx.node import NeedsSize, Node, Unsupported, static
from irc.ops.infer import ShapeError, equal_sizes, is_multiple


def matmul(node: Node, a: SSAValue, b: SSAValue) -> SSAValue:
    """numpy.matmul: the last two dims multiply, those before broadcast.

    A size of 1 that broadcasts loses its dim, so that the contraction names each index once.
    """
    left, right = list(tensor(a).shape), list(tensor(b).shape)
    if not left or not right:
        raise Unsupported("a product of scalars")
    letters = iter(ascii_letters)
    m, k, n = (next(letters) for _ in range(3))
    tail_a, tail_b = (k if len(left) == 1 else m + k), (k if len(right) == 1 else k + n)
    batch_a, batch_b = left[: -len(tail_a)], right[: -len(tail_b)]
    ndim = max(len(batch_a), len(batch_b))
    spec = ["", "", ""]
    sizes: list[list[Dim]] = [[], []]
    for i in range(ndim):
        dim_a = batch_a[i - ndim] if i >= ndim - len(batch_a) else None
        dim_b = batch_b[i - ndim] if i >= ndim - len(batch_b) else None
        letter = next(letters)
        one = dim_a in (None, 1) and dim_b in (None, 1)
        for side, dim in enumerate((dim_a, dim_b)):
            # Where both are 1, the first that has the dim keeps it.
            if dim is not None and (dim != 1 or (one and letter not in spec[0])):
                spec[side] += letter
                sizes[side].append(dim)
        spec[2] += letter
    a = node.b.reshape(a, [*sizes[0], *left[len(left) - len(tail_a) :]])
    b = node.b.reshape(b, [*sizes[1], *right[len(right) - len(tail_b) :]])
    result = spec[2] + (m if len(left) > 1 else "") + (n if len(right) > 1 else "")
    return node.b.op(ContractOp, [a, b], spec=f"{spec[0]}{tail_a},{spec[1]}{tail_b}->{result}")


def convert_gemm(node: Node) -> SSAValue:
    """``alpha A' B' + beta C``; the transpositions are part of the contraction."""
    b = node.b
    left = "km" if node.attr("transA", 0) else "mk"
    right = "nk" if node.attr("transB", 0) else "kn"
    product = b.op(ContractOp, [node[0], node[1]], spec=f"{left},{right}->mn")
    if (alpha := node.attr("alpha", 1.0)) != 1.0:
        product = b.pointwise("mul", product, scalar(node, alpha, product))
    if not node.has(2) or (beta := node.attr("beta", 1.0)) == 0:
        return product
    bias = node[2]
    if beta != 1.0:
        bias = b.pointwise("mul", bias, scalar(node, beta, bias))
    return b.pointwise("add", product, bias)


def convert_matmul_integer(node: Node) -> SSAValue:
    """Products of 8-bit integers around their zero points, in i32."""
    b = node.b
    sides = [b.cast(node[0], "i32"), b.cast(node[1], "i32")]
    for side in (0, 1):
        if not node.has(side + 2):
            continue
        zero = b.cast(node[side + 2], "i32")
        # Per row of A: [M] stands for [M, 1].
        if side == 0 and tensor(zero).ndim == 1:
            zero = b.reshape(zero, [*tensor(zero).shape, 1])
        sides[side] = b.pointwise("sub", sides[side], zero)
    return matmul(node, *sides)


def convert_einsum(node: Node) -> SSAValue:
    """Any einsum in which each operand names a dim once; ``...`` broadcasts only equal sizes."""
    operands = node.values()
    text = str(node.attr("equation")).replace(" ", "")
    left, arrow, result = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise Unsupported(f"equation '{text}' does not fit {len(operands)} operands")
    free = [letter for letter in ascii_letters if letter not in text]
    ndims = [
        tensor(v).ndim - len(t.replace("...", "")) for t, v in zip(terms, operands, strict=True)
    ]
    longest = max((n for t, n in zip(terms, ndims, strict=True) if "..." in t), default=0)
    dots = "".join(free[:longest])
    terms = [
        t.replace("...", dots[len(dots) - n :] if n else "")
        for t, n in zip(terms, ndims, strict=True)
    ]
    if not arrow:
        names = "".join(terms)
        result = dots + "".join(sorted(c for c in set(names) - set(dots) if names.count(c) == 1))
    result = result.replace("...", dots)
    pairs = [
        squeeze_ones(node, t, v, terms, operands) for t, v in zip(terms, operands, strict=True)
    ]
    for i, (term, value) in enumerate(pairs):
        while repeated := next((c for c in term if term.count(c) > 1), None):
            term, value = diagonal(node, term, value, repeated)
        pairs[i] = (term, value)
    spec = ",".join(term for term, _ in pairs) + f"->{result}"
    return node.b.op(ContractOp, [value for _, value in pairs], spec=spec)


def squeeze_ones(
    node: Node, term: str, value: SSAValue, terms: Sequence[str], operands: Sequence[SSAValue]
) -> tuple[str, SSAValue]:
    """Drop the dims of size 1 that another operand stretches."""
    sizes: dict[str, Dim] = {}
    for other, operand in zip(terms, operands, strict=True):
        for letter, dim in zip(other, tensor(operand).shape, strict=True):
            if sizes.setdefault(letter, dim) == 1:
                sizes[letter] = dim
    kept = [
        (c, d) for c, d in zip(term, tensor(value).shape, strict=True) if d != 1 or sizes[c] == 1
    ]
    return "".join(c for c, _ in kept), node.b.reshape(value, [d for _, d in kept])


def diagonal(node: Node, term: str, value: SSAValue, letter: str) -> tuple[str, SSAValue]:
    """Replace two dims of one letter by their diagonal: mask with the identity, and sum one out."""
    first, second = (i for i, c in enumerate(term) if c == letter and term[:i].count(letter) < 2)
    from irc.frontends.onnx.shapes import iota

    shape = tensor(value).shape
    square = [d if i in (first, second) else 1 for i, d in enumerate(shape)]
    rows, columns = (iota(node, square, i) for i in (first, second))
    on = node.b.pointwise("eq", rows, columns)
    masked = node.b.pointwise("where", on, value, scalar(node, 0, value))
    summed = node.b.reduce("sum", masked, [second], keep_dims=False)
    return term[:second] + term[second + 1 :], summed


def window(node: Node, kernel: Sequence[int], spatial: Sequence[Dim]) -> dict[str, tuple[int, ...]]:
    """Return strides, dilations and padding of a window, with ``auto_pad`` resolved."""
    n = len(kernel)
    strides = tuple(node.attr("strides") or [1] * n)
    dilations = tuple(node.attr("dilations") or [1] * n)
    pads = tuple(node.attr("pads") or [0] * 2 * n)
    if not len(strides) == len(dilations) == n == len(spatial) or len(pads) != 2 * n:
        raise Unsupported(f"a window of {n} dims over {len(spatial)}")
    low, high = list(pads[:n]), list(pads[n:])
    mode = node.attr("auto_pad", "NOTSET")
    if mode == "VALID":
        low, high = [0] * n, [0] * n
    elif mode in ("SAME_UPPER", "SAME_LOWER"):
        for i in range(n):
            total = same_padding(spatial[i], kernel[i], strides[i], dilations[i])
            less, more = total // 2, total - total // 2
            low[i], high[i] = (less, more) if mode == "SAME_UPPER" else (more, less)
    return {"strides": strides, "low": tuple(low), "high": tuple(high), "dilations": dilations}


def same_padding(size: Dim, kernel: int, stride: int, dilation: int) -> int:
    """Return the padding with which a window of stride s gives ``ceil(size / s)`` results."""
    reach = dilation * (kernel - 1) + 1
    if stride == 1:
        return reach - 1
    if isinstance(size, Size) and is_traced():
        # Padding is part of the program: the remainder that it follows from is taken for granted.
        rest = next(r for r in range(stride) if decided("==", size % stride - r))
        return max(reach - (rest or stride), 0)
    (number,) = static([size])
    return max((-(-number // stride) - 1) * stride + reach - number, 0)


def convert_conv(node: Node) -> SSAValue:
    """Conv of any number of spatial dims."""
    kernel = static(node.shape(1)[2:])
    if node.attr("kernel_shape") not in (None, list(kernel)):
        raise Unsupported(f"kernel_shape {node.attr('kernel_shape')} of a weight {list(kernel)}")
    attrs = window(node, kernel, node.shape()[2:])
    for size, stride in zip(node.shape()[2:], attrs["strides"], strict=True):
        if isinstance(size, Size) and stride != 1 and not is_traced():
            raise NeedsSize(size.names())
    operands = [node[i] for i in range(3) if node.has(i)]
    return node.b.op(ConvolutionOp, operands, **attrs, groups=node.attr("group", 1))


def convert_conv_integer(node: Node) -> SSAValue:
    """ConvInteger: exact in f64 around the zero points, given back as i32."""
    b = node.b
    x, w = b.cast(node[0], "f64"), b.cast(node[1], "f64")
    if node.has(2):
        x = b.pointwise("sub", x, b.cast(node[2], "f64"))
    if node.has(3):
        zero = b.cast(node[3], "f64")
        if tensor(zero).ndim == 1:
            zero = b.reshape(zero, [*tensor(zero).shape, *[1] * (node.ndim(1) - 1)])
        w = b.pointwise("sub", w, zero)
    attrs = window(node, static(node.shape(1)[2:]), node.shape()[2:])
    static(node.shape()[2:])
    return b.cast(b.op(ConvolutionOp, [x, w], **attrs, groups=node.attr("group", 1)), "i32")


def convert_conv_transpose(node: Node) -> SSAValue:
    """ConvTranspose, by the library."""
    spatial, kernel = node.shape()[2:], static(node.shape(1)[2:])
    n, groups = len(kernel), node.attr("group", 1)
    channels, own = node.shape()[1], node.shape(1)[0]
    if not (equal_sizes(channels, own) and is_multiple(own, groups)):
        raise ShapeError(f"{channels} channels in {groups} groups by a kernel of {own}")
    results = static(node.shape(1)[1:2])[0] * groups
    if node.has(2) and not (node.ndim(2) == 1 and equal_sizes(node.shape(2)[0], results)):
        raise ShapeError(f"a bias of {[*map(str, node.shape(2))]} for {results} channels")
    attrs = window(node, kernel, [1] * n)
    strides, dilations = attrs["strides"], attrs["dilations"]
    extra = tuple(node.attr("output_padding") or [0] * n)
    low, high = list(attrs["low"]), list(attrs["high"])
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    wanted = node.attr("output_shape")
    mode = node.attr("auto_pad", "NOTSET")
    if wanted or mode.startswith("SAME"):
        # Of a result with as many elements as x has times the strides, names cancel out.
        totals = [extra[i] + reach[i] - strides[i] for i in range(n)]
        if wanted:
            sizes = [s * size for s, size in zip(strides, static(spatial), strict=True)]
            totals = [totals[i] + sizes[i] - wanted[i] for i in range(n)]
        for i, total in enumerate(totals):
            low[i] = -(-total // 2) if mode != "SAME_UPPER" else total // 2
            high[i] = total - low[i]
    shape = [
        (spatial[i] - 1) * strides[i] + extra[i] + reach[i] - low[i] - high[i] for i in range(n)
    ]
    return extern(
        node, [(node.shape()[0], results, *shape)],
        strides=strides, low=low, high=high, dilations=dilations, groups=groups, extra=extra,
    )[0]  # fmt: skip


CONVERTERS: Mapping[str, Converter] = {
    "Conv": convert_conv,
    "ConvInteger": convert_conv_integer,
    "ConvTranspose": convert_conv_transpose,
    "Einsum": convert_einsum,
    "Gemm": convert_gemm,
    "MatMul": lambda node: matmul(node, node[0], node[1]),
    "MatMulInteger": convert_matmul_integer,
}
