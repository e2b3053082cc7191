"""``from_jax``: JAX functions with their derivatives of every order, in every mode."""

from __future__ import annotations

import functools
import gc
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import gradwright as gw
from gradwright.errors import (
    ArgumentError,
    DefinitionError,
    ExternalError,
    MissingDependencyError,
    OptionError,
    RuleError,
)
from gradwright.wrapping import jax_arrays

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy


def _wave(x, w):
    return jnp.sin(x * w).sum(-1) * x[..., 0]


def _wave_in_torch(x, w):
    return torch.sin(x * w).sum(-1) * x[..., 0]


wave = gw.from_jax(_wave)


@gw.from_jax(out=tuple[Tensor, Tensor])
def two(x, n: int = 2):
    """Two outputs and a constant."""
    return jnp.sin(x) ** n, jnp.sum(x * x)


@gw.from_jax
def line(params: dict, x: jax.Array) -> jax.Array:
    return params["w"] @ x + params["more"][0]


@pytest.fixture
def x() -> Tensor:
    return torch.tensor([0.3, -1.2, 0.8], dtype=torch.float64)


@pytest.fixture
def w() -> Tensor:
    return torch.tensor([1.1, 0.4, -0.7], dtype=torch.float64)


def _rows(*tensors: Tensor) -> Tensor:
    return torch.stack(tensors)


