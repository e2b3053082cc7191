"""Adopted Functions of the kinds that published packages have and that transforms or autograd cannot follow.

Each kind is right by value, or refuses with our message; the packages themselves are in ``benchmarks``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

import gradwright as gw
from gradwright.errors import RuleError
from tests.authoring.old_functions import x

BATCH = torch.stack([x(3), x(3, seed=2), -x(3, seed=3)])


def same_everywhere(function: Any, truth: Any, *, second: bool = True) -> None:
    """Compare with a twin under transforms, over a batch whose elements take different ways."""
    ours = gw.adopt(function)

    def loss(f: Any) -> Any:
        return lambda t: (f(t) * torch.arange(1.0, 4.0)).sum()

    transforms = [vmap, lambda f: vmap(grad(loss(f))), lambda f: vmap(jacrev(f)), lambda f: vmap(jacfwd(f))]
    if second:
        transforms += [lambda f: vmap(hessian(loss(f))), lambda f: vmap(grad(lambda t: grad(loss(f))(t).sin().sum()))]
    for transform in transforms:
        torch.testing.assert_close(transform(ours)(BATCH), transform(truth)(BATCH))
    if second:
        leaf = x(3).requires_grad_()
        assert torch.autograd.gradgradcheck(ours, leaf)


class MasksInBackward(Function):
    """A mask that chooses: its result has a shape that depends on values."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.where(x > 0, x**2, x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        slope = torch.ones_like(x)
        slope[x > 0] = 2 * x[x > 0]
        return g * slope


