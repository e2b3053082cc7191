"""The exponential and the logarithm of rigid motions, SE(3), smooth through the identity.

The convention: a twist is ``(v, w)``, translation part first, then the rotation vector, and a motion is the matrix
``[[R, t], [0, 1]]`` that acts on column vectors ``(x, 1)``. ``R = exp([w])`` and ``t = J v``, with the left Jacobian
``J = I + c_2 [w] + c_3 [w]^2``. J. Solà, J. Deray and D. Atchuthan, arXiv 1812.01537.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example
from gradwright.authoring.exact import Point, exact
from gradwright.stable import rotation_references as plain
from gradwright.stable.components import checked
from gradwright.stable.rotation_samples import BARS, NEAREST, matrix_examples, vector_examples
from gradwright.stable.so3 import exponential, left_jacobian, left_jacobian_inverse, logarithm

SHIFT = (0.5, -1.25, 2.0)


def _twists(dtype: torch.dtype) -> Sequence[Example]:
    found = []
    for example in vector_examples(dtype):
        (w,) = example.args
        v = torch.tensor(SHIFT, dtype=dtype).expand(w.shape)
        found.append(Point((torch.cat([v, w], -1),), note=example.note, extreme=example.extreme))
    return found


def _motions(dtype: torch.dtype) -> Sequence[Example]:
    found = []
    for e in matrix_examples(dtype):
        r = e.args[0].reshape(-1, 3, 3)[:1]  # one is enough, and the truth takes its time
        motion = _motion(r, torch.tensor(SHIFT, dtype=dtype))
        found.append(Point((motion,), note=e.note, extreme=e.extreme, orders=e.orders))
    return found


def _motion(r: Tensor, t: Tensor) -> Tensor:
    top = torch.cat([r, t.expand(r.shape[:-1])[..., None]], -1)
    return torch.cat([top, torch.tensor([0.0, 0.0, 0.0, 1.0]).to(r).expand(*r.shape[:-2], 1, 4)], -2)


def _exp_reference(mp: Any, twist: Any) -> Any:
    v, w = twist[:3], twist[3:]
    r = plain.exponential(mp, w)
    t = plain.product(plain.left_jacobian(mp, w), [[x] for x in v])
    return [[*row, *x] for row, x in zip(r, t)] + [[mp.mpf(0)] * 3 + [mp.mpf(1)]]


def _log_reference(mp: Any, m: Any) -> Any:
    w = plain.logarithm(mp, [row[:3] for row in m[:3]])
    v = plain.product(plain.left_jacobian_inverse(mp, w), [[row[3]] for row in m[:3]])
    return [*(x for (x,) in v), *w]


def _written_exp(twist: Tensor) -> Tensor:
    v, w = twist[..., :3], twist[..., 3:]
    angle = w.norm(dim=-1)[..., None, None]
    x, y, z = w.unbind(-1)
    o = torch.zeros_like(x)
    k = torch.stack([o, -z, y, z, o, -x, -y, x, o], -1).reshape(*w.shape[:-1], 3, 3)
    square, eye = k @ k, torch.eye(3, dtype=w.dtype, device=w.device)
    a, b, c = torch.sin(angle) / angle, (1 - torch.cos(angle)) / angle**2, (angle - torch.sin(angle)) / angle**3
    top = torch.cat([eye + a * k + b * square, (eye + b * k + c * square) @ v[..., None]], -1)
    return torch.nn.functional.pad(top, (0, 0, 0, 1)) + _last_row(top)


def _written_log(m: Tensor) -> Tensor:
    r, t = m[..., :3, :3], m[..., :3, 3]
    cosine = (r.diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2
    angle = torch.acos(cosine)[..., None]
    skew = torch.stack([r[..., 2, 1] - r[..., 1, 2], r[..., 0, 2] - r[..., 2, 0], r[..., 1, 0] - r[..., 0, 1]], -1)
    w = angle / (2 * torch.sin(angle)) * skew
    turn = torch.linalg.cross(w, t)
    rest = 1 / angle**2 - (1 + torch.cos(angle)) / (2 * angle * torch.sin(angle))
    return torch.cat([t - turn / 2 + rest * torch.linalg.cross(w, turn), w], -1)


def _last_row(like: Tensor) -> Tensor:
    row = torch.zeros(4, 4, dtype=like.dtype, device=like.device)
    row[3, 3] = 1
    return row


@exact(
    forward="out = [[R, J v], [0, 1]], R = exp([w]), J = I + (1 - cos a)/a^2 [w] + (a - sin a)/a^3 [w]^2, a = |w|",
    gradient={"twist": "the derivative of that, with coefficients that are entire in a^2"},
    reference=lambda mp, twist: plain.each(lambda row: _exp_reference(mp, row), twist),
    domain="every twist whose rotation vector has a square in range",
    bars=BARS,
    examples=_twists,
    elementwise=False,
    measure="tensor",
    replaces=_written_exp,
    ordinary=lambda: (torch.randn(100_000, 6),),
    paper="arXiv 1812.01537",
)
def se3_exp(twist: Tensor) -> Tensor:
    """Return the matrix of the rigid motion of a twist.

    Arguments:
        twist: translation part, then rotation vector in radians, ``(..., 6)``.

    Returns:
        matrices ``[[R, t], [0, 1]]`` that act on column vectors, ``(..., 4, 4)``.

    Raises:
        ArgumentError: the shape or the dtype is another.

    Example:
        >>> import torch, gradwright as gw
        >>> twist = torch.zeros(6, requires_grad=True)
        >>> torch.autograd.grad(gw.stable.se3_exp(twist)[0, 3], twist)
        (tensor([1., 0., 0., 0., 0., 0.]),)
    """
    both = checked("se3_exp", "twist", twist, (6,), "twists: translation part, then rotation vector")
    v, w = both[..., :3], both[..., 3:]
    return _motion(exponential(w), left_jacobian(w, v)).to(twist.dtype)


@exact(
    forward="out = (J^-1 t, w), w = log R, R the rotation nearest to the upper left of m",
    gradient={"m": "that of w in the tangent space at R, that of J^-1 t, and zero for the last row"},
    reference=lambda mp, m: plain.each(lambda rows: _log_reference(mp, rows), m, dims=2),
    domain="matrices whose nearest rotation is unique, else nan; at pi the axis with a positive largest component",
    bars=BARS,
    examples=_motions,
    elementwise=False,
    measure="tensor",
    replaces=_written_log,
    slower=NEAREST,
    ordinary=lambda: (se3_exp(torch.randn(100_000, 6)),),
    paper="arXiv 1812.01537; pytorch3d#503",
)
def se3_log(m: Tensor) -> Tensor:
    """Return the twist of a rigid motion, of angle at most pi.

    Where the upper left is not exactly a rotation, it stands for the nearest one; where that is not unique, as for a
    reflection, the result is nan. The last row is not looked at.

    Arguments:
        m: matrices ``[[R, t], [0, 1]]`` that act on column vectors, ``(..., 4, 4)``.

    Returns:
        translation part, then rotation vector in radians, ``(..., 6)``. Half a turn is as for :func:`so3_log`.

    Raises:
        ArgumentError: the shape or the dtype is another.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.stable.se3_log(torch.eye(4))
        tensor([0., 0., 0., 0., 0., 0.])
    """
    whole = checked("se3_log", "m", m, (4, 4), "rigid motions")
    w = logarithm(whole[..., :3, :3])
    return torch.cat([left_jacobian_inverse(w, whole[..., :3, 3]), w], -1).to(m.dtype)
