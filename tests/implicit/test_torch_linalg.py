"""Why the library solves by triangular systems, and why tests do not compare with ``torch.linalg.solve``.

These faults are PyTorch's. A test that fails here says that one was corrected.
"""

from __future__ import annotations

import torch

from tests.implicit.equations import SECOND, regular, solution


def test_lu_solve_is_still_wrong() -> None:
    """Factors of a batch that are broadcast against a batch of right sides: then triangular solves can go."""
    A, b = regular(3, 4, 4), torch.randn(5, 4, 1, dtype=torch.float64)
    factors, pivots = torch.linalg.lu_factor(A)
    found = torch.linalg.lu_solve(factors[:, None], pivots[:, None], b[None])
    assert not torch.allclose(A[:, None] @ found, b.expand_as(found))


def test_nested_forward_mode_of_solve_is_still_wrong() -> None:
    A, b = regular(4, 4), torch.randn(4, dtype=torch.float64)
    for name in ("forward over forward", "reverse over forward"):
        found = SECOND[name](lambda A: torch.linalg.solve(A, b).sin().sum())(A)
        truth = SECOND[name](lambda A: solution(A, b).sin().sum())(A)
        assert not torch.allclose(found, truth), name


def test_jacfwd_of_solve_under_vmap_is_still_wrong() -> None:
    A, b = regular(3, 4, 4), torch.randn(4, dtype=torch.float64)
    found = torch.func.vmap(torch.func.jacfwd(lambda A: torch.linalg.solve(A, b)))(A)
    truth = torch.func.vmap(torch.func.jacfwd(lambda A: solution(A, b)))(A)
    assert not torch.allclose(found, truth)
