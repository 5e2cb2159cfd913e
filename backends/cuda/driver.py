"""The end of each file: a ``main``, under ``IRC_MAIN``, to run, check and time the kernel alone.

It fills the inputs, runs ``launch``, and compares with a plain kernel: one thread a task, every
value computed where it is needed, no tiles and no lanes. Memory is managed, so that host code can
read it.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

from irc.backends.cuda.functions import TYPES
from irc.backends.cuda.rows import Rows
from irc.kernels.arithmetic import FLOATS, contraction
from irc.kernels.form import Form, Step, integer_bound
from irc.kernels.source import Source

TOLERANCE = {"f64": 1e-11, "f32": 1e-4, "f16": 5e-3, "bf16": 4e-2}
"""Of an element, relative to one more than its size, for rows of up to 256 columns."""
TF32_TOLERANCE = 1e-2

MAIN = """
// Random numbers in [0, 1), the same each time.
static double irc_random() {
  static unsigned state = 1;
  state = state * 1664525u + 1013904223u;
  return (state >> 8) / 16777216.0;
}
template <typename T> static T irc_from(double x) { return (T)x; }
template <> __half irc_from<__half>(double x) { return __float2half_rn((float)x); }
template <> __nv_bfloat16 irc_from<__nv_bfloat16>(double x) {
  return __float2bfloat16_rn((float)x);
}
template <typename T> static double irc_to(T x) { return (double)x; }
template <> double irc_to<__half>(__half x) { return __half2float(x); }
template <> double irc_to<__nv_bfloat16>(__nv_bfloat16 x) { return __bfloat162float(x); }
// Integers are below a bound, floats between -1 and 1.
template <typename T> static T* irc_filled(long long count, int bound) {
  T* memory = nullptr;
  if (cudaMallocManaged((void**)&memory, count * sizeof(T) + 1)) return nullptr;
  for (long long i = 0; i < count; ++i) {
    memory[i] = irc_from<T>(bound ? (double)(int)(irc_random() * bound) : 2 * irc_random() - 1);
  }
  return memory;
}
template <typename T> static long long irc_wrong(
    const T* found, const T* wanted, long long count, double tolerance) {
  long long wrong = 0;
  for (long long i = 0; i < count; ++i) {
    const double one = irc_to(found[i]), other = irc_to(wanted[i]);
    const bool same = one == other || (one != one && other != other);
    if (same || std::fabs(one - other) <= tolerance * (1 + std::fabs(other))) continue;
    if (++wrong == 1) std::printf("element %lld is %g, not %g\\n", i, one, other);
  }
  return wrong;
}
"""


class Plain(Rows):
    """The launch of the plain kernel, and its code: what a kernel means, one thread a task."""

    def __init__(self, form: Form) -> None:
        super().__init__(without_contractions(form))

    def _tasks_adjacent(self) -> bool:
        return False

    def _shape(self) -> tuple[int, int]:
        return 1, 128

    def _kept(self) -> frozenset[int]:
        return frozenset()


def without_contractions(form: Form) -> Form:
    """Return a form with each contraction as a product and a sum over the columns."""
    steps: list[Step] = []
    fresh = 1 + max((s.result for s in form.steps), default=0)
    for step in form.steps:
        if step.kind != "contract":
            steps.append(step)
            continue
        kind = contraction(step)
        cast = [
            Step("pointwise", fresh + i, (value,), kind, True, step.level, (dtype,), "cast")
            for i, (value, dtype) in enumerate(zip(step.operands, step.operand_dtypes, strict=True))
        ]
        product = Step(
            "pointwise", fresh + 2, (fresh, fresh + 1), kind, True, step.level, (kind, kind), "mul"
        )
        total = Step("reduce", fresh + 3, (fresh + 2,), kind, False, step.level, (kind,), "sum")
        wanted = "f32" if step.dtype in ("f16", "bf16") else step.dtype
        result = Step(
            "pointwise", step.result, (fresh + 3,), wanted, False, step.level + 1, (kind,), "cast"
        )
        steps += [*cast, product, total, result]
        fresh += 4
    return replace(form, template="rows", protected=0, steps=tuple(steps))


def emit_main(source: Source, form: Form) -> None:
    """Append ``main`` for a kernel whose plain twin is ``plain``."""
    count = len(form.buffers)
    names = [form.buffer_name(i) for i in range(count)]
    source.line(MAIN.strip())
    with source.block("int main(int arguments, char** given) {", "}"):
        source.line("const int runs = arguments > 1 ? std::atoi(given[1]) : 100;")
        for i, buffer in enumerate(form.buffers):
            bound = 0 if buffer.dtype in FLOATS else integer_bound(form, i)
            kind = TYPES[buffer.dtype]
            source.line(f"{kind}* {names[i]} = irc_filled<{kind}>({buffer.size}, {bound});")
            if i >= form.num_inputs:
                source.line(f"{kind}* {names[i]}_plain = irc_filled<{kind}>({buffer.size}, 1);")
        source.line(f"void* buffers[] = {{{', '.join(names)}}};")
        plain = Plain(form)
        if plain.blocks:
            wanted = [n + "_plain" * (i >= form.num_inputs) for i, n in enumerate(names)]
            source.line(
                f"IRC_LAUNCH(plain, {plain.blocks}, {plain.threads}, 0, (cudaStream_t)0, "
                f"{', '.join(wanted)});"
            )
        _timed(source)
        source.line("long long wrong = 0;")
        for i, buffer in enumerate(form.buffers):
            if i >= form.num_inputs:
                source.line(
                    f"wrong += irc_wrong({names[i]}, {names[i]}_plain, {buffer.size}, "
                    f"{tolerance(form, buffer.dtype):g});"
                )
        source.line(
            r'std::printf("%s: %lld elements wrong, %.3f us\n", wrong ? "FAILED" : "ok", wrong, '
            "1e3 * milliseconds / (runs ? runs : 1));"
        )
        source.line("return wrong ? 1 : 0;")


def _timed(source: Source) -> None:
    source.line("int code = launch(buffers, (cudaStream_t)0);")
    source.line("cudaEvent_t before, after;")
    source.line("cudaEventCreate(&before), cudaEventCreate(&after);")
    source.line("cudaEventRecord(before, (cudaStream_t)0);")
    source.line("for (int i = 0; i < runs && !code; ++i) code = launch(buffers, (cudaStream_t)0);")
    source.line("cudaEventRecord(after, (cudaStream_t)0);")
    source.line("if (!code) code = (int)cudaDeviceSynchronize();")
    with source.block("if (code) {", "}"):
        source.line(r'std::printf("FAILED: CUDA error %d\n", code);')
        source.line("return 2;")
    source.line("float milliseconds = 0;")
    source.line("cudaEventElapsedTime(&milliseconds, before, after);")


def tolerance(form: Form, dtype: str) -> float:
    """Return how far an element of a dtype may be from the plain kernel's, relative to 1 + it."""
    least = TOLERANCE.get(dtype, 0.0)
    if dtype == "f32" and form.options.get("tf32"):
        least = TF32_TOLERANCE
    halves = {b.dtype for b in form.buffers} & {"f16", "bf16"}
    least = max([least, *(TOLERANCE[h] for h in halves)]) if dtype in FLOATS else 0.0
    return least * max(1.0, sqrt(form.num_columns / 256))
