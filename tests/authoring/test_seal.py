"""A sealed value can be used, and raises however it is differentiated."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad, jvp, vmap

from gradwright.authoring.seal import seal
from gradwright.errors import RuleError
from tests.authoring.examples import x


def sealed_square(t: torch.Tensor) -> torch.Tensor:
    (out,) = seal("f: sealed", [(t * t).detach()], [t])
    assert out is not None
    return out


def test_the_value_is_a_copy_and_integers_are_left_alone() -> None:
    value, places = x(2), torch.tensor([1])
    copy, same, nothing = seal("f: sealed", [value, places, None], [value])
    assert torch.equal(copy, value)  # type: ignore[arg-type]
    assert copy is not value
    assert same is places
    assert nothing is None


def test_every_way_to_differentiate_raises() -> None:
    t = x(2).requires_grad_()
    ways = [
        lambda: sealed_square(t).sum().backward(),
        lambda: torch.autograd.grad((sealed_square(t) * t).sum(), t),
        lambda: grad(lambda t: sealed_square(t).sum())(x(2)),
        lambda: jvp(sealed_square, (x(2),), (x(2),)),
        lambda: vmap(grad(sealed_square))(x(2)),
        lambda: grad(lambda t: vmap(sealed_square)(t).sum())(x(2)),
    ]
    for way in ways:
        with pytest.raises(RuleError, match="f: sealed"):
            way()  # type: ignore[no-untyped-call]
