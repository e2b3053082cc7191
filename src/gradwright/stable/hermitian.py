"""Functions of Hermitian matrices and their derivatives, from divided differences alone.

With ``A = V diag(x) V^H``, the derivative of ``f(A)`` along ``E`` is ``V (F * V^H E V) V^H``, where ``F[i, j]`` is the
divided difference ``f[x_i, x_j]`` (Daleckii and Krein 1965; Higham, Functions of Matrices, 2008, theorem 3.11). Nothing
is divided by a gap between eigenvalues, so that repeated and close ones are points like all others: the derivatives of
eigenvalues and eigenvectors, which do not exist there, are never formed.

The second derivative along ``E`` and ``H`` is made of ``f[x_i, x_k, x_j]``. These are averages of ``f[x_m, x_m, x_i]``
and ``f[x_m, x_m, x_j]``, where ``x_m`` is the middle one of the three, with the weights of linear interpolation: a
closed form for pairs gives all triples without cancellation. As eigenvalues are sorted, the indices tell which one is
in the middle, and the sum over ``k`` is made of products of triangular matrices: no array of all triples is formed.
"""

from __future__ import annotations

import abc

import torch
from torch import Tensor

from gradwright.authoring.decorator import custom_gradient
from gradwright.errors import DomainError, RuleError
from gradwright.stable.matrices import readable

NOISE = 16.0
"""An eigenvalue is zero to working precision up to this many roundings of the largest one; those of ``B @ B.T`` that
should be zero come out at up to 5 (n to 128, any rank)."""


class Spectrum(abc.ABC):
    """A real function of a real number, with the divided differences that derivatives of matrices are made of.

    Where ``singular``, it is defined from zero on, and may have infinite differences there; these are to be given as 0.
    """

    singular = False
    open = False
    """Whether it is not defined at zero either."""

    @abc.abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """Return ``f(x)``."""

    @abc.abstractmethod
    def slope(self, x: Tensor, y: Tensor) -> Tensor:
        """Return ``f[x, y] = (f(y) - f(x)) / (y - x)``, and ``f'(x)`` where ``x == y``."""

    @abc.abstractmethod
    def bend(self, x: Tensor, y: Tensor) -> Tensor:
        """Return ``f[x, x, y] = (f[x, y] - f'(x)) / (y - x)``, and ``f''(x) / 2`` where ``x == y``."""


def decomposed(name: str, A: Tensor, spectrum: Spectrum) -> tuple[Tensor, Tensor]:
    """Return eigenvalues, in rising order, and eigenvectors of the symmetric part of ``A``, as constants.

    Raises:
        DomainError: an eigenvalue is where the function is not defined (if values can be looked at).
    """
    x, V = eigen(A.detach(), spectrum.singular)
    if spectrum.singular and x.numel() and readable(x):
        least = float(x.detach().amin())
        if least < 0 or (least == 0 and spectrum.open):
            found = "zero to working precision" if least == 0 else f"{least:.3g}"
            kind = "positive definite" if spectrum.open else "positive semidefinite"
            raise DomainError(
                f"{name}: an eigenvalue of A is {found}; expected {kind} matrices; add a multiple of the identity, or "
                "find out why A is not one."
            )
    return x, V


@custom_gradient(autocast="off")
def eigen(A: Tensor, zeros: bool) -> tuple[Tensor, Tensor]:
    """Return eigenvalues and eigenvectors as constants: no derivative is formed of what has none at repeated ones.

    With ``zeros``, eigenvalues that are zero to working precision are exactly zero. An eigenvector with one entry is of
    a row with nothing beside the diagonal, which is its eigenvalue, to the last digit.
    """
    A = (A + A.mH) / 2
    x, V = torch.linalg.eigh(A)
    if zeros:
        largest = x.abs().amax(-1, keepdim=True) if x.shape[-1] else x
        noise = NOISE * torch.finfo(x.dtype).eps * largest
        x = x.masked_fill((x.abs() <= noise) & ((V != 0).sum(-2) > 1), 0.0)
    return x, V


@eigen.vjp
def eigen_vjp(g: Tensor) -> None:
    return None


@eigen.jvp
def eigen_jvp(t: Tensor) -> tuple[None, None]:
    return None, None


@custom_gradient(autocast="off")
def function_of(A: Tensor, at: Tensor | None, slopes: Tensor | None, x: Tensor, V: Tensor, f: Spectrum) -> Tensor:
    """Return ``f`` of the symmetric part of ``A``, whose eigenvalues and eigenvectors are ``x`` and ``V``.

    ``at`` and ``slopes`` are ``f(x_i)`` and ``f[x_i, x_j]`` where these depend on more than ``x``.
    """
    return _mean((V * _row(f.value(x) if at is None else at)) @ V.mH)


@function_of.vjp
def function_of_vjp(
    g: Tensor,
    A: Tensor,
    at: Tensor | None,
    slopes: Tensor | None,
    x: Tensor,
    V: Tensor,
    f: Spectrum,
    needs: dict[str, bool],
) -> dict[str, Tensor | None]:
    return {
        "A": slope_of(g, A, slopes, x, V, f),
        "at": diagonal_of(g, A, V) if needs["at"] else None,
        "slopes": None,
        "x": None,
        "V": None,
    }


@function_of.jvp
def function_of_jvp(
    t: dict[str, Tensor | None], A: Tensor, at: Tensor | None, slopes: Tensor | None, x: Tensor, V: Tensor, f: Spectrum
) -> Tensor:
    total = torch.zeros_like(A)
    if t["A"] is not None:
        total = total + slope_of(t["A"], A, slopes, x, V, f)
    if t["at"] is not None:
        total = total + _mean((V * _row(t["at"])) @ V.mH)
    return total


