"""Which eigenvectors and singular vectors are taken where several would do, and whether a loss depends on it.

Vectors of values that coincide (a *cluster*) are determined up to a rotation of them all, a *gauge*; complex ones up to
a phase, even alone. A loss has a gradient only if it does not depend on the gauge. Its cotangents show that, for
``K = V^H g_V`` and the cotangent ``g_w`` of the values, inside of a cluster:

* ``K`` must be Hermitian: else turning the vectors into each other changes the loss;
* the elements of ``g_w`` must be the same: else the loss depends on values that a change of the matrix splits.

Pairs inside of a cluster then contribute nothing (Liao et al. 2019, arXiv 1903.09650).

Both conditions are necessary in any gauge, but sufficient only if the gauge is no special one: ``V log(w) V^H`` at the
identity, with ``V`` the identity, has ``g_V = 0`` and sees only the diagonal of its cotangent; a constant diagonal
would pass the second test, and the rest of it would be lost without a word. So the vectors of a cluster are turned by
fixed angles that are nothing special: there only multiples of the identity have a constant diagonal.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from gradwright.errors import OptionError, unknown_choice
from gradwright.stable.linear_algebra import anywhere, largest, reciprocal, refuse, resolution

Gap: TypeAlias = Literal["raise", "zero", "lorentzian"]
"""What is done about pairs of values that coincide, or nearly do."""

ROTATION, SPLIT, ZERO, TANGENT = range(4)
"""What can be wrong: a loss depends on the gauge, or on single values; or on vectors of the singular value zero; or a
tangent splits a cluster."""


def check_gap(name: str, gap: str, eta: float | None) -> None:
    """Refuse options that are not known.

    Raises:
        OptionError: ``gap`` is no choice, or ``eta`` is missing, not positive, or without use.
    """
    if gap not in ("raise", "zero", "lorentzian"):
        raise unknown_choice(f"{name}: gap", gap, ("raise", "zero", "lorentzian"))
    if gap == "lorentzian" and (eta is None or not eta > 0):
        raise OptionError(
            f"{name}: eta is {eta!r}; expected a positive number with gap='lorentzian', the square of the gap below "
            "which pairs are damped; give for example eta=1e-12."
        )
    if gap != "lorentzian" and eta is not None:
        raise OptionError(f"{name}: eta is {eta!r}, but gap is {gap!r}; expected gap='lorentzian'; leave it away.")


def clusters(values: Tensor) -> Tensor:
    """Tell of each pair of sorted values whether they belong together: no gap between them is a resolvable one."""
    wide = values.detach().diff(dim=-1).abs() > resolution(values.shape[-1], values.dtype) * _scale(values)
    number = torch.cat([torch.zeros_like(values[..., :1], dtype=torch.bool), wide], -1).cumsum(-1)
    return number[..., :, None] == number[..., None, :]


def vanishing(values: Tensor) -> Tensor:
    """Tell of each singular value whether it cannot be told from zero."""
    return values.detach().abs() <= resolution(values.shape[-1], values.dtype) * _scale(values)


def _scale(values: Tensor) -> Tensor:
    return values.detach().abs().amax(-1, keepdim=True)


def determined(vectors: Tensor, same: Tensor) -> bool:
    """Tell whether it is known that all vectors are determined, up to their signs, so that there is nothing to test."""
    alone = torch.eye(same.shape[-1], dtype=torch.bool, device=same.device)
    return not vectors.is_complex() and anywhere(same & ~alone) is False


def turned(vectors: Tensor, same: Tensor) -> Tensor:
    """Return vectors, the columns of a matrix, with those that are the same turned into each other by fixed angles."""
    if determined(vectors, same):
        return vectors
    n = same.shape[-1]
    unit = torch.eye(n, dtype=vectors.dtype, device=vectors.device)
    place = torch.arange(1, n + 1, dtype=vectors.real.dtype, device=vectors.device)
    products = place[:, None] * place
    skew = torch.cos(2**0.5 * products) * (place - place[:, None]).sign()
    if vectors.is_complex():
        skew = torch.complex(skew, torch.sin(3**0.5 * products))
    skew = torch.where(same, skew, 0.0)
    rotation: Tensor = torch.linalg.solve(unit - skew, unit + skew)  # Cayley's: unitary, 1 where nothing is the same
    return vectors @ rotation


def inverse_gaps(values: Tensor, same: Tensor, gap: Gap, eta: float | None) -> Tensor:
    """Return ``1 / (w_j - w_i)`` for pairs that differ and 0 for others, or what was chosen instead."""
    differences = values[..., None, :] - values[..., :, None]
    if gap == "lorentzian":
        assert eta is not None
        return differences / (differences * differences + eta)
    return 1 / torch.where(same, torch.inf, differences)


def ratio(x: Tensor, among: Tensor, size: Tensor) -> Tensor:
    """Return the absolute values of a matrix at some places, as parts of the largest value that counts."""
    with torch.no_grad():
        return torch.where(among, x.abs(), 0.0) * reciprocal(size)[..., None, None]


def spread(g: Tensor, same: Tensor) -> Tensor:
    """Return by how much the derivatives with respect to values that are the same differ."""
    return ratio(g[..., :, None] - g[..., None, :], same, largest(g[..., None]))


def splitting(moved: Tensor, same: Tensor) -> Tensor:
    """Return by how much a perturbation, in the basis of the vectors, is no multiple of 1 inside of a cluster."""
    diagonal = moved.diagonal(dim1=-2, dim2=-1)
    apart = diagonal[..., :, None] - diagonal[..., None, :]
    others = torch.where(torch.eye(same.shape[-1], dtype=torch.bool, device=same.device), apart, moved)
    return torch.maximum(ratio(apart, same, largest(moved)), ratio(others, same, largest(moved)))


def refuse_violations(
    name: str, results: list[Tensor], violations: dict[int, Tensor], values: Tensor, remedy: str
) -> list[Tensor]:
    """Return derivatives, unless a violation is larger than rounding makes it.

    Arguments:
        name: of the function.
        results: the derivatives.
        violations: by kind, one number for each pair of values.
        values: eigenvalues or singular values.
        remedy: which function to use instead.

    Raises:
        UndefinedGradientError: a violation is too large. (Where that cannot be looked at, the derivative is nan.)
    """
    with torch.no_grad():
        worst = torch.stack(list(violations.values()), -3)
        bad = worst.amax((-3, -2, -1)) > torch.finfo(values.dtype).eps ** 0.5

    def numbers() -> list[Tensor]:
        size = values.shape[-1]
        found, place = worst.flatten(-3).max(-1)
        pair = torch.stack([place // size % size, place % size], -1)
        return [*values.detach().gather(-1, pair).unbind(-1), pair[..., 0], pair[..., 1], place // size**2, found]

    def message(one: float, other: float, i: float, j: float, kind: float, part: float) -> str:
        wrong = list(violations)[int(kind)]
        what = _WRONG[wrong] if wrong != ROTATION or i != j else _PHASE
        values = f"number {i:.0f} and {j:.0f}, {one:.10g} and {other:.10g}" if i != j else f"number {i:.0f}, {one:.10g}"
        return f"{name}: {what.format(values=values, part=part)} {remedy}"

    return refuse(results, bad, numbers, message)


_WRONG = {
    ROTATION: (
        "the loss depends on which vectors are taken of values that coincide ({values}): turning them into each other "
        "changes it, by {part:.2g} of the largest change that turning vectors makes, so that it has no gradient; "
        "expected a loss that depends only on the space they span;"
    ),
    SPLIT: (
        "the loss depends on single ones of values that coincide ({values}), or on more than their space and their "
        "mean, as functions of the matrix do: its derivatives with respect to them differ by {part:.2g} of the largest "
        "one, and do not determine a gradient; expected the same derivative for all;"
    ),
    ZERO: (
        "the loss depends on a singular value of zero or on its vectors ({values}), where they have no derivative (it "
        "would be {part:.2g} of the largest one); expected a loss that does not, or a matrix of full rank;"
    ),
    TANGENT: (
        "in forward mode the tangent of the matrix splits values that coincide ({values}), by {part:.2g} of its size, "
        "so that these and their vectors have no tangent; expected one that does not; use reverse mode, which can see "
        "whether the loss depends on it, or"
    ),
}
_PHASE = (
    "the loss depends on the phase of a complex vector ({values}), which nothing determines, by {part:.2g} of the "
    "largest change that turning vectors makes; expected a loss that does not;"
)