TRANSFORMS: dict[str, Any] = {
    "grad": lambda f, x, w: grad(f, (0, 1))(x, w),
    "jvp": lambda f, x, w: jvp(f, (x, w), (w, x)),
    "hessian": lambda f, x, w: hessian(f, (0, 1))(x, w),
    "third order": lambda f, x, w: jacfwd(jacrev(jacrev(f)))(x, w),
    "fourth order": lambda f, x, w: jacrev(jacfwd(jacfwd(jacrev(f, 1))))(x, w),
    "forward over forward": lambda f, x, w: jvp(lambda x: jvp(f, (x, w), (w, x))[1], (x,), (w,)),
    "vmap": lambda f, x, w: vmap(f, (0, None))(_rows(x, w), w),
    "vmap over columns": lambda f, x, w: vmap(f, (1, 0))(_rows(x, w).T, _rows(x, w)),
    "vmap of vmap": lambda f, x, w: vmap(vmap(f, (0, None)), (None, 0))(_rows(x, w), _rows(w, x)),
    "vmap of grad": lambda f, x, w: vmap(grad(f))(_rows(x, w), _rows(w, x)),
    "grad of vmap": lambda f, x, w: grad(lambda x: vmap(f, (0, None))(x, w).sum())(_rows(x, w)),
    "vmap of hessian": lambda f, x, w: vmap(hessian(f))(_rows(x, w), _rows(w, x)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_give_what_the_same_function_in_torch_gives(name, x, w) -> None:
    found, expected = TRANSFORMS[name](wave, x, w), TRANSFORMS[name](_wave_in_torch, x, w)
    torch.testing.assert_close(found, expected)


def test_autograd_in_all_its_modes(x, w) -> None:
    x.requires_grad_()
    w.requires_grad_()
    assert torch.autograd.gradcheck(
        wave, (x, w), check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )
    assert torch.autograd.gradgradcheck(wave, (x, w), check_fwd_over_rev=True)


def test_a_gradient_penalty_trains(x, w) -> None:
    x.requires_grad_()
    w.requires_grad_()

    def penalty(f: Any) -> Any:
        (g,) = torch.autograd.grad(f(x, w), x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), (x, w))

    torch.testing.assert_close(penalty(wave), penalty(_wave_in_torch))


def test_containers_constants_and_several_outputs(x) -> None:
    params = {"w": torch.randn(2, 3, dtype=torch.float64), "more": (torch.ones(2, dtype=torch.float64), 3)}
    params["w"].requires_grad_()
    x.requires_grad_()
    torch.testing.assert_close(line(params, x), params["w"] @ x + 1)
    found = torch.autograd.grad(line(params, x).sum(), (params["w"], x))
    torch.testing.assert_close(found[0], x.detach().expand(2, 3))
    torch.testing.assert_close(found[1], params["w"].detach().sum(0))
    assert torch.autograd.gradcheck(lambda v: two(v, 3), x)
    # one output unused, and another constant
    torch.testing.assert_close(torch.autograd.grad(two(x)[1], x)[0], 2 * x.detach())
    torch.testing.assert_close(two(x, n=1)[0], x.sin())
    per_sample = vmap(grad(lambda v, p: line(p, v).sum()), (0, None))(_rows(x, x).detach(), params)
    torch.testing.assert_close(per_sample, found[1].expand(2, 3))


def test_dicts_come_out_and_none_stays(x) -> None:
    @gw.from_jax
    def report(x, scale=None):
        return {"b": x * 2, "a": [jnp.sum(x), None]}

    x.requires_grad_()
    out = report(x)
    torch.testing.assert_close(out, {"b": 2 * x, "a": [x.sum(), None]})
    (found,) = torch.autograd.grad(out["a"][0] + out["b"][1], x)
    torch.testing.assert_close(found, torch.tensor([1.0, 3.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(jvp(lambda x: report(x)["b"], (x.detach(),), (x.detach(),))[1], 2 * x.detach())


def test_whole_numbers_go_in_and_come_out(x) -> None:
    @gw.from_jax
    def chosen(x, index, mask):
        return jnp.where(mask, x[index], 0.0), index + 1, mask

    x.requires_grad_()
    index, mask = torch.tensor([2, 0, 2]), torch.tensor([True, True, False])
    value, after, same = chosen(x, index, mask)
    assert after.dtype is torch.int64
    assert after.tolist() == [3, 1, 3]
    assert same.tolist() == mask.tolist()
    assert not after.requires_grad
    (found,) = torch.autograd.grad(value.sum(), x)
    torch.testing.assert_close(found, torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64))
    moved = jvp(lambda v: chosen(v, index, mask)[0], (x.detach(),), (x.detach(),))[1]
    torch.testing.assert_close(moved, torch.where(mask, x.detach()[index], 0.0))


def test_arrays_of_jax_and_numpy_are_constants(x) -> None:
    @gw.from_jax
    def weighted(x, w):
        return jnp.sum(x * w)

    x.requires_grad_()
    for array in (jnp.asarray([1.0, 2.0, 4.0]), x.detach().numpy()):
        (found,) = torch.autograd.grad(weighted(x, array), x)
        torch.testing.assert_close(found, torch.as_tensor(array.tolist(), dtype=torch.float64))


def test_complex_gradients_follow_the_convention_of_torch() -> None:
    @gw.from_jax
    def spin(z, x):
        return z * jnp.exp(1j * x) + jnp.abs(z) ** 2

    z = torch.tensor([0.3 + 0.4j, -1.0 + 0.2j], dtype=torch.complex128, requires_grad=True)
    x = torch.tensor([0.2, 0.9], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(spin, (z, x), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(spin, (z, x))
    torch.testing.assert_close(spin(z.conj(), x), z.conj() * torch.exp(1j * x) + z.abs() ** 2)


# -------------------------------------------------------------------- precision


def test_float64_needs_no_setting_and_changes_none(x, w) -> None:
    before = jax.config.jax_enable_x64
    assert not before, "the test needs JAX as it is installed"
    assert wave(x, w).dtype is torch.float64
    torch.testing.assert_close(wave(x, w), _wave_in_torch(x, w), rtol=1e-14, atol=0)
    assert jax.config.jax_enable_x64 == before
    assert jnp.zeros(1).dtype == jnp.float32


def test_a_backward_in_another_thread_is_as_precise(x, w) -> None:
    x.requires_grad_()
    out, found = wave(x, w), []
    threads = [threading.Thread(target=lambda: found.append(torch.autograd.grad(wave(x, w), x)[0])) for _ in range(4)]
    threads.append(threading.Thread(target=lambda: found.append(torch.autograd.grad(out, x)[0])))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    (expected,) = torch.autograd.grad(_wave_in_torch(x, w), x)
    assert len(found) == 5
    for each in found:
        torch.testing.assert_close(each, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_smaller_dtypes_stay(dtype, x) -> None:
    @gw.from_jax
    def padded(x):
        return jnp.sin(x) + jnp.zeros(3, dtype=x.dtype)

    @gw.from_jax
    def mixed(x):
        return jnp.sin(x) + jnp.zeros(3)

    x = x.to(dtype).requires_grad_()
    out = padded(x)
    assert out.dtype is dtype
    assert torch.autograd.grad(out.sum(), x)[0].dtype is dtype
    # what the function makes by itself has 32 bits, as in JAX without x64
    assert mixed(x).dtype is torch.float32


def test_x64_false_refuses_what_would_lose_digits(x) -> None:
    @gw.from_jax(x64=False)
    def picked(x, index):
        return x[index] + jnp.zeros(1)

    with pytest.raises(ArgumentError, match="picked: got a tensor of float64, and x64=False"):
        picked(x, torch.tensor([1]))
    assert picked(x.float(), torch.tensor([1])).dtype is torch.float32
    with pytest.raises(ArgumentError, match="values that 32 bits do not hold"):
        picked(x.float(), torch.tensor([2**40]))


# -------------------------------------------------------------------- memory


def _seen(tensor: Tensor) -> bool:
    """Tell whether JAX reads a tensor where it lies."""
    border = jax_arrays.Border("f", x64=True)
    with border.crossed([tensor], "it"):
        return bool(border.to_jax(tensor).unsafe_buffer_pointer() == tensor.data_ptr())


def test_memory_is_shared_where_it_has_no_gaps() -> None:
    whole = torch.randn(16, 8, dtype=torch.float64)
    assert _seen(whole)
    assert _seen(whole.T)
    assert _seen(whole.reshape(4, 4, 8).permute(1, 2, 0))
    assert not _seen(whole[:, ::2])
    assert not _seen(whole[:, :1].expand(16, 3))


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.T,
        lambda a: a[::2],
        lambda a: a[:, 1:],
        lambda a: a.reshape(-1)[1:],
        lambda a: a[:1].expand(4, 6),
        lambda a: a[:0],
        lambda a: a[0, 0],
        lambda a: a.permute(1, 0)[None, :, 2:3],
        lambda a: torch.view_as_complex(a.reshape(12, 2)).conj().imag,
    ],
)
def test_every_layout_has_the_right_values(view) -> None:
    @gw.from_jax
    def twice(x):
        return x * 2

    a = view(torch.arange(24, dtype=torch.float64).reshape(4, 6)).requires_grad_()
    out = twice(a)
    assert torch.equal(out, a * 2)
    assert out.is_contiguous()
    assert torch.equal(torch.autograd.grad(out.sum(), a)[0], torch.full_like(a, 2.0))


@pytest.mark.parametrize("jit", [True, False])
def test_results_share_memory_with_nothing(jit) -> None:
    kept = jnp.ones(4)

    @gw.from_jax(jit=jit)
    def same(x):
        y = x * 2
        return x, y, y, kept

    x = torch.ones(4)
    for _ in range(2):
        outs = same(x)
        assert len({out.data_ptr() for out in (*outs, x)}) == 5
        for out in outs:
            out.zero_()
        assert x.sum() == 4
        assert kept.sum() == 4


def test_an_edit_after_the_call_is_not_seen() -> None:
    @gw.from_jax
    def slow(x):
        return jax.lax.fori_loop(0, 50, lambda _, y: jnp.tanh(y @ y / 200), x)

    x = torch.randn(200, 200)
    expected = slow(x.clone())
    out = slow(x)
    x.zero_()
    torch.testing.assert_close(out, expected)


def test_results_live_as_long_as_they_are_used() -> None:
    @gw.from_jax
    def twice(x):
        return x * 2

    outs = [twice(torch.full((1000,), float(i))) for i in range(20)]
    gc.collect()
    assert [out[7].item() for out in outs] == [2.0 * i for i in range(20)]


# -------------------------------------------------------------------- what it is compiled to


def test_it_is_compiled_once_for_a_shape_and_constants(x) -> None:
    traced = []

    @gw.from_jax
    def counted(x, *, power: int = 2):
        traced.append(x.shape)
        return x**power

    for _ in range(3):
        counted(x)
        counted(x + 1)
    assert len(traced) == 1
    counted(x, power=3)
    counted(torch.ones(5, dtype=torch.float64))
    assert len(traced) == 3


def test_the_course_may_depend_on_values_without_jit(x) -> None:
    def branching(x):
        return jnp.sin(x) if x[0] > 0 else jnp.cos(x)

    with pytest.raises(ExternalError, match=r"branching: it raised .*values of arrays.*declare jit=False"):
        gw.from_jax(branching)(x)
    free = gw.from_jax(branching, jit=False)
    for v in (x, -x):
        v = v.clone().requires_grad_()
        (found,) = torch.autograd.grad(free(v).sum(), v)
        torch.testing.assert_close(found, v.detach().cos() if v[0] > 0 else -v.detach().sin())
    torch.testing.assert_close(jvp(free, (x,), (x,))[1], x * x.cos())


# -------------------------------------------------------------------- torch.compile and torch.export


@gw.from_jax
def recorded(x: jax.Array, w, scale: float = 1.0) -> jax.Array:
    return jnp.sum(jnp.sin(x * w), -1) * scale


def _recorded_in_torch(x, w, scale=1.0):
    return torch.sin(x * w).sum(-1) * scale


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_code_keeps_it_whole(backend, x, w) -> None:
    torch._dynamo.reset()

    def loss(f: Any, x: Tensor) -> Tensor:
        return f(x, w, 2.0).square() + x[0]

    x.requires_grad_()
    compiled = torch.compile(lambda x: loss(recorded, x), backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(x), loss(_recorded_in_torch, x))
    expected = torch.autograd.grad(loss(_recorded_in_torch, x), x)
    torch.testing.assert_close(torch.autograd.grad(compiled(x), x), expected)
    compiled = torch.compile(two, backend=backend, fullgraph=True)
    torch.testing.assert_close(
        torch.autograd.grad(compiled(x, 3)[0].sum(), x)[0], (3 * x.sin() ** 2 * x.cos()).detach()
    )


@pytest.mark.compile
def test_what_cannot_be_compiled_runs_outside_and_says_so(x, w) -> None:
    torch._dynamo.reset()
    x.requires_grad_()
    expected = torch.autograd.grad(_wave_in_torch(x, w), x)
    torch.testing.assert_close(torch.autograd.grad(torch.compile(wave, backend="aot_eager")(x, w), x), expected)
    with pytest.raises(Exception, match=r"must know how many arrays it returns"):
        torch.compile(wave, backend="aot_eager", fullgraph=True)(x, w)
    params = {"w": torch.eye(3, dtype=torch.float64), "more": [x.detach()]}
    compiled = torch.compile(lambda x: line(params, x), backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), x)[0], torch.ones_like(x))
    with pytest.raises(Exception, match=r"knows its argument 'params' as a tensor, and got a dict"):
        torch.compile(lambda x: line(params, x), backend="aot_eager", fullgraph=True)(x)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_transforms_in_compiled_code_are_right_or_refused(x, w) -> None:
    torch._dynamo.reset()
    ways: list[Any] = [
        lambda f, x: grad(f)(x, w),
        lambda f, x: vjp(f, x, w)[1](torch.ones((), dtype=x.dtype)),
        lambda f, x: jvp(f, (x, w), (w, x)),
        lambda f, x: vmap(f, (0, None))(_rows(x, w), w),
        lambda f, x: hessian(f)(x, w),
    ]
    for function in (recorded, wave):
        true = {recorded: _recorded_in_torch, wave: _wave_in_torch}[function]
        for way in ways:
            compiled = torch.compile(functools.partial(way, function), backend="aot_eager")
            torch.testing.assert_close(compiled(x), way(true, x))
    with pytest.raises(Exception, match=r"recorded: a transform of torch\.func"):
        torch.compile(lambda x: grad(recorded)(x, w), backend="aot_eager", fullgraph=True)(x)


@pytest.mark.compile
def test_an_exported_program_trains(x, w) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor, w: Tensor) -> Tensor:
            return recorded(x, w) * 2

    program = torch.export.export(Model(), (x, w)).module()
    x.requires_grad_()
    (found,) = torch.autograd.grad(program(x, w), x)
    torch.testing.assert_close(found, 2 * torch.autograd.grad(_recorded_in_torch(x, w), x)[0])


# -------------------------------------------------------------------- what goes wrong


def test_what_jax_raises_names_the_function_and_what_it_got(x) -> None:
    with pytest.raises(
        ExternalError, match=r"_wave: it raised TypeError.*with float64 \(3,\), float64 \(2,\)"
    ) as caught:
        wave(x, x[:2])
    assert "sin" in caught.value.traceback or "mul" in caught.value.traceback
    assert caught.value.__cause__ is not None


def test_an_array_handed_to_numpy_is_named(x) -> None:
    @gw.from_jax
    def mixed(x):
        return np.linalg.norm(np.sin(np.asarray(x)))

    with pytest.raises(ExternalError, match=r"mixed: it raised TracerArrayConversionError.*functions of jax\.numpy"):
        mixed(x)


def test_what_is_raised_in_a_derivative_says_so(x) -> None:
    @jax.custom_vjp
    def odd(x):
        return x * 2

    def back(_, g):
        raise ValueError("no derivative here")

    odd.defvjp(lambda x: (x * 2, None), back)
    x.requires_grad_()
    with pytest.raises(ExternalError, match="odd: its derivative raised ValueError: no derivative here"):
        gw.from_jax(odd)(x).sum().backward()


def test_a_custom_vjp_of_jax_is_used(x) -> None:
    @jax.custom_vjp
    def through(x):
        return jnp.round(x)

    through.defvjp(lambda x: (jnp.round(x), None), lambda _, g: (3 * g,))
    x.requires_grad_()
    assert torch.autograd.grad(gw.from_jax(through)(x).sum(), x)[0].tolist() == [3.0, 3.0, 3.0]
    with pytest.raises(ExternalError, match=r"through: its derivative raised TypeError.*forward-mode"):
        jvp(gw.from_jax(through), (x.detach(),), (x.detach(),))


def test_a_leaked_array_is_named(x) -> None:
    kept: list[Any] = []

    @gw.from_jax
    def leaky(x):
        kept.append(x)
        return kept[0] * 2

    leaky(x)
    with pytest.raises(ExternalError, match=r"leaky: it raised UnexpectedTracerError.*keeps an array of one call"):
        leaky(torch.ones(5, dtype=torch.float64))


def test_values_that_are_neither_tensors_nor_constants(x) -> None:
    class Box:
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return self is other

    with pytest.raises(ArgumentError, match="_wave: got a Box"):
        wave(x, Box())
    with pytest.raises(ExternalError, match="it raised"):
        wave(x, "text")


def test_containers_that_only_one_library_knows(x) -> None:
    class Box:
        def __init__(self, part: Any) -> None:
            self.part = part

    jax.tree_util.register_pytree_node(Box, lambda box: ((box.part,), None), lambda _, parts: Box(*parts))

    @gw.from_jax
    def unboxed(box, x):
        return box.part * x

    with pytest.raises(ArgumentError, match="only JAX takes apart"):
        unboxed(Box(x.clone().requires_grad_()), x)


def test_argnums_says_what_has_a_derivative(x, w) -> None:
    first = gw.from_jax(_wave, argnums="x")
    x.requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(first(x, w), x), torch.autograd.grad(_wave_in_torch(x, w), x))
    with pytest.raises(RuleError, match="a gradient of 'w' is needed"):
        first(x, w.requires_grad_())
    with pytest.raises(DefinitionError, match="argnums names 'y'; expected the name or position of an argument"):
        gw.from_jax(_wave, argnums="y")


def test_declarations_that_cannot_be_used() -> None:
    with pytest.raises(DefinitionError, match="expected a function of JAX arrays"):
        gw.from_jax(3)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="takes tensors already"):
        gw.from_jax(wave)
    with pytest.raises(OptionError, match="x64 is 'yes'"):
        gw.from_jax(_wave, x64="yes")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="out is 2; expected what it returns"):
        gw.from_jax(_wave, out=2)


def test_a_missing_jax_is_named(monkeypatch) -> None:
    jax_arrays.library.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "jax", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'gradwright\[jax\]'"):
        gw.from_jax(_wave)
    jax_arrays.library.cache_clear()


def test_it_is_checked_like_any_other(x, w) -> None:
    report = gw.check(recorded, x, w, level="quick")
    assert report, str(report)
    assert not report.unresolved, str(report)
    assert "declared: x: float64 (3,), w: float64 (3,)" in str(report)
