"""More special functions and distributions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from mpmath import mp
from torch import Tensor, distributions

from gradwright.probing.row import Probe, looked_up
from gradwright.torch_compat.kernels import dirichlet_grad

X = 2.3
U = 0.3


def _shifted(polynomial: Callable[[int, Any], Any]) -> Callable[[int, Any], Any]:
    return lambda n, x: polynomial(n, 2 * x - 1)


def _chebyshev_v(n: int, x: Any) -> Any:
    return mp.cos((n + mp.mpf(1) / 2) * mp.acos(x)) / mp.cos(mp.acos(x) / 2)


def _chebyshev_w(n: int, x: Any) -> Any:
    return mp.sin((n + mp.mpf(1) / 2) * mp.acos(x)) / mp.sin(mp.acos(x) / 2)


def _hermite_he(n: int, x: Any) -> Any:
    return mp.hermite(n, x / mp.sqrt(2)) / mp.sqrt(mp.mpf(2) ** n)


def _beta(a: Any, b: Any, x: Any) -> Any:
    return mp.betainc(a, b, 0, x, regularized=True)


def _beta_sample_gradient(x: Any, a: Any) -> Any:
    """Return the derivative of a sample of Beta(a, 9) by ``a`` at a fixed level of the distribution function."""
    density = x ** (a - 1) * (1 - x) ** 8 / mp.beta(a, 9)
    return -mp.diff(lambda moved: _beta(moved, 9, x), a) / density


def _gamma_entropy(a: Any) -> Any:
    return a + mp.loggamma(a) + (1 - a) * mp.digamma(a)


def _student_t_entropy(df: Any) -> Any:
    half = (df + 1) / 2
    return half * (mp.digamma(half) - mp.digamma(df / 2)) + mp.log(mp.sqrt(df) * mp.beta(df / 2, mp.mpf(1) / 2))


def _lbeta(a: Tensor) -> Tensor:
    return a.lgamma() + torch.ones_like(a).lgamma() - (a + 1).lgamma()


DETACHED = (
    ("F1", "bessel_y0", lambda x: mp.bessely(0, x)),
    ("F2", "modified_bessel_k1", lambda x: mp.besselk(1, x)),
    ("F3", "scaled_modified_bessel_k1", lambda x: mp.exp(x) * mp.besselk(1, x)),
    ("F4", "airy_ai", mp.airyai),
)
POLYNOMIALS = (
    ("F5", "chebyshev_polynomial_t", mp.chebyt),
    ("F6", "chebyshev_polynomial_u", mp.chebyu),
    ("F7", "chebyshev_polynomial_v", _chebyshev_v),
    ("F8", "chebyshev_polynomial_w", _chebyshev_w),
    ("F9", "shifted_chebyshev_polynomial_t", _shifted(mp.chebyt)),
    ("F10", "shifted_chebyshev_polynomial_u", _shifted(mp.chebyu)),
    ("F11", "shifted_chebyshev_polynomial_v", _shifted(_chebyshev_v)),
    ("F12", "shifted_chebyshev_polynomial_w", _shifted(_chebyshev_w)),
    ("F13", "hermite_polynomial_he", _hermite_he),
    ("F14", "laguerre_polynomial_l", lambda n, x: mp.laguerre(n, 0, x)),
)
VALUES = (
    ("F15", "bessel_j0", lambda x: mp.besselj(0, x)),
    ("F16", "bessel_j1", lambda x: mp.besselj(1, x)),
    ("F17", "bessel_y0", lambda x: mp.bessely(0, x)),
    ("F18", "bessel_y1", lambda x: mp.bessely(1, x)),
)

PROBES = (
    *(
        Probe(id=key, case=f"special.{name}({X})", at=(X,), call=looked_up(torch.special, name), scalar=scalar)
        for key, name, scalar in DETACHED
    ),
    *(
        Probe(
            id=key,
            case=f"special.{name}({U}, 3)",
            at=(U,),
            call=looked_up(torch.special, name, 3),
            scalar=lambda x, polynomial=polynomial: polynomial(3, x),
        )
        for key, name, polynomial in POLYNOMIALS
    ),
    *(
        Probe(
            id=key,
            case=f"special.{name}(5.1)",
            of="value",
            at=(5.1,),
            call=looked_up(torch.special, name),
            scalar=scalar,
        )
        for key, name, scalar in VALUES
    ),
    Probe(
        id="F19",
        case="special.polygamma(1, 1.2)",
        of="value",
        at=(1.2,),
        call=lambda x: torch.special.polygamma(1, x),
        scalar=lambda x: mp.psi(1, x),
    ),
    Probe(id="F20", case="digamma(1.2)", at=(1.2,), call=torch.digamma, right=lambda x: mp.psi(1, x)),
    Probe(
        id="F21",
        case="special.gammainc(100, 105)",
        of="value",
        at=(100.0, 105.0),
        call=torch.special.gammainc,
        scalar=lambda a, x: mp.gammainc(a, 0, x, regularized=True),
    ),
    Probe(
        id="F22",
        case="special.gammaincc(3, 2)",
        at=(3.0, 2.0),
        call=torch.special.gammaincc,
        scalar=lambda a, x: mp.gammainc(a, x, regularized=True),
    ),
    Probe(
        id="F23",
        case="special.i0e(1000)",
        dtype=torch.float32,
        at=(1000.0,),
        call=torch.special.i0e,
        scalar=lambda x: mp.exp(-x) * mp.besseli(0, x),
    ),
    Probe(
        id="F24",
        case="lgamma(a) + lgamma(1) - lgamma(a + 1) at 1e10",
        of="value",
        at=(1e10,),
        call=_lbeta,
        scalar=lambda a: -mp.log(a),
    ),
    Probe(
        id="F25",
        case="Gamma(1e12, 1).entropy()",
        of="value",
        at=(1e12,),
        call=lambda a: distributions.Gamma(a, 1.0, validate_args=False).entropy(),
        scalar=_gamma_entropy,
    ),
    Probe(
        id="F26",
        case="StudentT(1e14).entropy()",
        of="value",
        at=(1e14,),
        call=lambda df: distributions.StudentT(df, validate_args=False).entropy(),
        scalar=_student_t_entropy,
    ),
    Probe(
        id="F27",
        case="derivative of a sample 0.5 of Beta(10, 9), by 10",
        of="value",
        at=(0.5, 10.0),
        call=lambda x, a: (1 - x) * dirichlet_grad(x, a, a + 9),
        right=_beta_sample_gradient,
    ),
    Probe(
        id="F28",
        case="Gamma(3, 1).icdf(0.5)",
        of="value",
        at=(0.5,),
        call=lambda p: distributions.Gamma(3.0, 1.0, validate_args=False).icdf(p),
        right=lambda p: mp.findroot(lambda x: mp.gammainc(3, 0, x, regularized=True) - p, 2.7),
    ),
    Probe(
        id="F29",
        case="NegativeBinomial(3, 0.4).cdf(2)",
        of="value",
        at=(0.4,),
        call=lambda p: distributions.NegativeBinomial(3, p, validate_args=False).cdf(torch.full_like(p, 2.0)),
        scalar=lambda p: _beta(3, 3, 1 - p),
    ),
    Probe(
        id="F30",
        case="FisherSnedecor(3, 5).cdf(2)",
        of="value",
        at=(2.0,),
        call=lambda x: distributions.FisherSnedecor(3.0, 5.0, validate_args=False).cdf(x),
        scalar=lambda x: _beta(mp.mpf("1.5"), mp.mpf("2.5"), 3 * x / (3 * x + 5)),
    ),
)
