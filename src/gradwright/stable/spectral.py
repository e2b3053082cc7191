"""Functions of symmetric and Hermitian matrices whose gradients are right at repeated and close eigenvalues.

Through ``torch.linalg.eigh`` a function of a matrix has the derivatives of its eigenvectors in between, which do not
exist where eigenvalues repeat: the gradient is nan there, or finite and wrong (pytorch#9983, #25481, #47599). The
derivatives of the function itself are smooth. They are made of divided differences (Daleckii and Krein 1965; Higham,
Functions of Matrices, 2008, chapter 3); see :mod:`~gradwright.stable.hermitian`.

For all of them:

- A matrix is taken as the mean of itself and its conjugate transpose, and its gradient is Hermitian. One that clearly
  is not Hermitian is refused, as is one with an infinite or nan entry, or with an eigenvalue where the function is not
  defined. Where values cannot be looked at (under ``vmap`` and ``torch.compile``) the result for such an eigenvalue is
  nan, and the symmetric part is taken of everything.
- Where the function is defined from zero on, an eigenvalue of up to 16 roundings of the largest one is zero (but not
  that of a row with nothing beside the diagonal, which is exact). Between two zeros the derivative of a root is
  infinite; it counts as zero, which gives ``A = B B^T`` of low rank the gradient that is right among matrices of its
  rank, and elsewhere that of least norm.
- There are two derivatives; a third is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example
from gradwright.authoring.exact import Point, exact, relative
from gradwright.errors import ArgumentError, kind_of
from gradwright.stable.given import Derived, Given
from gradwright.stable.hermitian import Spectrum, decomposed, function_of
from gradwright.stable.linear_algebra import complex_of, from_array, planted_hermitian
from gradwright.stable.matrices import check_matrix, hermitian
from gradwright.stable.spectra import Exp, InverseSqrt, Log, Power, Sqrt

BARS = relative(1e-12, 1e-5)
PAPER = "Daleckii and Krein 1965; Higham 2008, chapter 3; pytorch#9983, #25481, #47599"
ROOT, INVERSE_ROOT, LOGARITHM, EXPONENTIAL = Sqrt(), InverseSqrt(), Log(), Exp()


def _spectral(name: str, A: Tensor, f: Spectrum) -> Tensor:
    check_matrix(name, "A", A, square=True)
    hermitian(name, A)
    x, V = decomposed(name, A, f)
    return function_of(A, None, None, x, V, f)


# -------------------------------------------------------------------- what the proofs need


def _examples(*more: Any) -> Callable[[torch.dtype], Sequence[Example]]:
    """Return examples with these further arguments: distinct, repeated, close and equal eigenvalues, and complex."""

    def examples(dtype: torch.dtype) -> Sequence[Example]:
        return [
            Point((planted_hermitian([0.5, 2.0], 2, dtype), *more), note="distinct"),
            Point((planted_hermitian([2.0, 2.0, 0.5], 3, dtype), *more), note="repeated"),
            Point((planted_hermitian([1.7, 1.701, 1.701 + 1e-6], 3, dtype), *more), note="close"),
            Point((torch.tensor([1.5, 1.5, 3.0], dtype=dtype).diag(), *more), note="diagonal"),
            Point((2 * torch.eye(2, dtype=dtype), *more), note="all equal"),
            Point((planted_hermitian([1.5, 1.5 + 1e-9], 2, complex_of(dtype)), *more), note="complex"),
        ]

    return examples


def _reference(mp: Any, A: Any, f: Callable[[Any], Any]) -> Any:
    """Return a function of the symmetric part of a matrix by its eigenvectors, in the precision of mpmath."""
    whole = from_array(mp, A)
    x, V = (mp.eighe if any(isinstance(t, mp.mpc) for t in A.flat) else mp.eigsy)((whole + whole.H) / 2)
    return (V * mp.diag([f(t) for t in x]) * V.H).tolist()


def _through_eigh(f: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """Return what is written today."""

    def replaced(A: Tensor, *_: Any) -> Tensor:
        x, V = torch.linalg.eigh(A)
        out: Tensor = (V * f(x).unsqueeze(-2)) @ V.mH
        return out

    return replaced


def _ordinary(*more: Any) -> Callable[[], tuple[Any, ...]]:
    def arguments() -> tuple[Any, ...]:
        B = torch.randn(64, 64, 64)
        return (B @ B.mT / 64 + torch.eye(64), *more)

    return arguments


# -------------------------------------------------------------------- the functions


@exact(
    forward="out @ out = A, V sqrt(x) V^H",
    gradient={"A": "V (F * V^H g V) V^H, F[i, j] = 1 / (sqrt(x_i) + sqrt(x_j)), 0 where both are 0"},
    reference=lambda mp, A: _reference(mp, A, mp.sqrt),
    domain="positive semidefinite; else an error, nan where values are not known",
    bars=BARS,
    examples=_examples(),
    elementwise=False,
    measure="tensor",
    replaces=_through_eigh(torch.sqrt),
    ordinary=_ordinary(),
    paper=PAPER,
)
def sqrtm(A: Tensor) -> Tensor:
    """Return the square root of symmetric or Hermitian positive semidefinite matrices.

    Arguments:
        A: symmetric, or Hermitian if complex, of shape ``(..., n, n)``.

    Returns:
        the root that is positive semidefinite, like ``A``.

    Raises:
        ArgumentError: ``A`` is no floating-point or complex tensor of square matrices.
        DomainError: it is not finite, clearly not Hermitian, or has a negative eigenvalue.

    Example:
        >>> import torch, gradwright as gw
        >>> A = 4 * torch.eye(2, requires_grad=True)
        >>> torch.autograd.grad(gw.stable.sqrtm(A)[0, 1], A)  # nan through torch.linalg.eigh
        (tensor([[0.0000, 0.1250],
                [0.1250, 0.0000]]),)
    """
    return _spectral("sqrtm", A, ROOT)


@exact(
    forward="out @ A @ out = 1, V x^(-1/2) V^H",
    gradient={"A": "V (F * V^H g V) V^H, F[i, j] = -1 / (s t (s + t)), s = sqrt(x_i), t = sqrt(x_j)"},
    reference=lambda mp, A: _reference(mp, A, lambda x: 1 / mp.sqrt(x)),
    domain="positive definite; else an error, nan where values are not known",
    bars=BARS,
    examples=_examples(),
    elementwise=False,
    measure="tensor",
    replaces=_through_eigh(torch.rsqrt),
    ordinary=_ordinary(),
    paper=PAPER,
)
def invsqrtm(A: Tensor) -> Tensor:
    """Return the inverse of the square root of symmetric or Hermitian positive definite matrices.

    Arguments:
        A: symmetric, or Hermitian if complex, of shape ``(..., n, n)``.

    Returns:
        like ``A``; ``invsqrtm(A) @ B`` whitens what has the covariance ``A``.

    Raises:
        ArgumentError: ``A`` is no floating-point or complex tensor of square matrices.
        DomainError: it is not finite, clearly not Hermitian, or has an eigenvalue that is not positive.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.invsqrtm(torch.tensor([[4.0, 0.0], [0.0, 0.25]]))
        tensor([[0.5000, 0.0000],
                [0.0000, 2.0000]])
    """
    return _spectral("invsqrtm", A, INVERSE_ROOT)


@exact(
    forward="V log(x) V^H",
    gradient={"A": "V (F * V^H g V) V^H, F[i, j] = log1p(d / m) / d, d = |x_i - x_j|, m the smaller one"},
    reference=lambda mp, A: _reference(mp, A, mp.log),
    domain="positive definite; else an error, nan where values are not known",
    bars=BARS,
    examples=_examples(),
    elementwise=False,
    measure="tensor",
    replaces=_through_eigh(torch.log),
    ordinary=_ordinary(),
    paper=PAPER,
)
def logm(A: Tensor) -> Tensor:
    """Return the logarithm of symmetric or Hermitian positive definite matrices.

    Arguments:
        A: symmetric, or Hermitian if complex, of shape ``(..., n, n)``.

    Returns:
        the logarithm that is Hermitian, like ``A``.

    Raises:
        ArgumentError: ``A`` is no floating-point or complex tensor of square matrices.
        DomainError: it is not finite, clearly not Hermitian, or has an eigenvalue that is not positive.

    Example:
        >>> import torch, gradwright as gw
        >>> A = torch.eye(2, requires_grad=True)
        >>> torch.autograd.grad(gw.stable.logm(A).sum(), A)
        (tensor([[1., 1.],
                [1., 1.]]),)
    """
    return _spectral("logm", A, LOGARITHM)


@exact(
    forward="V exp(x) V^H",
    gradient={"A": "V (F * V^H g V) V^H, F[i, j] = exp(m) (1 - exp(-d)) / d, d = |x_i - x_j|, m the larger one"},
    reference=lambda mp, A: _reference(mp, A, mp.exp),
    domain="every symmetric matrix",
    bars=BARS,
    examples=_examples(),
    elementwise=False,
    measure="tensor",
    replaces=_through_eigh(torch.exp),
    ordinary=_ordinary(),
    paper=PAPER,
)
def expm(A: Tensor) -> Tensor:
    """Return the exponential of symmetric or Hermitian matrices; others are for ``torch.linalg.matrix_exp``.

    Arguments:
        A: symmetric, or Hermitian if complex, of shape ``(..., n, n)``.

    Returns:
        a positive definite matrix like ``A``.

    Raises:
        ArgumentError: ``A`` is no floating-point or complex tensor of square matrices.
        DomainError: it is not finite, clearly not Hermitian.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.expm(torch.zeros(2, 2))
        tensor([[1., 0.],
                [0., 1.]])
    """
    return _spectral("expm", A, EXPONENTIAL)


@exact(
    forward="V x^exponent V^H",
    gradient={"A": "V (F * V^H g V) V^H, F[i, j] = (x_i^p - x_j^p) / (x_i - x_j), 0 where infinite"},
    reference=lambda mp, A, p: _reference(mp, A, lambda x: x ** mp.mpf(p)),
    domain="positive semidefinite, definite where the exponent is negative, any where it is an integer from 0 on",
    bars=BARS,
    examples=_examples(0.3),
    elementwise=False,
    measure="tensor",
    replaces=_through_eigh(lambda x: x**0.3),
    ordinary=_ordinary(0.3),
    slower="a power and a logarithm of each pair of eigenvalues",
    paper=PAPER,
)
def powm(A: Tensor, exponent: float) -> Tensor:
    """Return a power of symmetric or Hermitian matrices.

    Arguments:
        A: symmetric, or Hermitian if complex, of shape ``(..., n, n)``.
        exponent: a number. With one that is not an integer, ``A`` must be positive semidefinite; with a negative one,
            positive definite.

    Returns:
        like ``A``; the identity where the exponent is 0.

    Raises:
        ArgumentError: ``A`` is no floating-point or complex tensor of square matrices, or ``exponent`` no number.
        DomainError: it is not finite, clearly not Hermitian, or has an eigenvalue that has no such power.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.powm(torch.tensor([[0.0, 2.0], [2.0, 0.0]]), 2).round(decimals=3)
        tensor([[4., 0.],
                [0., 4.]])
    """
    if isinstance(exponent, bool) or not isinstance(exponent, (int, float)):
        raise ArgumentError(
            f"powm: exponent is a {type(exponent).__name__}; expected a number; for one with a gradient write "
            "expm(exponent * logm(A))."
        )
    return _spectral("powm", A, Power(exponent))


def _damped(x: Any) -> Any:
    """Return ``x / (1 + x^2)``: an example that numbers of mpmath and tensors take."""
    return x / (1 + x * x)


def _damped_difference(x: Tensor, y: Tensor) -> Tensor:
    return (1 - x * y) / ((1 + x * x) * (1 + y * y))


def _given_examples(dtype: torch.dtype) -> Sequence[Example]:
    with_formula = [Point((*e.args, _damped_difference), note=e.note) for e in _examples(_damped)(dtype)]
    return [*with_formula, *_examples(_damped)(dtype)[:4]]


@exact(
    forward="V f(x) V^H",
    gradient={"A": "V (F * V^H g V) V^H, F[i, j] = divided_difference(x_i, x_j)"},
    reference=lambda mp, A, f, divided_difference=None, derivative=None: _reference(mp, A, f),
    domain="symmetric matrices with eigenvalues where f is defined",
    bars=BARS,
    examples=_given_examples,
    elementwise=False,
    measure="tensor",
    replaces=_through_eigh(_damped),
    ordinary=_ordinary(_damped, _damped_difference),
    paper=PAPER,
)
def matrix_function(
    A: Tensor,
    f: Callable[[Tensor], Tensor],
    divided_difference: Callable[[Tensor, Tensor], Tensor] | None = None,
    *,
    derivative: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return a function of symmetric or Hermitian matrices that is given by what it does to numbers.

    Without a formula for ``(f(x) - f(y)) / (x - y)`` each pair of eigenvalues takes the better of that quotient, off by
    ``eps (|f(x)| + |f(y)|) / |x - y|``, and of the mean of ``f'`` between them at 12 nodes, off by no more than what it
    differs by from that at 8 nodes. The error is the smaller one: a few roundings unless ``f`` varies on a scale so
    small that both fail at some gap.

    Arguments:
        A: symmetric, or Hermitian if complex, of shape ``(..., n, n)``.
        f: a real function of real numbers, applied to each element of a tensor. It may depend on tensors that require
            a gradient: they get theirs, and that can be differentiated again in them, but not in ``A``.
        divided_difference: takes two tensors of the same shape; must give ``f'`` where they are equal. The second
            derivative of the matrix function is made of its derivative by PyTorch.
        derivative: of ``f``, where there is no divided difference; by default that of PyTorch. The second derivative of
            the matrix function is made of its derivative by PyTorch.

    Returns:
        ``V f(x) V^H`` for ``A = V x V^H``, like ``A``.

    Raises:
        ArgumentError: ``A`` is no floating-point or complex tensor of square matrices, or ``f`` does not return real
            numbers, as many as it takes.
        DomainError: ``A`` is not finite, or clearly not Hermitian.

    Example:
        >>> import torch, gradwright as gw
        >>> A = torch.eye(2, requires_grad=True)
        >>> torch.autograd.grad(gw.stable.matrix_function(A, torch.atan).sum(), A)
        (tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]]),)
    """
    check_matrix("matrix_function", "A", A, square=True)
    for argument, given in (("f", f), ("divided_difference", divided_difference), ("derivative", derivative)):
        if not callable(given) and (argument == "f" or given is not None):
            raise ArgumentError(
                f"matrix_function: {argument} is {kind_of(given)}; expected a function; pass torch.atan itself."
            )
    hermitian("matrix_function", A)
    spectrum = Derived(f, derivative) if divided_difference is None else Given(f, divided_difference)
    x, V = decomposed("matrix_function", A, spectrum)
    at, slopes = spectrum.value(x), spectrum.slope(x.unsqueeze(-1), x.unsqueeze(-2))
    returned: list[tuple[str, Any, Tensor]] = [("f", at, x), ("divided_difference", slopes, V)]
    for name, found, like in returned:
        if not isinstance(found, Tensor) or found.is_complex() or found.shape != like.shape:
            got = (
                f"a tensor of {found.dtype}, shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"{found!r}"
            )
            raise ArgumentError(
                f"matrix_function: {name} returned {got}; expected real numbers of shape {tuple(like.shape)}, one for "
                "each that it was given."
            )
    return function_of(A, at, slopes, x, V, spectrum)
