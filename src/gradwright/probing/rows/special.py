"""Special functions and distributions."""

from __future__ import annotations

from typing import Any

import torch
from mpmath import mp
from torch import Tensor, distributions

from gradwright.probing.row import Probe, looked_up
from gradwright.torch_compat.kernels import standard_gamma_grad

X = 2.3


def _gammainc(a: Any, x: Any) -> Any:
    return mp.gammainc(a, 0, x, regularized=True)


def _gamma_density(a: Any, x: Any) -> Any:
    return mp.exp((a - 1) * mp.log(x) - x - mp.loggamma(a))


def _sample_gradient(a: Any, z: Any) -> Any:
    """Return the derivative of a sample by its parameter at a fixed level of the distribution function."""
    return -mp.diff(lambda b: _gammainc(b, z), a) / _gamma_density(a, z)


def _student_t(df: Tensor) -> Any:
    return distributions.StudentT(df, 0.0, 1.0, validate_args=False).log_prob(torch.ones_like(df))


def _student_t_log_density(df: Any) -> Any:
    gammas = mp.loggamma((df + 1) / 2) - mp.loggamma(df / 2)
    return gammas - mp.log(mp.pi * df) / 2 - (df + 1) / 2 * mp.log1p(1 / df)


def _beta_log_density(a: Any) -> Any:
    return 2 * (a - 1) * mp.log(mp.mpf("0.5")) - 2 * mp.loggamma(a) + mp.loggamma(2 * a)


def _von_mises(k: Tensor) -> Any:
    return distributions.VonMises(torch.zeros_like(k), k, validate_args=False)


def _von_mises_log_density(k: Any) -> Any:
    return k * mp.cos(mp.mpf(0.01)) - mp.log(2 * mp.pi * mp.besseli(0, k))


def _von_mises_entropy(k: Any) -> Any:
    return mp.log(2 * mp.pi * mp.besseli(0, k)) - k * mp.besseli(1, k) / mp.besseli(0, k)


DETACHED = (
    ("109", "bessel_j0", lambda x: mp.besselj(0, x)),
    ("110", "bessel_j1", lambda x: mp.besselj(1, x)),
    ("112", "bessel_y1", lambda x: mp.bessely(1, x)),
    ("113", "modified_bessel_i0", lambda x: mp.besseli(0, x)),
    ("114", "modified_bessel_i1", lambda x: mp.besseli(1, x)),
    ("115", "modified_bessel_k0", lambda x: mp.besselk(0, x)),
    ("117", "scaled_modified_bessel_k0", lambda x: mp.exp(x) * mp.besselk(0, x)),
    ("119", "spherical_bessel_j0", lambda x: mp.sin(x) / x),
)