class BranchesInBoth(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x if x.sum() > 0 else x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * g * x if x.sum() > 0 else 3 * g * x * x


class Inner(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.saved_tensors[0].exp()


class KeepsNested(Function):
    """A loss of the old style: another Function makes what it saves, and edits it afterwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        p = Inner.apply(x)
        value = p * 1
        p -= 1
        ctx.save_for_backward(p)
        return value

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * (ctx.saved_tensors[0] + 1)


class NestedInBackward(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * Inner.apply(ctx.saved_tensors[0])


class WritesOnCotangent(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = x.clone()
        out[..., 0] = 0
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        g[..., 0] = 0
        return g


class LooksAtRequiresGrad(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if x.requires_grad:
            ctx.save_for_backward(x.cos())
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.saved_tensors[0]


@pytest.mark.parametrize(
    ("function", "truth"),
    [
        (MasksInBackward, lambda x: torch.where(x > 0, x**2, x)),
        (BranchesInBoth, lambda x: torch.where(x.sum() > 0, x * x, x**3)),
        (KeepsNested, torch.exp),
        (NestedInBackward, torch.exp),
        (WritesOnCotangent, lambda x: x * torch.tensor([0.0, 1.0, 1.0])),
        (LooksAtRequiresGrad, torch.sin),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_right_everywhere(function: Any, truth: Any) -> None:
    same_everywhere(function, truth)


def test_numpy_in_forward() -> None:
    class Np(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return torch.from_numpy(np.sin(x.detach().numpy()))

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return g * x.cos()

    same_everywhere(Np, torch.sin)


class NpBoth(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return torch.from_numpy(g.detach().numpy() * np.cos(ctx.saved_tensors[0].detach().numpy()))


def test_numpy_in_both_has_first_derivatives_only() -> None:
    ours = gw.adopt(NpBoth)
    torch.testing.assert_close(vmap(ours)(BATCH), BATCH.sin())
    torch.testing.assert_close(vmap(grad(lambda t: ours(t).sum()))(BATCH), BATCH.cos())
    torch.testing.assert_close(jacrev(ours)(x(3)), x(3).cos().diag())
    with pytest.raises(RuleError, match=r"^NpBoth: .*numpy\(\) on a value that depends on the inputs.*gw.custom_grad"):
        jacfwd(ours)(x(3))
    leaf = x(3).requires_grad_()
    (g,) = torch.autograd.grad(ours(leaf).sum(), leaf, create_graph=True)
    torch.testing.assert_close(g.detach(), x(3).cos())
    with pytest.raises(RuleError, match=r"^NpBoth: its gradient was differentiated again, but its backward uses numpy"):
        torch.autograd.grad((g + leaf**3).sum(), leaf)


# -------------------------------------------------------------------- a backward that cuts its own graph


class Checkpointed(Function):
    """Differentiates in itself, without a graph for more."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            return torch.autograd.grad(x.sin(), x, g)[0]


class Detaching(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 3 * g * ctx.saved_tensors[0].detach() ** 2


class Switching(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        with torch.no_grad():
            slope = 3 * ctx.saved_tensors[0] ** 2
        return g * slope


CUTS = [(Checkpointed, torch.sin, "differentiates in itself"), (Detaching, lambda t: t**3, "uses detach")]
CUTS += [(Switching, lambda t: t**3, "computes it under no_grad")]


@pytest.mark.parametrize(("function", "truth", "why"), CUTS, ids=lambda v: getattr(v, "__name__", ""))
def test_a_backward_that_cuts_its_graph_has_first_derivatives_only(function: Any, truth: Any, why: str) -> None:
    def penalty(f: Any) -> Tensor:
        leaf = x(3).requires_grad_()
        (g,) = torch.autograd.grad(f(leaf).sum() + (leaf**4).sum(), leaf, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), leaf)
        return h

    ours = gw.adopt(function)
    assert not torch.allclose(penalty(function.apply), penalty(truth)), "PyTorch has learnt it"
    message = f"^{function.__name__}: its gradient was differentiated again, but its backward .*{why}"
    with pytest.raises(RuleError, match=message):
        penalty(ours)
    with pytest.raises(RuleError, match=message):
        grad(lambda t: grad(lambda t: (ours(t) + t**4).sum())(t).sum())(x(3))
    with pytest.raises(RuleError, match=f"^{function.__name__}: "):
        hessian(lambda t: (ours(t) + t**4).sum())(x(3))
    torch.testing.assert_close(vmap(grad(lambda t: ours(t).sum()))(BATCH), vmap(grad(lambda t: truth(t).sum()))(BATCH))
    torch.testing.assert_close(jacrev(ours)(x(3)), jacrev(truth)(x(3)))


@pytest.mark.parametrize("function", [Detaching, Switching])
def test_a_tangent_goes_through_what_is_cut_in_the_inputs_only(function: Any) -> None:
    t = torch.ones(3, dtype=torch.float64)
    torch.testing.assert_close(jvp(gw.adopt(function), (x(3),), (t,))[1], 3 * x(3) ** 2)


# -------------------------------------------------------------------- batches


def test_a_constant_output_has_the_gradient_of_its_own_element() -> None:
    """PyTorch's generated rule sums the cotangents of an output without a batch."""

    class Stitch(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, out: Tensor) -> Tensor:
            return out

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g, None

    leaf = BATCH.clone().requires_grad_()
    weight = torch.arange(9.0, dtype=torch.float64).reshape(3, 3)
    out = vmap(gw.adopt(Stitch), (0, None))(leaf, x(3))
    (weight * out).sum().backward()
    torch.testing.assert_close(leaf.grad, weight)


def test_what_is_kept_must_not_differ_from_one_element_to_the_next() -> None:
    class Reads(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.total = x.sum().item()
            return x * ctx.total

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * ctx.total

    assert torch.allclose(vmap(gw.adopt(Reads))(x(3).expand(2, 3)), x(3) * x(3).sum())
    with pytest.raises(RuleError, match=r"^Reads: what its forward keeps on ctx that is no tensor .* not seen to be"):
        vmap(gw.adopt(Reads))(BATCH)


def test_an_array_on_ctx_is_not_seen_to_be_the_same() -> None:
    class Spread(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.cosine = np.cos(x.detach().numpy())
            return x.sin()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * torch.from_numpy(ctx.cosine)

    with pytest.raises(RuleError, match=r"^Spread: what its forward keeps on ctx that is no tensor .* not seen to be"):
        vmap(gw.adopt(Spread))(BATCH)


@pytest.mark.parametrize("constant", [True, False])
def test_a_number_that_is_the_same_for_each_element(constant: bool) -> None:
    """It may be right to keep it, and is no reason to refuse a second derivative unless it is out of a tensor."""

    class Scaled(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            scale = float(len(x)) if constant else x.sum().item()
            ctx.save_for_backward(x)
            ctx.double = 2 * scale
            return scale * (x[x > 0] ** 2).sum()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return ctx.double * g * x.relu()

    batch = x(3).expand(2, 3)
    second = vmap(hessian(gw.adopt(Scaled)))
    if constant:
        torch.testing.assert_close(second(batch), torch.diag_embed(6 * (batch > 0).to(batch)))
    else:
        with pytest.raises(RuleError, match=r"^Scaled: its gradient .* a number or array .* and forward uses item"):
            second(batch)


def test_options_may_be_taken_out_of_a_dict() -> None:
    class Pops(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, options: dict[str, float]) -> Tensor:
            ctx.k = options.pop("k")
            return x * ctx.k if x.sum() > 0 else ctx.k * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * ctx.k, None

    torch.testing.assert_close(vmap(gw.adopt(Pops), (0, None))(BATCH, {"k": 2.0}), 2 * BATCH)


def test_random_numbers_follow_the_choice_of_vmap() -> None:
    class Drawn(Function):
        @staticmethod
        def forward(ctx: Any, p: Tensor) -> Tensor:
            return torch.bernoulli(p)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * torch.rand(g.shape, dtype=g.dtype)

    drawn, p = gw.adopt(Drawn), torch.full((4, 50), 0.5, dtype=torch.float64)

    def seeded(f: Any, *args: Any) -> Tensor:
        torch.manual_seed(0)
        return f(*args)

    same = seeded(vmap(drawn, randomness="same"), p)
    torch.testing.assert_close(same, seeded(drawn, p[0]).expand(4, 50))
    different = seeded(vmap(drawn, randomness="different"), p)
    assert len({tuple(row.tolist()) for row in different}) == 4
    with pytest.raises(RuleError, match=r"^Drawn: it draws random numbers under vmap; .*randomness='same'"):
        vmap(drawn)(p)
    # Forward mode is derived from the backward with the numbers that it draws.
    leaf = p[0].clone().requires_grad_()
    want = seeded(lambda t: torch.autograd.grad(drawn(t).sum(), t)[0], leaf)
    torch.testing.assert_close(seeded(lambda t: jvp(drawn, (t,), (torch.ones_like(t),))[1], p[0]), want)


# -------------------------------------------------------------------- arguments


def test_only_what_is_differentiated_is_needed() -> None:
    class Kernel(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
            if ctx.needs_input_grad[0]:
                raise RuntimeError("no gradient for x")
            ctx.save_for_backward(x)
            return x * scale

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return None, (g * ctx.saved_tensors[0]).sum()

    kernel, s, t = gw.adopt(Kernel), torch.tensor(1.5, dtype=torch.float64), x(3)
    torch.testing.assert_close(hessian(lambda s: kernel(t, s).sin().sum())(s), -(t**2 * (t * s).sin()).sum())
    torch.testing.assert_close(vmap(kernel, (0, None))(BATCH, s), BATCH * s)
    with pytest.raises(RuleError, match=r"^Kernel: its forward failed under a transform .*no gradient for x"):
        jacfwd(kernel)(x(3), s)


@pytest.mark.parametrize("transform", [vmap, jacrev, jacfwd])
def test_an_edit_without_mark_dirty_is_refused_under_transforms(transform: Any) -> None:
    class Halves(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.mul_(0.5)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g

    function = gw.adopt(Halves)
    leaf = x(3).requires_grad_() * 1
    with pytest.raises(RuleError, match=r"^Halves: its forward edited 'x' in place .*mark_dirty.*stay with its apply"):
        transform(function)(leaf)


class Operator:
    """An object made of tensors, as libraries of linear operators have them."""

    def __init__(self, diagonal: Tensor) -> None:
        self.diagonal = diagonal


class KeepsObject(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.operator = Operator(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 2 * g * ctx.operator.diagonal


def test_an_object_with_tensors_on_ctx() -> None:
    keeps = gw.adopt(KeepsObject)
    torch.testing.assert_close(grad(lambda t: keeps(t).sum())(x(3)), 2 * x(3))
    with pytest.raises(RuleError, match=r"^KeepsObject: its forward keeps an object with tensors in it on ctx"):
        vmap(keeps)(BATCH)
    for second in (hessian, lambda f: jacrev(grad(f))):
        with pytest.raises(RuleError, match=r"^KeepsObject: .*keeps an object with tensors in it on ctx"):
            second(lambda t: (keeps(t) + t**4).sum())(x(3))
    assert torch.autograd.gradgradcheck(keeps, x(3).requires_grad_())


def test_parameters_under_another_name_are_refused() -> None:
    """Inside a transform, the parameters of a module and those that are passed are two things."""

    class Adjoint(Function):
        @staticmethod
        def forward(ctx: Any, module: Any, x: Tensor, weight: Tensor) -> Tensor:
            ctx.module = module
            ctx.save_for_backward(x, weight)
            return module(x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, weight = ctx.saved_tensors
            with torch.enable_grad():
                return None, *torch.autograd.grad(ctx.module(x), (x, weight), g, allow_unused=True)

    module = torch.nn.Linear(3, 3, bias=False, dtype=torch.float64)
    adjoint = gw.adopt(Adjoint)
    assert adjoint(module, x(3), module.weight).requires_grad
    with pytest.raises(RuleError, match=r"^Adjoint: its backward differentiates in itself in a tensor that .* module"):
        grad(lambda w: adjoint(module, x(3), w).sum())(module.weight.detach())


def test_once_differentiable_runs_one_by_one() -> None:
    class Once(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return torch.from_numpy(x.detach().numpy() ** 2)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, g: Tensor) -> Any:
            return torch.from_numpy(2 * g.numpy() * ctx.saved_tensors[0].numpy())

    torch.testing.assert_close(vmap(grad(lambda t: gw.adopt(Once)(t).sum()))(BATCH), 2 * BATCH)
    with pytest.raises(RuleError, match=r"^Once: its gradient was differentiated again"):
        grad(lambda t: grad(lambda t: gw.adopt(Once)(t).sum())(t).sum())(x(3))
