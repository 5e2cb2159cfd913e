"""``python -m tests.numerics``: the largest error of each function in ulp, beside its bound."""

from __future__ import annotations

import sys

from irc.backends.cpu.features import AVX2, BASELINE
from tests.numerics.ulps import (
    ACCURACY,
    MANY,
    doubles,
    error_of_doubles,
    error_of_singles,
    evaluate,
    singles,
)


def main() -> int:
    """Print the table; 1 where an error is above its bound."""
    over: list[str] = []
    print(f"{'function':11} {'f32':>6} {'bound':>6} {'avx2':>6} {'no fma':>6} "
          f"{'f64':>6} {'bound':>6}  range")  # fmt: skip
    for name, stated in ACCURACY.items():
        x, y = singles(stated.low, stated.high, MANY), doubles(stated.low, stated.high)
        errors = [
            error_of_singles(name, x, evaluate([name], x, "f32", features)[name])
            for features in (None, AVX2, BASELINE)
        ]
        double = error_of_doubles(name, y, evaluate([name], y, "f64")[name])
        limits = (stated.f32, stated.f32, stated.without_fma * stated.f32)
        bad = any(e.ulps > limit for e, limit in zip(errors, limits, strict=True))
        if bad or double.ulps > stated.f64:
            over.append(name)
        print(
            f"{name:11} {errors[0].ulps:6.2f} {stated.f32:6.2f} {errors[1].ulps:6.2f} "
            f"{errors[2].ulps:6.2f} {double.ulps:6.2f} {stated.f64:6.2f}  "
            f"[{stated.low:g}, {stated.high:g}]{'  above its bound' if name in over else ''}"
            f"{f'  worst at {errors[0].at!r}, {double.at!r}' if name in over else ''}"
        )
    print(f"ulp: {len(ACCURACY)} functions, {len(over)} above their bounds {' '.join(over)}")
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())
