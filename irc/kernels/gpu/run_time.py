"""Sizes that a GPU kernel takes when it runs, as integers that emitters can count with.

A :class:`RunTimeSize` stands where a kernel's form holds an integer, as torch's SymInt does. Its
arithmetic is that of polynomials (:mod:`irc.dialects.size`), and what an emitter writes of it is an
expression of the kernel's arguments ``N0``, ``N1``. Where an emitter decides by it, it decides as
for a large number of which nothing is known: a tail is masked, a long row is looped over. Equality
and divisibility hold only where they hold for all sizes. So the code is the general one.

That an emitter leaks no number it decided by is checked: :func:`for_any_sizes` emits a kernel for
two sets of large numbers, and takes it only if both give one text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self

from irc.dialects.size import Dim, Size, UnboundSizeError, divide, symbol, terms_of, value_of
from irc.dialects.task import KernelOp
from irc.dialects.task_sizes import unproven
from irc.errors import IrcError

STAND_INS = ((10007, 10009, 10037, 10039), (30011, 30013, 30029, 30047))
"""What sizes are taken for where something is decided: large primes, in two choices."""
MAX_SYMBOLS = 4
"""Sizes of one kernel."""


class RunTimeSizes:
    """The sizes of one kernel, and the quotients that its code makes of them.

    Args:
        symbols: of the kernel, in the order of its arguments ``N0``, ``N1``.
        choice: of the stand-ins.
        division: the operator of the language that rounds positive quotients down.

    Raises:
        UnboundSizeError: there are more than :data:`MAX_SYMBOLS`.
    """

    def __init__(self, symbols: Sequence[str], choice: int = 0, division: str = "//") -> None:
        if len(symbols) > MAX_SYMBOLS:
            raise UnboundSizeError(f"{len(symbols)} sizes in one kernel: it is made for numbers")
        self.symbols, self.division = tuple(symbols), division
        self.names = tuple(f"N{i}" for i in range(len(symbols)))
        self.numbers = dict(zip(symbols, STAND_INS[choice], strict=False))
        self.texts = dict(zip(symbols, self.names, strict=True))
        self.quotients: dict[tuple[Dim, Dim, bool], str] = {}

    def __call__(self, dim: Dim) -> int:
        """Return a size as an integer for emitters; plain integers as they are."""
        return dim if isinstance(dim, int) else RunTimeSize(self, dim)

    def quotient(self, dim: Dim, by: Dim, *, up: bool) -> int:
        """Return ``dim / by`` rounded down or up; both are positive."""
        exact = divide(dim, by)
        if exact is not None:
            return self(exact)
        name = self.quotients.get((dim, by, up))
        if name is None:
            name = self.quotients[dim, by, up] = f"Q{len(self.quotients)}"
            more = by + -1 if up else 0
            self.texts[name] = f"({self.text(dim + more)} {self.division} {self.text(by)})"
            top = value_of(dim + more, self.numbers)
            self.numbers[name] = top // value_of(by, self.numbers)
        return self(symbol(name))

    def text(self, dim: Dim) -> str:
        """Return a size as an expression that can stand in any other.

        >>> sizes = RunTimeSizes(("S",))
        >>> sizes.text(symbol("S")), sizes.text(symbol("S") * 4 - 1)
        ('N0', '(N0 * 4 - 1)')
        """
        if isinstance(dim, int):
            return str(dim)
        text = ""
        for monomial, coefficient in terms_of(dim):
            factors = [self.texts[name] for name, power in monomial for _ in range(power)]
            if abs(coefficient) != 1 or not factors:
                factors.append(str(abs(coefficient)))
            sign = "-" if coefficient < 0 else "+" if text else ""
            term = " * ".join(factors)
            text = f"{text} {sign} {term}" if text else f"{sign}{term}"
        return text if text.isidentifier() or _is_wrapped(text) else f"({text})"


def _is_wrapped(text: str) -> bool:
    """True where the first parenthesis closes at the end."""
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return letter == ")" and i == len(text) - 1
    return False


class RunTimeSize(int):
    """An integer that is known when the kernel runs; see the module.

    >>> S = RunTimeSizes(("S",))(symbol("S"))
    >>> f"{S * 4}", f"{-(-S // 64)}", S % 64 == 0, S * 64 % 64 == 0, S == 10007, S > 8192
    ('(N0 * 4)', '((N0 + 63) // 64)', False, True, False, True)
    """

    sizes: RunTimeSizes
    dim: Size

    def __new__(cls, sizes: RunTimeSizes, dim: Size) -> Self:
        """Make one that decides by the sizes' stand-ins."""
        size = super().__new__(cls, value_of(dim, sizes.numbers))
        size.sizes, size.dim = sizes, dim
        return size

    def __str__(self) -> str:
        return self.sizes.text(self.dim)

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return str(self)

    def __hash__(self) -> int:
        return hash(self.dim)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunTimeSize) and self.dim == other.dim

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __add__(self, other: int) -> int:
        return self.sizes(self.dim + dim_of(other))

    __radd__ = __add__

    def __mul__(self, other: int) -> int:
        return self.sizes(self.dim * dim_of(other))

    __rmul__ = __mul__

    def __neg__(self) -> int:
        return self.sizes(-self.dim)

    def __sub__(self, other: int) -> int:
        return self.sizes(self.dim - dim_of(other))

    def __rsub__(self, other: int) -> int:
        return self.sizes(dim_of(other) - self.dim)

    def __floordiv__(self, other: int) -> int:
        by = dim_of(other)
        if self.dim.terms[0][1] > 0:
            return self.sizes.quotient(self.dim, by, up=False)
        # floor(-n / d) = -ceil(n / d)
        return -self.sizes.quotient(-self.dim, by, up=True)

    def __mod__(self, other: int) -> int:
        if divide(self.dim, dim_of(other)) is not None:
            return 0
        rest = self - self // other * other
        # What is not known to divide is taken not to.
        return rest if int.__bool__(rest) else 1

    def __deepcopy__(self, memo: object) -> RunTimeSize:
        return self

    def _unbound(self, other: object) -> int:
        raise UnboundSizeError(f"'{self.dim}' is where a number is needed")

    __rfloordiv__ = __rmod__ = __and__ = __rand__ = _unbound
    __pow__ = __rpow__ = _unbound  # pyright: ignore[reportAssignmentType]
    __or__ = __ror__ = __lshift__ = __rshift__ = __rlshift__ = __rrshift__ = _unbound
    __truediv__ = __rtruediv__ = _unbound


