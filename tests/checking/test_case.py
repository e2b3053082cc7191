"""A case: fresh tensors at every evaluation, real views, chosen inputs and outputs, and randomness."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from gradwright.checking.case import Case
from gradwright.checking.randomness import fixed_random_state
from gradwright.checking.samples import Sample
from gradwright.checking.subject import as_subject
from gradwright.checking.tensors import same_bits
from gradwright.errors import ForwardError, SampleError
from tests.subjects import ComplexSquare, Exp, Gather, InPlaceDouble, Linear, SinCos, variant, x


def case(target: Any, *args: Any, **kwargs: Any) -> Case:
    return Case(as_subject(target), Sample(args, kwargs))


def names(c: Case) -> list[str]:
    return [item.name for item in c.inputs]


def test_all_floating_tensors_are_differentiated_when_none_requires_grad() -> None:
    assert names(case(Linear, x(2, 3), x(4, 3), x(4))) == ["x", "w", "b"]
    assert names(case(Gather, x(5), torch.tensor([0, 0, 3]))) == ["x"]


def test_exactly_those_that_require_grad_are() -> None:
    assert names(case(Linear, x(2, 3), x(4, 3).requires_grad_())) == ["w"]


def test_containers_of_a_callable_are_seen_and_named() -> None:
    def f(parts: Any, scale: float = 1.0) -> Tensor:
        return (parts["a"] + parts["b"][0]) * scale

    assert names(case(f, {"a": x(2), "b": [x(2)]})) == ["parts['a']", "parts['b'][0]"]


def test_module_parameters_are_inputs() -> None:
    module = torch.nn.Linear(3, 2)
    assert names(case(module, torch.randn(4, 3))) == ["input", "weight", "bias"]


def test_nothing_to_differentiate_is_an_error() -> None:
    with pytest.raises(SampleError, match="no floating-point or complex tensor"):
        case(lambda i: i, torch.tensor([1]))


def test_forward_that_raises_is_an_error_with_its_cause() -> None:
    def f(x: Tensor) -> Tensor:
        raise KeyError("table")

    with pytest.raises(
        ForwardError, match=r"f: forward raised KeyError: 'table' on the sample \(x: float64 \(2,\)\)"
    ) as info:
        case(f, x(2))
    assert isinstance(info.value.__cause__, KeyError)


def test_the_users_tensors_are_never_touched() -> None:
    original = x(3)
    kept = original.clone()
    c = case(lambda t: t.detach().mul_(2) + t, original)
    c.value()
    c.pull(torch.ones(3, dtype=torch.float64))
    assert torch.equal(original, kept)
    assert not original.requires_grad
    assert original.grad is None


def test_evaluations_do_not_reach_each_other() -> None:
    def f(t: Tensor) -> Tensor:
        out = t.sin()
        t.data.zero_()
        return out

    c = case(f, x(3))
    assert torch.equal(c.value(), x(3).sin())
    assert torch.equal(c.value(), x(3).sin())


@pytest.mark.parametrize(
    "tensor",
    [
        x(4, 6).t(),
        x(4, 6)[1:, ::2],
        x(1, 3).expand(4, 3),
        x(3)[1:],
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    ],
)
def test_layout_reaches_the_subject(tensor: Tensor) -> None:
    seen: list[Any] = []

    def f(t: Tensor) -> Tensor:
        seen.append((t.stride(), t.storage_offset()))
        return t * 2

    case(f, tensor)
    assert seen[0] == (tensor.stride(), tensor.storage_offset())


def test_value_joins_outputs_and_locates_their_elements() -> None:
    c = case(SinCos, x(2, 3))
    assert c.m == 12
    assert torch.equal(c.value(), torch.cat([x(2, 3).sin().flatten(), x(2, 3).cos().flatten()]))
    assert c.locate_output(7) == (1, (0, 1))
    assert c.locate_input(0, 5) == (1, 2)
    assert c.output_name(1) == "output 1"


def test_no_value_where_forward_raises_or_changes_shape() -> None:
    def f(t: Tensor) -> Tensor:
        if t.detach()[0] > 5:
            raise ValueError("too large")
        return t[:1] if t.detach()[0] < -5 else t

    c = case(f, x(2))
    assert bool(c.value({0: torch.tensor([9.0, 0.0], dtype=torch.float64)}).isnan().all())
    assert bool(c.value({0: torch.tensor([-9.0, 0.0], dtype=torch.float64)}).isnan().all())


def test_complex_tensors_are_real_pairs() -> None:
    z = torch.tensor([1 + 2j], dtype=torch.complex128)
    c = case(ComplexSquare, z)
    assert (c.n, c.m) == ([2], 2)
    assert c.value().tolist() == [-3.0, 4.0]
    # d Re(z^2) = 2 a da - 2 b db
    assert (c.pull(torch.tensor([1.0, 0.0], dtype=torch.float64))[0]).tolist() == [2.0, -4.0]  # type: ignore[union-attr]


def test_in_place_functions_get_something_that_is_not_a_leaf() -> None:
    c = case(InPlaceDouble, x(3))
    assert c.in_place
    assert torch.equal(c.value(), 2 * x(3))
    assert c.pull(torch.ones(3, dtype=torch.float64))[0].tolist() == [2.0] * 3  # type: ignore[union-attr]


def test_randomness() -> None:
    state = {"calls": 0}

    def counting(t: Tensor) -> Tensor:
        state["calls"] += 1
        return t * state["calls"]

    assert case(torch.sin, x(3)).randomness == "none"
    assert case(lambda t: torch.nn.functional.dropout(t, 0.5), x(50)).randomness == "seeded"
    assert case(lambda t: t * random.random(), x(3)).randomness == "seeded"
    # Almost every mask of one element is the same.
    assert case(lambda t: torch.nn.functional.dropout(t, 1e-6), x(1)).randomness == "seeded"
    assert case(lambda t: t * (random.random() < 2.0), x(1)).randomness == "seeded"
    assert case(counting, x(3)).randomness == "uncontrolled"


def test_fixed_random_state_puts_everything_back() -> None:
    import numpy as np

    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    expected = torch.rand(2), random.random(), np.random.rand()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    with fixed_random_state(5):
        torch.rand(3), random.random(), np.random.rand(3)
    assert torch.equal(torch.rand(2), expected[0])
    assert (random.random(), np.random.rand()) == expected[1:]


def test_twin_is_in_float64_and_none_where_the_subject_refuses_it() -> None:
    def single_only(t: Tensor) -> Tensor:
        if t.dtype != torch.float32:
            raise TypeError("float32 only")
        return t * 2

    assert case(torch.sin, torch.randn(3)).exact.dtype == torch.float64
    assert case(single_only, torch.randn(3)).exact.dtype == torch.float32


def test_rounding_unit_is_that_of_the_arithmetic_not_of_the_dtype() -> None:
    assert case(torch.sin, x(8)).epsilon == 2.0**-52
    assert case(lambda t: t.float().sin().double(), x(8)).epsilon == 2.0**-23
    assert case(lambda t: t.bfloat16().double(), x(8)).epsilon == 2.0**-7
    assert case(lambda t: t.round(), 10 * x(8)).epsilon == 2.0**-52, "a step function is not low precision"


def test_output_that_does_not_require_grad() -> None:
    assert case(lambda t: t.detach() * 2, x(2)).detached
    c = case(lambda t: (t * 2, t.detach()), x(2))
    assert not c.detached
    assert [o.position for o in c.outputs] == [0]


def test_same_bits_counts_nan_and_signed_zero() -> None:
    nan = torch.tensor([float("nan")])
    assert same_bits(nan, nan.clone())
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.float64))


def test_surrogate_is_called_like_forward_and_its_shape_is_required() -> None:
    def two_outputs(t: Tensor) -> Any:
        return t, t

    sample = Sample((x(3),), surrogate=two_outputs)
    with pytest.raises(SampleError, match="surrogate returns outputs of the shapes"):
        Case(as_subject(torch.round), sample).pull_surrogate(x(3))
    bad = Sample((x(3),), surrogate=lambda: None)
    with pytest.raises(SampleError, match=r"surrogate raised TypeError.*same arguments as forward"):
        Case(as_subject(torch.round), bad).pull_surrogate(x(3))


class Stateful(Function):
    """Different on every call."""

    calls = 0

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        Stateful.calls += 1
        return t * Stateful.calls

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g


def test_state_is_uncontrolled_randomness() -> None:
    assert case(Stateful, x(2)).randomness == "uncontrolled"


def test_a_backward_that_changes_once_draws_no_random_numbers() -> None:
    def drawing(ctx: Any, g: Tensor) -> Tensor:
        return g * torch.rand_like(g)

    assert case(variant(Exp, "Draws", backward=drawing), x(3)).backward_randomness == "seeded"
    calls = 0

    def counting(ctx: Any, g: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return g * (2 if calls > 1 else 1)

    assert case(variant(Exp, "Counts", backward=counting), x(3)).backward_randomness == "none"


def test_a_draw_of_one_bit_counts_as_random() -> None:
    for seed in range(10):
        torch.manual_seed(seed)
        case = Case(as_subject(lambda t: t * (torch.rand(()) < 0.5)), Sample((torch.ones(1, dtype=torch.float64),)))
        assert case.draws


def test_a_recorded_call_draws_what_it_drew_in_the_program() -> None:
    def drop(t: Tensor) -> Tensor:
        return torch.nn.functional.dropout(t, 0.5)

    torch.manual_seed(1234)
    state, t = torch.get_rng_state(), x(40)
    drawn = drop(t)
    recorded = Case(as_subject(drop), Sample((t,), provenance="recorded", random_state=state))
    assert torch.equal(recorded.value(), drawn.detach().flatten())
    assert not torch.equal(case(drop, t).value(), recorded.value())
