"""Products with something added, against eager: what a factor of 0 leaves out."""

import pytest
import torch

import irc

NAN = float("nan")
A, B, V = torch.randn(3, 5), torch.randn(5, 4), torch.randn(5)


@pytest.mark.parametrize("through", ["irc.compile", "torch.compile"])
@pytest.mark.parametrize("beta", [0, 0.0, -0.0, 0.5])
@pytest.mark.parametrize(
    ("op", "bias", "factors"),
    [
        (torch.addmm, (4,), (A, B)),
        (torch.baddbmm, (1, 4), (A[None], B[None])),
        (torch.addbmm, (3, 4), (A[None], B[None])),
        (torch.addmv, (3,), (A, V)),
        (torch.addr, (5, 5), (V, V)),
    ],
)
def test_a_beta_of_zero_ignores_nan(op, bias, factors, beta, through):
    def run(x, *rest):
        return op(x, *rest, beta=beta, alpha=2)

    x = torch.full(bias, NAN if beta == 0 else 1.5)
    compiled = irc.compile(run) if through == "irc.compile" else torch.compile(run, backend="irc")
    with torch.no_grad():
        got, want = compiled(x, *factors), run(x, *factors)
    assert got.isfinite().all()
    torch.testing.assert_close(got, want)