def dim_of(number: int) -> Dim:
    """Return an integer as a size."""
    return number.dim if isinstance(number, RunTimeSize) else number


def has_sizes(numbers: Sequence[int]) -> bool:
    """True where some number is known only when the kernel runs."""
    return any(isinstance(number, RunTimeSize) for number in numbers)


def for_any_sizes(
    symbols: Sequence[str], division: str, emit: Callable[[RunTimeSizes], str]
) -> str:
    """Return the one text of a kernel for all its sizes.

    Raises:
        UnboundSizeError: there is none: the code depends on more of the sizes than their names.
    """
    first, second = (emit(RunTimeSizes(symbols, choice, division)) for choice in (0, 1))
    if first != second:
        raise UnboundSizeError(f"its code depends on the numbers of {', '.join(symbols)}")
    return first


def reason_against(
    kernel: KernelOp,
    most: Mapping[str, int],
    templates: Sequence[str],
    emit: Callable[[KernelOp], str],
) -> str | None:
    """Return why a kernel cannot take its sizes when it runs; None where it can.

    Args:
        kernel: with sizes.
        most: the greatest number of each symbol that has one.
        templates: that take sizes.
        emit: writes the kernel.
    """
    if kernel.template.data not in templates:
        return f"template '{kernel.template.data}' is made for numbers"
    try:
        reason = unproven(kernel, most)
        if reason is None:
            emit(kernel)
    except (UnboundSizeError, IrcError) as error:
        return str(error)
    return reason