PROBES = (
    *(
        Probe(id=key, case=f"special.{name}({X})", at=(X,), call=looked_up(torch.special, name), scalar=scalar)
        for key, name, scalar in DETACHED
    ),
    Probe(
        id="122",
        case="special.legendre_polynomial_p(0.3, 3)",
        at=(0.3,),
        call=looked_up(torch.special, "legendre_polynomial_p", 3),
        scalar=lambda x: mp.legendre(3, x),
        right=lambda x: (15 * x * x - 3) / 2,
    ),
    Probe(
        id="123",
        case="special.hermite_polynomial_h(0.3, 3)",
        at=(0.3,),
        call=looked_up(torch.special, "hermite_polynomial_h", 3),
        scalar=lambda x: mp.hermite(3, x),
        right=lambda x: 24 * x * x - 12,
    ),
    *(
        Probe(id=key, case=f"special.gammainc({a}, {x})", at=(a, x), call=torch.special.gammainc, scalar=_gammainc)
        for key, a, x in (("125", 0.5, 1.0), ("126", 3.0, 2.0), ("127", 100.0, 110.0))
    ),
    Probe(
        id="128",
        case="special.gammainc(1, x) at 0, by x",
        at=(0.0,),
        call=lambda x: torch.special.gammainc(torch.ones_like(x), x),
        scalar=lambda x: -mp.expm1(-x),
        right=lambda x: mp.exp(-x),
    ),
    Probe(
        id="129",
        case="special.gammaincc(1, x) at 0, by x",
        at=(0.0,),
        call=lambda x: torch.special.gammaincc(torch.ones_like(x), x),
        scalar=lambda x: mp.exp(-x),
        right=lambda x: -mp.exp(-x),
    ),
    Probe(
        id="130",
        case="special.zeta(3, 1.5)",
        at=(3.0, 1.5),
        call=torch.special.zeta,
        scalar=mp.zeta,
        right=lambda s, q: [mp.zeta(s, q, 1), -s * mp.zeta(s + 1, q)],
    ),
    Probe(
        id="131",
        case="special.betainc(2, 3, 0.4)",
        of="value",
        at=(0.4,),
        call=lambda x: looked_up(torch.special, "betainc")(torch.full_like(x, 2.0), torch.full_like(x, 3.0), x),
        scalar=lambda x: mp.betainc(2, 3, 0, x, regularized=True),
    ),
    Probe(
        id="133",
        case="lgamma(a + 1) - lgamma(a) at 1e12",
        at=(1e12,),
        call=lambda a: (a + 1).lgamma() - a.lgamma(),
        scalar=mp.log,
        right=lambda a: 1 / a,
    ),
    Probe(
        id="134",
        case="StudentT(1e14).log_prob(1)",
        of="value",
        at=(1e14,),
        call=_student_t,
        scalar=_student_t_log_density,
    ),
    Probe(
        id="135",
        case="Beta(a, a).log_prob(1/2) at 1e10, by a",
        at=(1e10,),
        call=lambda a: distributions.Beta(a, a, validate_args=False).log_prob(torch.full_like(a, 0.5)),
        scalar=_beta_log_density,
    ),
    Probe(
        id="136",
        case="Gamma(a, 1).cdf(2) at 3, by a",
        at=(3.0,),
        call=lambda a: distributions.Gamma(a, 1.0, validate_args=False).cdf(torch.full_like(a, 2.0)),
        scalar=lambda a: _gammainc(a, 2),
    ),
    Probe(
        id="137",
        case="Beta(2, 3).cdf(0.4)",
        of="value",
        at=(0.4,),
        call=lambda x: distributions.Beta(2.0, 3.0, validate_args=False).cdf(x),
        scalar=lambda x: mp.betainc(2, 3, 0, x, regularized=True),
    ),
    Probe(
        id="138",
        case="StudentT(3).cdf(-1)",
        of="value",
        at=(-1.0,),
        call=lambda x: distributions.StudentT(3.0, validate_args=False).cdf(x),
        scalar=lambda x: mp.betainc(1.5, 0.5, 0, 3 / (3 + x * x), regularized=True) / 2,
    ),
    Probe(
        id="139",
        case="Poisson(rate).cdf(2) at 3",
        of="value",
        at=(3.0,),
        call=lambda rate: distributions.Poisson(rate, validate_args=False).cdf(torch.full_like(rate, 2.0)),
        scalar=lambda rate: mp.gammainc(3, rate, regularized=True),
    ),
    Probe(
        id="140",
        case="Binomial(5, p).cdf(2) at 0.3",
        of="value",
        at=(0.3,),
        call=lambda p: distributions.Binomial(5, p, validate_args=False).cdf(torch.full_like(p, 2.0)),
        scalar=lambda p: mp.fsum(mp.binomial(5, k) * p**k * (1 - p) ** (5 - k) for k in range(3)),
    ),
    Probe(
        id="142",
        case="VonMises(0, k).log_prob(0.01) at 1e4, by k",
        at=(1e4,),
        call=lambda k: _von_mises(k).log_prob(torch.full_like(k, 0.01)),
        scalar=_von_mises_log_density,
    ),
    Probe(
        id="143",
        case="VonMises(0, 2).entropy()",
        of="value",
        at=(2.0,),
        call=lambda k: _von_mises(k).entropy(),
        scalar=_von_mises_entropy,
    ),
    Probe(
        id="144",
        case="VonMises(mean, 2).rsample(), by the mean",
        at=(0.5,),
        call=lambda mean: distributions.VonMises(mean, torch.full_like(mean, 2.0), validate_args=False).rsample(),
        right=lambda mean: 1,
    ),
    *(
        Probe(
            id=key,
            case=f"derivative of a sample {z:g} of Gamma({a:g}, 1), by {a:g}",
            of="value",
            at=(a, z),
            call=standard_gamma_grad,
            right=_sample_gradient,
        )
        for key, a, z in (("145", 1.0, 1.0), ("146", 2.0, 5.0), ("147", 10.0, 9.0))
    ),
)
