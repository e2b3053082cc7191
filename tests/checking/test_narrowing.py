"""An accusation is followed to one element, through parts that cannot be told, and given up after enough of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradwright.checking.narrowing import TRIED, Standing, wrong_element

U = torch.arange(1.0, 41.0, dtype=torch.float64)


class Judge:
    """Knows which elements are wrong and which lie at kinks; a part with either of them is not fine."""

    def __init__(self, wrong: set[int], kinks: set[int]) -> None:
        self.wrong, self.kinks = wrong, kinks
        self.calls = 0

    def __call__(self, part: Tensor) -> Standing:
        self.calls += 1
        moved = set(part.nonzero().flatten().tolist())
        assert torch.equal(part[part != 0], U[part != 0])
        if len(moved) == 1 and moved <= self.wrong:
            return Standing.WRONG
        return Standing.OPEN if moved & (self.wrong | self.kinks) else Standing.FINE


@pytest.mark.parametrize("wrong", [0, 13, 39])
@pytest.mark.parametrize("kinks", [set(), {5}])
def test_the_wrong_element_is_found(wrong: int, kinks: set[int]) -> None:
    assert wrong_element(U, [], Judge({wrong}, kinks)) == wrong


def test_kinks_alone_are_not_accused() -> None:
    assert wrong_element(U, [], Judge(set(), {0, 1, 2})) is None
    assert wrong_element(U, [3, 0], Judge(set(), {0, 1, 2})) is None


def test_what_is_fine_costs_one_look() -> None:
    judge = Judge(set(), set())
    assert wrong_element(U, [], judge) is None
    assert judge.calls == 1


def test_a_guess_comes_first() -> None:
    judge = Judge({39}, set(range(39)))
    assert wrong_element(U, [39], judge) == 39
    assert judge.calls == 1


def test_many_kinks_do_not_make_it_last_for_ever() -> None:
    judge = Judge(set(), set(range(40)))
    assert wrong_element(U, [], judge) is None
    assert judge.calls == TRIED


def test_elements_that_are_not_moved_are_left_alone() -> None:
    seen: list[int] = []

    def judge(part: Tensor) -> Standing:
        seen.extend(part.nonzero().flatten().tolist())
        return Standing.OPEN

    assert wrong_element(torch.tensor([0.0, 2.0, 0.0], dtype=torch.float64), [], judge) is None
    assert seen == [1]