@custom_gradient(autocast="off")
def diagonal_of(E: Tensor, A: Tensor, V: Tensor) -> Tensor:
    """Return the diagonal of ``V^H E V`` with the eigenvectors of ``A``; its derivative in ``A`` is refused."""
    return (V.conj() * (E @ V)).sum(-2).real


@diagonal_of.vjp
def diagonal_of_vjp(g: Tensor, A: Tensor, V: Tensor, needs: dict[str, bool]) -> dict[str, Tensor | None]:
    if needs["A"]:
        raise RuleError(_IN_THE_MATRIX)
    return {"E": (V * _row(g)) @ V.mH, "A": None, "V": None}


@diagonal_of.jvp
def diagonal_of_jvp(t: dict[str, Tensor | None], A: Tensor, V: Tensor) -> Tensor | None:
    if t["A"] is not None:
        raise RuleError(_IN_THE_MATRIX)
    return None if t["E"] is None else diagonal_of(t["E"], A, V)


_IN_THE_MATRIX = (
    "matrix_function: the gradient of what f depends on was differentiated again, in the matrix; that is made of "
    "divided differences of the derivative of f in it, which are not known; differentiate in the matrix first."
)


@custom_gradient(autocast="off", double_backward="once")
def slope_of(E: Tensor, A: Tensor, slopes: Tensor | None, x: Tensor, V: Tensor, f: Spectrum) -> Tensor:
    """Return the derivative of ``f`` of the symmetric part of ``A`` along that of ``E``; it is its own transpose."""
    inner = _inside(E, V) * (f.slope(_column(x), _row(x)) if slopes is None else slopes)
    return _mean(V @ inner @ V.mH)


@slope_of.vjp
def slope_of_vjp(
    g: Tensor,
    E: Tensor,
    A: Tensor,
    slopes: Tensor | None,
    x: Tensor,
    V: Tensor,
    f: Spectrum,
    needs: dict[str, bool],
) -> dict[str, Tensor | None]:
    return {
        "E": slope_of(g, A, slopes, x, V, f),
        "A": _bent(E, g, x, V, f) if needs["A"] else None,
        "slopes": (_inside(E, V).conj() * _inside(g, V)).real if needs["slopes"] else None,
        "x": None,
        "V": None,
    }


@slope_of.jvp
def slope_of_jvp(
    t: dict[str, Tensor | None],
    E: Tensor,
    A: Tensor,
    slopes: Tensor | None,
    x: Tensor,
    V: Tensor,
    f: Spectrum,
) -> Tensor:
    total = torch.zeros_like(E)
    if t["E"] is not None:
        total = total + slope_of(t["E"], A, slopes, x, V, f)
    if t["A"] is not None:
        total = total + _bent(E, t["A"], x, V, f)
    if t["slopes"] is not None:
        total = total + _mean(V @ (_inside(E, V) * t["slopes"]) @ V.mH)
    return total


def _bent(E: Tensor, H: Tensor, x: Tensor, V: Tensor, f: Spectrum) -> Tensor:
    return _mean(V @ curvature(_inside(E, V), _inside(H, V), x, f) @ V.mH)


def curvature(E: Tensor, H: Tensor, x: Tensor, f: Spectrum) -> Tensor:
    """Return the second derivative along Hermitian ``E`` and ``H``, all of it in the basis of eigenvectors.

    That is the sum over ``k`` of ``f[x_i, x_k, x_j] (E_ik H_kj + H_ik E_kj)``. With ``R[m, i] = f[x_m, x_i] - f'(x_m)``
    and ``W[i, j] = 1 / (x_j - x_i)``, the divided difference is ``(R[m, j] - R[m, i]) W[i, j]``, where ``m`` is the
    middle one of three indices; where even the outer ones are tied, it is half the second derivative.
    """
    gap = _row(x) - _column(x)
    tied = gap.abs() <= torch.finfo(x.dtype).smallest_normal
    W = torch.where(tied, 0.0, 1 / gap)
    bend = f.bend(_column(x), _row(x))
    R = gap * bend
    half = torch.diagonal(bend, dim1=-2, dim2=-1)
    total = _column(half) * ((E * tied) @ (H * tied))
    total = total + W * (_between(E, H * R, E * R.mT, H))
    total = total + _first(E, H * W, R, 0) + _first(H, E * W, R, 1)
    return total + total.mH


def _between(E: Tensor, RH: Tensor, ER: Tensor, H: Tensor) -> Tensor:
    """Sum over the ``k`` from ``i`` to ``j``, on either side."""
    up = E.triu() @ RH.triu() - ER.triu() @ H.triu()
    return up + E.tril() @ RH.tril() - ER.tril() @ H.tril()


def _first(E: Tensor, WH: Tensor, R: Tensor, beyond: int) -> Tensor:
    """Sum over the ``k`` that have ``i`` between themselves and ``j``, which is at least ``beyond`` away from it."""
    below, above = E.tril(-1), E.triu(1)
    up = R * (below @ WH) - (below * R) @ WH
    down = R * (above @ WH) - (above * R) @ WH
    return up.triu(beyond) + down.tril(-beyond)


def _inside(X: Tensor, V: Tensor) -> Tensor:
    return _mean(V.mH @ X @ V)


def _mean(X: Tensor) -> Tensor:
    return (X + X.mH) / 2


def _row(x: Tensor) -> Tensor:
    return x.unsqueeze(-2)


def _column(x: Tensor) -> Tensor:
    return x.unsqueeze(-1)
