"""Determinant and adjugate, whose derivatives are right where a matrix is singular, in every mode.

The determinant is a polynomial of the entries: its gradient is the adjugate, and has derivatives itself, whatever the
rank. ``torch.linalg.det`` returns 0 for it in one mode and the adjugate in another (pytorch#104675), and nan for second
derivatives at rank n - 2. With ``A = U diag(s) W^H``, ``adj(A) = det(U) conj(det(W)) W adj(diag(s)) U^H``, and the
derivatives of the adjugate of a diagonal matrix are products of all ``s`` but two or three (Magnus and Neudecker,
Matrix Differential Calculus, 1999, chapter 8). Those are made without a division, so that nothing is lost at zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.exact import Point, exact, relative
from gradwright.stable.left_out_products import bent_adjugate, moved_adjugate, without_one
from gradwright.stable.matrices import check_matrix

BARS = relative(1e-12, 1e-5)


# -------------------------------------------------------------------- what the proofs need


def _of_rank(values: Sequence[float], dtype: torch.dtype) -> Tensor:
    """Return a matrix with these singular values, up to rounding."""
    n = len(values)
    generator = torch.Generator().manual_seed(n)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    U, W = (torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=wide))[0] for _ in range(2))
    A: Tensor = (U * torch.tensor(values, dtype=torch.float64)) @ W
    return A.to(dtype)


def _examples(dtype: torch.dtype) -> Sequence[Example]:
    complex_dtype = torch.complex128 if dtype == torch.float64 else torch.complex64
    rows = [[1.0, 2.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.5], [1.0, 3.0, 1.0, 1.5], [0.5, 0.0, 1.0, 1.0]]
    return [
        Point((_of_rank([1.5, 1.0, 0.75], dtype),), note="rank n", scale=1.0),
        Point((_of_rank([1.5, 1.0, 1.0, 0.75], dtype),), note="rank n, repeated", scale=1.0),
        Point((torch.tensor(rows, dtype=dtype) / 2,), note="rank n - 1", scale=1.0),
        Point((_of_rank([1.0, 0.75, 0.5, 0.0], dtype),), note="rank n - 1, rounded", scale=1.0),
        Point((_of_rank([1.0, 0.75, 0.0, 0.0], dtype),), note="rank n - 2, rounded", scale=1.0, extreme=True),
        Point((torch.ones(3, 3, dtype=dtype),), note="rank n - 2 of order 3", scale=1.0),
        Point((torch.zeros(4, 4, dtype=dtype),), note="rank 0", scale=1.0, extreme=True),
        Point((torch.zeros(2, 2, dtype=dtype),), note="rank 0 of order 2", scale=1.0),
        Point((_of_rank([1.0, 0.0, 0.0, 0.0], complex_dtype)[:2, :2],), note="complex", scale=1.0),
    ]


def _reference(mp: Any, A: Any) -> Any:
    return _expanded(mp, A.tolist())


def _adjugate_reference(mp: Any, A: Any) -> Any:
    n = len(A)
    return [[_cofactor(mp, A.tolist(), j, i) for j in range(n)] for i in range(n)]


def _expanded(mp: Any, rows: list[list[Any]]) -> Any:
    """Return a determinant by cofactors, exact in whatever digits there are."""
    return mp.fsum(x * _cofactor(mp, rows, 0, j) for j, x in enumerate(rows[0])) if rows else mp.mpf(1)


def _cofactor(mp: Any, rows: list[list[Any]], i: int, j: int) -> Any:
    return (-1) ** (i + j) * _expanded(mp, [row[:j] + row[j + 1 :] for k, row in enumerate(rows) if k != i])


def _ordinary() -> tuple[Any, ...]:
    return (torch.randn(64, 64, 64) / 8,)


# -------------------------------------------------------------------- the functions


@exact(
    forward="out = det(A)",
    gradient={"A": "g adj(A)^H, by singular values, also where A is singular"},
    reference=_reference,
    domain="every square matrix with products of pivots, and of singular values from the largest on, in the range: of "
    "1e30, 1e30, 1e-30, 1e-30 on a diagonal in float32 the determinant is inf and its gradient nan; those of slogdet "
    "are right",
    bars=BARS,
    examples=_examples,
    elementwise=False,
    measure="tensor",
    replaces=torch.linalg.det,
    ordinary=_ordinary,
    slower="the gradient takes a singular value decomposition from order 4 on, since LU factors do not tell the rank",
    paper="Magnus and Neudecker 1999, chapter 8; pytorch#80761, #104675",
)
def det(A: Tensor) -> Tensor:
    """Return the determinants of square matrices, with gradients that are right at every rank.

    Arguments:
        A: floating point or complex, of shape ``(..., n, n)``.

    Returns:
        a tensor of shape ``(...)``. There are three derivatives.

    Raises:
        ArgumentError: ``A`` is no floating-point or complex tensor of square matrices.

    Example:
        >>> import torch, gradwright as gw
        >>> A = torch.tensor([[1.0, 2.0], [2.0, 4.0]], requires_grad=True)
        >>> torch.autograd.grad(gw.stable.det(A), A)
        (tensor([[ 4., -2.],
                [-2.,  1.]]),)
    """
    check_matrix("det", "A", A, square=True)
    return _det(A)


@custom_gradient(autocast="off")
def _det(A: Tensor) -> Tensor:
    out: Tensor = torch.linalg.det(A)
    return out


@_det.vjp
def det_vjp(g: Tensor, A: Tensor) -> Tensor:
    return g[..., None, None] * adjugate(A).mH


@_det.jvp
def det_jvp(t: Tensor, A: Tensor) -> Tensor:
    return (adjugate(A).mT * t).sum((-2, -1))


@exact(
    forward="out @ A = A @ out = det(A) times the identity; the transposed matrix of cofactors",
    gradient={"A": "by products of all singular values but two"},
    reference=_adjugate_reference,
    domain="every square matrix",
    bars=BARS,
    examples=_examples,
    elementwise=False,
    measure="tensor",
    paper="Magnus and Neudecker 1999, chapter 8; pytorch#104675",
)
def adjugate(A: Tensor) -> Tensor:
    """Return the adjugates of square matrices: the transposed cofactors, ``det(A)`` times the inverse if there is one.

    Arguments:
        A: floating point or complex, of shape ``(..., n, n)``.

    Returns:
        a tensor like ``A``. There are two derivatives (all of them at order 2 and 3); the second one takes memory of
        ``n^3`` numbers for each matrix.

    Raises:
        ArgumentError: ``A`` is no floating-point or complex tensor of square matrices.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.adjugate(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        tensor([[ 4., -2.],
                [-3.,  1.]])
    """
    check_matrix("adjugate", "A", A, square=True)
    if A.shape[-1] in (2, 3):
        return _cofactors(A)
    U, s, W, turn = singular(A.detach())
    return adjugate_of(A, U, s, W, turn)


class SlogDet(NamedTuple):
    """Sign and logarithm of a determinant."""

    sign: Tensor
    logabsdet: Tensor


def _regular_examples(dtype: torch.dtype) -> Sequence[Example]:
    complex_dtype = torch.complex128 if dtype == torch.float64 else torch.complex64
    return [
        Point((_of_rank([1.5, 1.0, 0.5], dtype),), note="real"),
        Point((_of_rank([1.5, 1.0, 0.75, 0.5], dtype).flip(0),), note="other sign"),
        Point((_of_rank([1.5, 0.75], complex_dtype),), note="complex"),
    ]


def _slogdet_reference(mp: Any, A: Any) -> Any:
    whole = _expanded(mp, A.tolist())
    return whole / abs(whole) + mp.log(abs(whole))


@exact(
    forward="sign = det(A) / |det(A)|, logabsdet = log |det(A)|",
    gradient={"A": "(g + 1j Im(g_sign conj(sign))) A^-H; nan where A is singular, 0 where the cotangent is 0"},
    reference=_slogdet_reference,
    domain="every square matrix; 0 and -inf where it is singular, without a derivative",
    bars=BARS,
    examples=_regular_examples,
    elementwise=False,
    measure="tensor",
    observed=lambda out: out.sign + out.logabsdet,
    replaces=torch.linalg.slogdet,
    ordinary=_ordinary,
    slower="it forms inverses of its own, since a solve with the LU factors raises for all if one matrix is singular",
    paper="Magnus and Neudecker 1999, chapter 8; pytorch#104675",
)
def slogdet(A: Tensor) -> SlogDet:
    """Return signs and logarithms of the determinants of square matrices; one singular matrix leaves the others alone.

    ``torch.linalg.slogdet`` gives infinite or nan gradients at a singular matrix in one mode, and raises for the whole
    batch in another. The logarithm has no derivative there, since its limits differ: the gradient is nan in every mode,
    unless the cotangent is zero (the loss does not use it), and then it is zero.

    Arguments:
        A: floating point or complex, of shape ``(..., n, n)``.

    Returns:
        ``sign`` (of absolute value 1, or 0 if ``A`` is singular) and ``logabsdet``, tensors of shape ``(...)``. The
        sign has a gradient only if it is complex. There are derivatives of every order.

    Raises:
        ArgumentError: ``A`` is no floating-point or complex tensor of square matrices.

    Example:
        >>> import torch, gradwright as gw
        >>> A = torch.stack([torch.eye(2), torch.ones(2, 2)]).requires_grad_()
        >>> sign, logabsdet = gw.stable.slogdet(A)
        >>> torch.autograd.grad(torch.where(sign == 0, 0, logabsdet).sum(), A)
        (tensor([[[1., 0.],
                 [0., 1.]],
        <BLANKLINE>
                [[0., 0.],
                 [0., 0.]]]),)
    """
    check_matrix("slogdet", "A", A, square=True)
    return SlogDet(*_slogdet(A))


@custom_gradient(autocast="off")
def _slogdet(A: Tensor) -> tuple[Tensor, Tensor]:
    sign, logabsdet = torch.linalg.slogdet(A)
    return sign, logabsdet


@_slogdet.vjp
def slogdet_vjp(g: tuple[Tensor, Tensor], A: Tensor, out: tuple[Tensor, Tensor]) -> Tensor:
    weight = g[1] + 1j * (g[0] * out[0].conj()).imag if A.is_complex() else g[1]
    weight = weight[..., None, None]
    return weight * torch.where(weight == 0, 0.0, inverse(A).mH)


@_slogdet.jvp
def slogdet_jvp(t: Tensor, A: Tensor, out: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    rate = (inverse(A).mT * t).sum((-2, -1))
    return (1j * out[0] * rate.imag, rate.real) if A.is_complex() else (torch.zeros_like(rate), rate)


@custom_gradient(autocast="off")
def inverse(A: Tensor) -> Tensor:
    """Return the inverses, nan where there is none."""
    found, info = torch.linalg.inv_ex(A)
    return torch.where(info[..., None, None] == 0, found, torch.nan)


@inverse.vjp
def inverse_vjp(g: Tensor, out: Tensor) -> Tensor:
    unused = (g == 0).all(-1, keepdim=True).all(-2, keepdim=True)
    used = torch.where(unused, 0.0, out.mH)
    return -used @ g @ used


@inverse.jvp
def inverse_jvp(t: Tensor, out: Tensor) -> Tensor:
    return -out @ t @ out


def _cofactors(A: Tensor) -> Tensor:
    """Return adjugates of order 2 or 3 by their formulae, polynomials that PyTorch differentiates rightly."""
    if A.shape[-1] == 2:
        (a, b), (c, d) = (A[..., i, :].unbind(-1) for i in range(2))
        return torch.stack([torch.stack([d, -b], -1), torch.stack([-c, a], -1)], -2)
    (a, b, c), (d, e, f), (g, h, i) = (A[..., k, :].unbind(-1) for k in range(3))
    rows = (
        (e * i - f * h, c * h - b * i, b * f - c * e),
        (f * g - d * i, a * i - c * g, c * d - a * f),
        (d * h - e * g, b * g - a * h, a * e - b * d),
    )
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


@custom_gradient(autocast="off")
def singular(A: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ``U``, ``s`` and ``W`` of ``A = U diag(s) W^H`` and the determinant of ``U W^H``, as constants."""
    U, s, Wh = torch.linalg.svd(A)
    return U, s, Wh.mH, (torch.linalg.det(U) * torch.linalg.det(Wh))[..., None, None]


@singular.vjp
def singular_vjp(g: Tensor) -> None:
    return None


@singular.jvp
def singular_jvp(t: Tensor) -> tuple[None, None, None, None]:
    return None, None, None, None


@custom_gradient(autocast="off")
def adjugate_of(A: Tensor, U: Tensor, s: Tensor, W: Tensor, turn: Tensor) -> Tensor:
    """Return the adjugate of ``A``, of which the others are the singular value decomposition."""
    return turn * (W * without_one(s).unsqueeze(-2)) @ U.mH


@adjugate_of.vjp
def adjugate_of_vjp(g: Tensor, A: Tensor, U: Tensor, s: Tensor, W: Tensor, turn: Tensor) -> dict[str, Tensor | None]:
    return {"A": moved_of(g.mH, A, U, s, W, turn).mH, "U": None, "s": None, "W": None, "turn": None}


@adjugate_of.jvp
def adjugate_of_jvp(
    t: dict[str, Tensor | None], A: Tensor, U: Tensor, s: Tensor, W: Tensor, turn: Tensor
) -> Tensor | None:
    return None if t["A"] is None else moved_of(t["A"], A, U, s, W, turn)


@custom_gradient(autocast="off", double_backward="once")
def moved_of(E: Tensor, A: Tensor, U: Tensor, s: Tensor, W: Tensor, turn: Tensor) -> Tensor:
    """Return the derivative of the adjugate of ``A`` along ``E``."""
    return turn * W @ moved_adjugate(U.mH @ E @ W, s) @ U.mH


@moved_of.vjp
def moved_of_vjp(
    g: Tensor,
    E: Tensor,
    A: Tensor,
    U: Tensor,
    s: Tensor,
    W: Tensor,
    turn: Tensor,
    needs: dict[str, bool],
) -> dict[str, Tensor | None]:
    # The derivatives of a determinant do not depend on the order of what they are along.
    return {
        "E": moved_of(g.mH, A, U, s, W, turn).mH,
        "A": _bent_of(E, g.mH, U, s, W, turn).mH if needs["A"] else None,
        "U": None,
        "s": None,
        "W": None,
        "turn": None,
    }


@moved_of.jvp
def moved_of_jvp(
    t: dict[str, Tensor | None], E: Tensor, A: Tensor, U: Tensor, s: Tensor, W: Tensor, turn: Tensor
) -> Tensor:
    total = torch.zeros_like(E)
    if t["E"] is not None:
        total = total + moved_of(t["E"], A, U, s, W, turn)
    if t["A"] is not None:
        total = total + _bent_of(E, t["A"], U, s, W, turn)
    return total


def _bent_of(E: Tensor, H: Tensor, U: Tensor, s: Tensor, W: Tensor, turn: Tensor) -> Tensor:
    return turn * W @ bent_adjugate(U.mH @ E @ W, U.mH @ H @ W, s) @ U.mH
