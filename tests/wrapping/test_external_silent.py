"""Where wrapped code goes wrong without a word elsewhere: values, gradients and memory are right, or an error says why.

Most functions are called three times: the first call looks at the function, later ones take the short way.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import gradwright as gw
from gradwright.errors import ArgumentError, ExternalError, GradwrightError, OptionError, RuleError
from tests.wrapping.examples import EXAMPLES, W, mix, real, wrapped


def doubled(host: Callable[[Any], Any], **options: Any) -> Any:
    """Return a function whose gradient is twice the first element of the cotangent, whatever it returns."""

    def function(x: Any) -> Any:
        return host(x)

    made = gw.external(function, **options)
    made.register_vjp(lambda g, x: np.full(np.shape(x), 2.0 * g.flat[0] if g.size else 2.0))
    return made


def thrice(function: Any, x: Tensor, expected: Any, dtype: torch.dtype = torch.float64) -> Tensor:
    """Compare value and gradient in three calls; return the last result."""
    for _ in range(3):
        given = x.clone().requires_grad_()
        out = function(given)
        assert out.dtype is dtype
        torch.testing.assert_close(out.detach(), torch.as_tensor(expected, dtype=dtype), rtol=0, atol=0)
        (grad,) = torch.autograd.grad(out.sum(), given)
        assert grad.dtype is x.dtype
        torch.testing.assert_close(grad, torch.full_like(x, 2), rtol=0, atol=0)
    return out.detach()


# ---------------------------------------------------------------- the cases that have a number in the notes of torch


@pytest.mark.parametrize("way", ["vjp", "jvp", "jacobian"])
def test_forward_mode_is_not_zero(way: str) -> None:
    """A custom_op gives zeros under jvp and jacfwd, and no tangent under fwAD."""
    function, x, t = wrapped(EXAMPLES["vector"], way), real(0.7, -0.4, 1.3), real(1.0, 2.0, 3.0)
    expected = torch.tensor(W) @ (torch.cos(x) * t)
    torch.testing.assert_close(torch.func.jvp(function, (x,), (t,))[1], expected)
    torch.testing.assert_close(torch.func.jacfwd(function)(x) @ t, expected)
    with forward_ad.dual_level():
        torch.testing.assert_close(forward_ad.unpack_dual(function(forward_ad.make_dual(x, t))).tangent, expected)


def test_nested_forward_mode_is_not_zero() -> None:
    """A Function with a jvp gives zeros under jacfwd of jacfwd."""
    function, x = wrapped(EXAMPLES["scalar"], "vjp+jvp+hvp"), torch.tensor(0.7, dtype=torch.float64)
    second = torch.func.jacfwd(torch.func.jacfwd(function))(x)
    torch.testing.assert_close(second, 2 * torch.cos(x) - x * torch.sin(x))
    with pytest.raises(RuleError, match="first derivatives only"):
        torch.func.jacfwd(torch.func.jacfwd(wrapped(EXAMPLES["scalar"], "jvp")))(x)


@pytest.mark.parametrize("keep", [True, False])
def test_a_second_derivative_is_never_detached(keep: bool) -> None:
    """A backward in NumPy loses it, `once_differentiable` or not: the cotangent of a sum is a constant."""
    function, x = wrapped(EXAMPLES["vector"], "vjp"), real(0.7, -0.4, 1.3).requires_grad_()
    out = function(x).sum() if keep else function(x) @ real(1.0, -2.0)
    (grad,) = torch.autograd.grad(out, x, create_graph=True)
    assert grad.requires_grad
    with pytest.raises(RuleError, match="mix: its derivative was differentiated again") as caught:
        (grad**2).sum().backward()
    for remedy in ("@mix.register_hvp", "second_order='differences'", "@mix.vjp"):
        assert remedy in str(caught.value)


def test_a_gradient_that_is_only_kept_for_later_costs_nothing() -> None:
    """`create_graph=True` alone asks for no second derivative."""
    function, x = wrapped(EXAMPLES["vector"], "vjp"), real(0.7, -0.4, 1.3).requires_grad_()
    (grad,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    torch.testing.assert_close(grad.detach(), torch.cos(x.detach()) * torch.tensor(W).sum(0))


def test_a_scalar_argument_has_its_gradient() -> None:
    """TorchOpt gives zero for arguments without dimensions."""
    function = wrapped(EXAMPLES["scalar"], "vjp")
    x = torch.tensor(0.25, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(function(x), x)
    assert grad.shape == ()
    torch.testing.assert_close(grad, (torch.sin(x) + x * torch.cos(x)).detach())


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_code_reads_no_memory_of_another_dtype(backend: str) -> None:
    """With a wrong fake dtype inductor reads the bytes of one type as those of another."""
    function = doubled(lambda x: (2 * x).astype(np.float64), out=gw.like("x"))
    torch.compiler.reset()
    compiled = torch.compile(lambda x: function(x) * 1, backend=backend, fullgraph=True)
    with pytest.raises(ExternalError, match=r"returned float64 \(2,\); out declares float32"):
        compiled(torch.tensor([1.2, 1.8]))


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
def test_compiled_code_sees_the_declared_strides() -> None:
    x = torch.arange(6, dtype=torch.float64).reshape(2, 3)
    for out, stride in ((gw.like("x"), (3, 1)), (gw.spec((2, 3), order="F"), (1, 2))):
        for layout in (np.ascontiguousarray, np.asfortranarray):
            function = doubled(lambda x, layout=layout: layout(2 * x), out=out)
            torch.compiler.reset()
            found = torch.compile(lambda x, f=function: f(x), backend="aot_eager", fullgraph=True)(x)
            assert found.stride() == function(x).stride() == stride
            torch.testing.assert_close(found, 2 * x)


@pytest.mark.parametrize(
    ("kind", "rule", "text"),
    [
        ("vjp", lambda g, x: np.stack([g, g]), r"\(2, 3\) for 'x'; expected the shape \(3,\), that of the argument"),
        ("vjp", lambda g, x: g.sum(), r"\(\) for 'x'; expected the shape \(3,\)"),
        ("vjp", lambda g, x: g[:, None], r"\(3, 1\) for 'x'"),
        ("jvp", lambda t, x: np.stack([t, t]), r"\(2, 3\); expected the shape of the output, \(3,\)"),
        ("jvp", lambda t, x: t.sum(), r"\(\); expected the shape of the output"),
        ("jacobian", lambda x: np.ones(3), r"\(3,\) for 'x'; expected the shape \(3, 3\)"),
    ],
)
def test_a_derivative_of_another_shape_is_refused(kind: str, rule: Any, text: str) -> None:
    """The engine sums what has one axis more, and broadcasts what has one less."""
    function = gw.external(lambda x: 2 * x)
    getattr(function, f"register_{kind}")(rule)
    for _ in range(2):
        x = real(1, 2, 3).requires_grad_()
        with pytest.raises(ExternalError, match=text):
            torch.autograd.grad(function(x).sum(), x)


def test_a_buffer_that_a_solver_uses_again_is_copied() -> None:
    buffer = np.empty(3)

    def solve(x: Any) -> Any:
        return np.multiply(x, 2, out=buffer)

    function = doubled(solve)
    results = [function(scale * real(1, 2, 3)) for scale in (1, 10, 100, 1000)]
    for scale, result in zip((1, 10, 100, 1000), results):
        torch.testing.assert_close(result, 2 * scale * real(1, 2, 3))


def test_views_of_one_buffer_are_copied() -> None:
    buffer = np.empty(8)

    def solve(x: Any) -> Any:
        buffer[2:5] = 2 * x
        return buffer[2:5]

    function = doubled(solve)
    results = [function(scale * real(1, 2, 3)) for scale in (1, 10, 100)]
    for scale, result in zip((1, 10, 100), results):
        torch.testing.assert_close(result, 2 * scale * real(1, 2, 3))


def test_a_result_that_a_cache_keeps_is_copied() -> None:
    @functools.lru_cache
    def table(key: int) -> Any:
        return np.full(3, float(key))

    function = doubled(lambda x: table(3))
    for _ in range(3):
        out = function(real(1, 2, 3))
        assert torch.equal(out, real(3, 3, 3))
        out.mul_(5)


def test_results_that_the_function_keeps_are_copied() -> None:
    kept: list[Any] = []

    def host(x: Any) -> Any:
        kept.append(2 * x)
        return kept[-1]

    function = doubled(host)
    for _ in range(3):
        function(real(1, 2, 3)).add_(100)
        assert np.array_equal(kept[-1], [2, 4, 6])


@pytest.mark.parametrize("arguments", [1, 2])
def test_a_gradient_buffer_that_is_used_again_is_copied(arguments: int) -> None:
    buffer = np.empty(3)
    names = ("x", "y")[:arguments]
    host = (lambda x: 2 * x) if arguments == 1 else (lambda x, y: 2 * x + 2 * y)
    function = gw.external(host)

    @function.register_vjp
    def rule(g: Any) -> Any:
        np.multiply(g, 2, out=buffer)
        return buffer if arguments == 1 else dict.fromkeys(names, buffer)

    leaves = [real(1, 2, 3).requires_grad_() for _ in names]
    found = [torch.autograd.grad((scale * function(*leaves)).sum(), leaves) for scale in (1, 10, 100)]
    for scale, grads in zip((1, 10, 100), found):
        for grad in grads:
            assert torch.equal(grad, torch.full((3,), 2.0 * scale, dtype=torch.float64))
    if arguments == 2:
        found[0][0].add_(7)  # one buffer for two gradients is no memory that they share
        assert torch.equal(found[0][1], torch.full((3,), 2.0, dtype=torch.float64))


@pytest.mark.parametrize("host", [lambda x: x, lambda x: x[:], lambda x: x[1:], lambda x: x.reshape(3, 1)])
def test_a_result_in_the_memory_of_an_argument_is_copied(host: Any) -> None:
    function = doubled(host)
    for _ in range(3):
        x = real(1, 2, 3)
        function(x).add_(100)
        assert torch.equal(x, real(1, 2, 3))


def test_a_cotangent_that_is_returned_is_copied() -> None:
    function = gw.external(lambda x: 1 * x)
    function.register_vjp(lambda g: g)
    for _ in range(3):
        x, cotangent = real(1, 2, 3).requires_grad_(), real(1, 1, 1)
        torch.autograd.grad(function(x), x, cotangent)[0].add_(5)
        assert torch.equal(cotangent, real(1, 1, 1))


def test_an_argument_that_is_returned_as_gradient_is_copied() -> None:
    function = gw.external(lambda x: x**2 / 2)
    function.register_vjp(lambda g, x: x)
    for _ in range(3):
        x = real(1, 2, 3).requires_grad_()
        torch.autograd.grad(function(x).sum(), x)[0].add_(5)
        assert torch.equal(x.detach(), real(1, 2, 3))


# ---------------------------------------------------------------- writing into arguments


def overwrites(x: Any) -> Any:
    result = 2 * x
    x[:] = -1
    return result


@pytest.mark.parametrize("options", [{}, {"copy": True}, {"order": "C"}, {"dtype": "float64"}, {"cache": 4}])
def test_a_function_that_writes_gets_arrays_of_its_own(options: Any) -> None:
    """It is told that it may not write; where it must, it gets copies; the tensor is left alone."""
    function = doubled(overwrites, **options)
    for _ in range(4):
        x = real(1, 2, 3).requires_grad_()
        out = function(x)
        assert torch.equal(out.detach(), real(2, 4, 6))
        assert torch.equal(torch.autograd.grad(out.sum(), x)[0], real(2, 2, 2))
        assert torch.equal(x.detach(), real(1, 2, 3))


def test_a_function_that_writes_in_spite_of_it_is_told() -> None:
    """Compiled code that is given a bare address does not see that an array is read-only."""

    def host(x: Any) -> Any:
        result = 2 * x
        address = np.ctypeslib.as_array(
            np.ctypeslib.ctypes.cast(x.ctypes.data, np.ctypeslib.ctypes.POINTER(np.ctypeslib.ctypes.c_double)), (3,)
        )
        address[0] = 99
        return result

    with pytest.raises(ExternalError, match=r"wrote into its argument 'x'.*declare copy=True"):
        doubled(host)(real(1, 2, 3))
    assert torch.equal(doubled(host, copy=True)(x := real(1, 2, 3)), real(2, 4, 6))
    assert torch.equal(x, real(1, 2, 3))


def demanding(x: Any) -> Any:
    """Double what it gets, as compiled code does that asks for a buffer it may write into."""
    if not x.flags.writeable:
        raise ValueError("buffer source array is read-only")
    return 2 * x


def test_code_that_wants_writable_buffers_gets_copies() -> None:
    calls = []

    def host(x: Any) -> Any:
        calls.append(1)
        return demanding(x)

    function = gw.external(host)
    function.register_vjp(lambda g, x: demanding(g))
    thrice(function, real(1, 2, 3), [2, 4, 6])
    assert len(calls) == 5, "refused once, then two calls to compare, then one for each call"


@pytest.mark.parametrize("kind", ["vjp", "jvp", "jacobian", "hvp"])
@pytest.mark.parametrize("copy", [None, True])
def test_a_rule_that_writes_gets_arrays_of_its_own(kind: str, copy: Any) -> None:
    example = EXAMPLES["vector"]
    rule = example.rules[kind]
    function = gw.external(mix, out=example.out, copy=copy)
    if kind == "hvp":
        function.register_vjp(example.rules["vjp"])

    def writing(*values: Any) -> Any:
        found = rule(*values)
        for value in values:
            value[:] = 0
        return found

    asks = {"vjp": "g, x", "jvp": "t, x", "jacobian": "x", "hvp": "g, t, x"}[kind]
    getattr(function, f"register_{kind}")(eval(f"lambda {asks}: writing({asks})", {"writing": writing}))
    x = example.inputs[0]
    for _ in range(3):
        found = torch.func.jacrev(function)(x)
        torch.testing.assert_close(found, torch.func.jacrev(example.truth)(x))
        torch.testing.assert_close(torch.func.jacfwd(function)(x), found)
        if kind == "hvp":
            torch.testing.assert_close(torch.func.hessian(function)(x), torch.func.hessian(example.truth)(x))
    assert torch.equal(x, example.inputs[0])


def test_an_argument_is_whole_where_the_function_runs_again_for_a_rule() -> None:
    """What was kept is lost under vmap; a function that writes runs again, and its rule sees what it was given."""

    def host(x: Any) -> Any:
        result = gw.save(x**2, 2 * x)
        x[:] = 0
        return result

    function = gw.external(host, copy=True)
    function.register_vjp(lambda g, x, residuals: g * (residuals + x) * 2 / 3)
    x = real(1, 2, 3)
    for _ in range(2):
        found = torch.func.vmap(torch.func.grad(lambda x: function(x).sum()))(torch.stack([x, 2 * x]))
        torch.testing.assert_close(found, torch.stack([2 * x, 4 * x]))


def test_samples_do_not_share_what_a_function_writes_into() -> None:
    def host(x: Any, w: Any) -> Any:
        w *= x
        return w

    function = gw.external(host, copy=True)
    xs, w = torch.stack([real(1, 2), real(3, 4), real(5, 6)]), real(10, 100)
    assert torch.equal(torch.func.vmap(function, (0, None))(xs, w), xs * w)


def test_outputs_are_not_changed_by_rules() -> None:
    """A rule is called once for each unit vector with the same output, which was computed again for it."""
    function = gw.external(lambda x: np.exp(x))

    @function.register_vjp
    def rule(g: Any, out: Any) -> Any:
        result = g * out
        out *= 0
        return result

    x = real(0.5, -0.5)
    torch.testing.assert_close(torch.func.jacfwd(function)(x), torch.diag(torch.exp(x)))


# ---------------------------------------------------------------- layouts


def read_only(x: Any) -> Any:
    result = 2 * x
    result.setflags(write=False)
    return result


LAYOUTS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "read-only": (read_only, [2, 4, 6]),
    "read-only view": (lambda x: read_only(x)[:], [2, 4, 6]),
    "broadcast_to": (lambda x: np.broadcast_to(x.sum(), (3,)), [6, 6, 6]),
    "stride 0": (lambda x: np.lib.stride_tricks.as_strided(2 * x, (3,), (0,)), [2, 2, 2]),
    "negative strides": (lambda x: (2 * x)[::-1], [6, 4, 2]),
    "every second": (lambda x: np.repeat(2 * x, 2)[::2], [2, 4, 6]),
    "a number of Python": (lambda x: float(2 * x.sum()), 12),
    "np.float64": (lambda x: 2 * x.sum(), 12),
    "0-dim": (lambda x: np.array(2 * x.sum()), 12),
    "big endian": (lambda x: (2 * x).astype(">f8"), [2, 4, 6]),
    "masked, nothing masked": (lambda x: np.ma.masked_array(2 * x, mask=False), [2, 4, 6]),
    "a field of a record": (
        lambda x: np.array([(v, 0) for v in 2 * x], dtype=[("a", "f8"), ("b", "i4")])["a"],
        [2, 4, 6],
    ),
    "unaligned": (lambda x: np.frombuffer(b"0" + (2 * x).tobytes(), dtype="u1")[1:].view("f8"), [2, 4, 6]),
    "frombuffer": (lambda x: np.frombuffer((2 * x).tobytes()), [2, 4, 6]),
    "a tensor": (lambda x: torch.from_numpy(2 * x), [2, 4, 6]),
    "empty": (lambda x: np.empty((0, 3)), np.empty((0, 3))),
    "broadcast matrix": (lambda x: np.broadcast_to(2 * x, (2, 3)), [[2, 4, 6]] * 2),
}


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_results_of_any_layout(name: str, declared: bool) -> None:
    host, expected = LAYOUTS[name]
    out = gw.spec(np.shape(expected)) if declared else None
    result = thrice(doubled(host, out=out), real(1, 2, 3), expected)
    if result.numel():
        result[(0,) * result.ndim] = 77  # nothing else lies in the same place
        assert result.flatten()[1:].eq(77).sum() == 0


@pytest.mark.parametrize("name", [name for name, (_, expected) in LAYOUTS.items() if np.shape(expected) == (3,)])
def test_gradients_of_any_layout(name: str) -> None:
    host, expected = LAYOUTS[name]
    function = gw.external(lambda x: 1 * x)
    function.register_vjp(lambda g, x: host(x))
    for _ in range(3):
        x = real(1, 2, 3).requires_grad_()
        (grad,) = torch.autograd.grad(function(x).sum(), x)
        torch.testing.assert_close(grad, torch.tensor(expected, dtype=torch.float64))
        grad[0] = 77
        assert grad[1:].eq(77).sum() == 0


def test_fortran_order_is_kept_both_ways() -> None:
    seen = []

    def host(x: Any) -> Any:
        seen.append((x.flags.f_contiguous, x.ctypes.data))
        return np.asfortranarray(2 * x)

    x = torch.arange(6, dtype=torch.float64).reshape(2, 3).T.contiguous().T
    function = doubled(host)
    for _ in range(3):
        assert function(x).stride() == (1, 2)
    assert set(seen) == {(True, x.data_ptr())}, "without a copy"


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_order_that_is_declared(order: str) -> None:
    def host(x: Any) -> Any:
        assert x.flags.c_contiguous if order == "C" else x.flags.f_contiguous
        return 2 * x

    x = torch.arange(6, dtype=torch.float64).reshape(2, 3)
    for layout in (x, x.T, x[:, ::2], x.expand(2, 2, 3)):
        thrice(doubled(host, order=order), layout, 2 * layout)


@pytest.mark.parametrize(
    "x",
    [real(*range(6))[::2], real(1, 2, 3).expand(2, 3), real(*range(6)).reshape(2, 3).T, torch.ones(0, 2).double()],
)
def test_arguments_of_any_layout(x: Tensor) -> None:
    thrice(doubled(lambda x: 2 * x), x, 2 * x)


def test_copies_may_be_forbidden() -> None:
    function = doubled(lambda x: 2 * x, copy=False, order="C")
    thrice(function, real(1, 2, 3), [2, 4, 6])
    for x in (torch.ones(2, 3).double().T, real(1, 2).bfloat16()):
        with pytest.raises(ArgumentError, match=r"'x' is a tensor .* that must be copied .*with copy=False"):
            function(x)


# ---------------------------------------------------------------- dtypes


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("out", [None, gw.like(0)])
def test_results_have_the_dtype_of_the_arguments(dtype: torch.dtype, out: Any) -> None:
    thrice(doubled(lambda x: 2 * x, out=out), real(1, 2, 3).to(dtype), [2, 4, 6], dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("out", [None, gw.like(0)])
def test_the_dtype_in_which_it_computes(dtype: torch.dtype, out: Any) -> None:
    def host(x: Any) -> Any:
        assert x.dtype == np.float64
        return 2 * x

    thrice(doubled(host, dtype="float64", out=out), real(1, 2, 3).to(dtype), [2, 4, 6], dtype)


def test_autocast_leaves_the_dtype_alone() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        thrice(doubled(lambda x: 2 * x), real(1, 2, 3).float(), [2, 4, 6], torch.float32)
        thrice(doubled(lambda x: 2 * x), real(1, 2, 3).bfloat16(), [2, 4, 6], torch.bfloat16)


def test_whole_numbers_have_no_derivative() -> None:
    function = doubled(lambda x: np.round(x).astype(int))
    assert torch.equal(function(real(1.2, 2)), torch.tensor([1, 2]))
    for _ in range(2):
        with pytest.raises(ExternalError, match="returned int64, which has no derivative"):
            function(real(1.2, 2).requires_grad_())
    with torch.no_grad():
        assert not function(real(1.2, 2)).requires_grad


def test_whole_numbers_beside_a_result() -> None:
    function = gw.external(lambda x: (2 * x, np.argmax(x)))
    function.register_vjp(lambda g, x: 2 * g[0])
    for _ in range(3):
        x = real(1, 3, 2).requires_grad_()
        out, index = function(x)
        assert index.item() == 1
        assert not index.requires_grad
        assert torch.equal(torch.autograd.grad(out.sum(), x)[0], real(2, 2, 2))


@pytest.mark.parametrize(
    ("host", "text"),
    [
        (lambda x: (2 * x).astype(np.longdouble), r"dtype float128, which torch does not have.*astype\(np.float64\)"),
        (lambda x: (2 * x).astype(object), "dtype object"),
        (lambda x: np.array(["a"]), "dtype <U1"),
        (lambda x: np.datetime64("2020-01-01"), "dtype datetime64"),
        (lambda x: np.ma.masked_array(x, mask=[True, False, False]), r"masked array .*result.filled"),
        (lambda x: [1.0, 2.0], r"returned a list; expected an array .*np.asarray"),
        (lambda x: None, "returned None; .*does it end without `return`?"),
        (lambda x: {"a": x}, "returned a dict"),
        (lambda x: "text", "returned a str"),
        (lambda x: (x, None), "with None in it"),
        (lambda x: (v for v in x), "dtype object"),
        (lambda x: x.sum, "returned a"),
    ],
)
def test_what_torch_cannot_hold_is_refused(host: Any, text: str) -> None:
    for given in (real(1, 2, 3), real(1, 2, 3).requires_grad_()):
        with pytest.raises(ExternalError, match=f"function: it returned .*{text}|function: it .*{text}"):
            doubled(host)(given)


def negative_is_refused(x: Any) -> Any:
    if x.min() < 0:
        raise ValueError("it is negative")
    return x


def test_on_error_is_advised_where_it_would_help() -> None:
    plain, lenient = doubled(negative_is_refused), doubled(negative_is_refused, on_error="nan")
    with pytest.raises(ExternalError, match="on_error='nan' fills the results of failing samples"):
        torch.func.vmap(plain)(real(2, -1))
    for function in (plain, lenient):
        with pytest.raises(
            ExternalError, match=r"the traceback is above and in the attribute `traceback` of th\w+ error.$"
        ):
            function(real(-1))


def test_the_traceback_of_a_worker_is_not_above() -> None:
    with pytest.raises(ExternalError, match="expected a result; the traceback is in the attribute") as caught:
        torch.func.vmap(doubled(negative_is_refused, workers=2, releases_gil=True))(real(2, -1))
    assert caught.value.__cause__ is None
    assert "in negative_is_refused" in caught.value.traceback


def test_a_tensor_for_a_constant_is_refused() -> None:
    def power_of(x: Any, k: float) -> Any:
        return x**k

    power = gw.external(power_of)
    with pytest.raises(
        ArgumentError, match=r"'k' is a tensor, but it is declared as a constant.*or name it in argnums"
    ):
        power(real(1), real(2).requires_grad_())


def test_tensors_that_numpy_cannot_hold_are_refused() -> None:
    function = doubled(lambda x: 2 * x)
    for _ in range(2):
        with pytest.raises(ArgumentError, match=r"'x' is a tensor of layout torch.sparse_coo; .*to_dense"):
            function(torch.eye(3).to_sparse())
        with pytest.raises(ArgumentError, match=r"'x' is a tensor of dtype torch.float8_e4m3fn, which NumPy does not"):
            function(torch.ones(2).to(torch.float8_e4m3fn))
    cast = doubled(lambda x: 2 * x, dtype="float32", out=gw.spec((2,), torch.float32))
    assert torch.equal(cast(torch.ones(2).to(torch.float8_e4m3fn)), torch.full((2,), 2.0))


def test_devices_that_are_not_accepted() -> None:
    with pytest.raises(ArgumentError, match=r"'x' is on cpu; expected a tensor on cuda; write x.to\('cuda'\)"):
        doubled(lambda x: 2 * x, device_types="cuda")(real(1))
    thrice(doubled(lambda x: 2 * x, device_types=("cpu", "cuda")), real(1, 2, 3), [2, 4, 6])


@pytest.mark.parametrize("view", [torch.conj, lambda z: z.conj().imag, torch.imag, torch.real, lambda z: z.conj() * 1])
def test_flags_on_the_memory_of_another_tensor(view: Any) -> None:
    """A conjugated or negated tensor is a flag that `.numpy()` refuses, and `data_ptr` does not know."""
    z = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128)
    function = gw.external(lambda z: 2 * z)
    for _ in range(3):
        assert torch.equal(function(view(z)), 2 * view(z))


def test_complex_gradients_have_the_convention_of_torch() -> None:
    function = gw.external(lambda z: z**2)
    function.register_vjp(lambda g, z: g * np.conj(2 * z))
    grads = []
    for f in (function, torch.square):
        z = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128, requires_grad=True)
        grads += torch.autograd.grad(f(z).abs().sum(), z)
    torch.testing.assert_close(*grads)


def test_inference_mode() -> None:
    function = doubled(lambda x: 2 * x)
    for _ in range(3):
        with torch.inference_mode():
            x = real(1, 2, 3)
            assert torch.equal(function(x), real(2, 4, 6))
        assert torch.equal(function(x), real(2, 4, 6))


def test_a_saved_tensor_is_not_corrupted() -> None:
    """Writes through `.numpy()` do not count for autograd: a backward would use what was overwritten."""
    function = doubled(overwrites)
    x = real(1, 2, 3).requires_grad_()
    y = torch.exp(x)
    out = (function(y) * 1).sum()
    torch.testing.assert_close(torch.autograd.grad(out, x)[0], 2 * torch.exp(x.detach()))


def test_nothing_warns_of_arrays_that_may_not_be_written() -> None:
    function = doubled(read_only)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            out = function(real(1, 2, 3))
            out.add_(1)


@pytest.mark.parametrize(
    "host", [lambda x: np.abs(x), lambda x: np.linalg.norm(x) * np.ones(2), lambda x: np.array(x.real) ** 2 + 0 * x]
)
def test_complex_steps_that_lose_the_step_are_noticed(host: Any) -> None:
    """`abs`, `norm` and real work arrays drop the imaginary part, and its derivative would be zero."""
    function = gw.external(host, derivative=gw.fd(method="cs"))
    x = real(0.5, -1.5).requires_grad_()
    with pytest.raises(GradwrightError, match="complex"):
        torch.autograd.grad(function(x).sum(), x)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"order": "A"}, "order"),
        ({"copy": "yes"}, "copy"),
        ({"vmap_method": "loop"}, "vmap_method"),
        ({"max_order": 3}, "max_order"),
        ({"second_order": "fd"}, "second_order"),
        ({"on_error": "ignore"}, "on_error"),
        ({"cache": -1}, "cache"),
        ({"dtype": "int64"}, "dtype"),
        ({"dtype": "bfloat16"}, "dtype"),
        ({"derivative": "fd"}, "derivative"),
        ({"pure": False, "cache": 3}, "pure=False and cache"),
        ({"vmap_method": "workers"}, "vmap_method='workers' without workers"),
    ],
)
def test_options_are_checked(options: Any, text: str) -> None:
    with pytest.raises(OptionError, match=f"mix.*{text}"):
        gw.external(mix, **options)


# ---------------------------------------------------------------- complex numbers: one rule made of the other


def complex_example(inputs: str, outputs: str) -> tuple[Callable[..., Tensor], Tensor]:
    """Return a function of PyTorch between real and complex numbers that is not holomorphic, and a point."""
    real_point = torch.tensor([0.3, -1.1], dtype=torch.float64)
    point = real_point if inputs == "real" else torch.complex(real_point, real_point.flip(0) + 1)

    def function(z: Tensor) -> Tensor:
        value = z * z.conj() * torch.exp(1j * z)
        return value if outputs == "complex" else value.real + 2 * value.imag

    return function, point


@pytest.mark.parametrize("inputs", ["real", "complex"])
@pytest.mark.parametrize("outputs", ["real", "complex"])
@pytest.mark.parametrize("given", ["vjp", "jvp"])
def test_complex_numbers_move_in_two_directions(inputs: str, outputs: str, given: str) -> None:
    truth, z = complex_example(inputs, outputs)
    out = truth(z)
    function = gw.external(lambda z: truth(torch.tensor(z)).numpy(), out=gw.spec((2,), out.dtype))

    def vjp(g: Any, z: Any) -> Any:
        return torch.func.vjp(truth, torch.tensor(z))[1](torch.tensor(g))[0].numpy()

    def jvp(t: Any, z: Any) -> Any:
        return torch.func.jvp(truth, (torch.tensor(z),), (torch.tensor(t),))[1].numpy()

    function.register_vjp(vjp) if given == "vjp" else function.register_jvp(jvp)
    g, t = torch.randn_like(out), torch.randn_like(z)
    torch.testing.assert_close(torch.func.vjp(function, z)[1](g), torch.func.vjp(truth, z)[1](g))
    torch.testing.assert_close(torch.func.jvp(function, (z,), (t,)), torch.func.jvp(truth, (z,), (t,)))


def test_real_numbers_have_no_complex_jacobian() -> None:
    function = gw.external(lambda z: np.abs(z) ** 2, out=gw.spec((2,), torch.float64))
    function.register_jacobian(lambda z: np.diag(2 * z))
    z = torch.tensor([1 + 2j, 3j], dtype=torch.complex128, requires_grad=True)
    with pytest.raises(ExternalError, match="by 'z', which is complex, so that they have no complex derivative"):
        function(z).sum().backward()


# ---------------------------------------------------------------- Jacobians of several outputs, and of nothing


@pytest.mark.parametrize("size", [3, 0])
@pytest.mark.parametrize("way", [dict, tuple])
def test_the_jacobians_of_several_outputs_by_several_arguments(size: int, way: Any) -> None:
    function = gw.external(lambda x, y: (x * y.sum(), y * x.sum()), out=(gw.like("x"), gw.like("y")))

    @function.register_jacobian  # type: ignore[untyped-decorator]
    def jacobian(x: Any, y: Any) -> Any:
        first = np.eye(len(x)) * y.sum(), np.outer(x, np.ones_like(y))
        second = np.outer(y, np.ones_like(x)), np.eye(len(y)) * x.sum()
        return tuple(part if way is tuple else dict(zip("xy", part)) for part in (first, second))

    def truth(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * y.sum(), y * x.sum()

    x, y = torch.randn(size, dtype=torch.float64), torch.randn(2, dtype=torch.float64)
    for mode in (torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(mode(function, (0, 1))(x, y), torch.func.jacrev(truth, (0, 1))(x, y))


# ---------------------------------------------------------------- caches


class Settings:
    factor = 1.0


@pytest.mark.parametrize(("one", "other"), [(0.0, -0.0), ((1,), (True,)), ((1, 0.0), (1, -0.0)), (np.float64(1), 1.0)])
def test_constants_that_are_equal_and_not_the_same_are_cached_apart(one: Any, other: Any) -> None:
    seen: list[Any] = []
    function = gw.external(lambda x, k: (seen.append(repr(k)), x)[1] * 2, out=gw.like(0), argnums=0, cache=4)
    x = real(1.0)
    for _ in range(3):
        function(x, one)
        function(x, other)
    assert set(seen[-2:]) == {repr(one), repr(other)}
    assert len(seen) <= 3


def test_a_result_for_something_that_may_change_is_not_cached() -> None:
    function = gw.external(lambda x, settings: settings.factor * x, out=gw.like(0), argnums=0, cache=4)
    settings, x = Settings(), real(1.0)
    assert function(x, settings).item() == 1
    settings.factor = 2.0
    assert function(x, settings).item() == 2


# ---------------------------------------------------------------- the order in memory, on which compiled code relies


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("method", ["sequential", "broadcast_all", "workers"])
def test_every_array_has_the_declared_order(order: str, method: str) -> None:
    """A sample of a batch, one that is not batched, the points of a difference, cotangents and tangents."""
    seen: list[bool] = []

    def looked(*arrays: Any) -> None:
        seen.extend(a.flags.f_contiguous if order == "F" else a.flags.c_contiguous for a in arrays)

    def scale_vjp(g: Any, x: Any, w: Any) -> Any:
        looked(g, x, w)
        return {"x": np.ones_like(x) * (g * w).sum((-1, -2))[..., None], "w": x.sum(-1)[..., None, None] * g}

    def host(x: Any, w: Any) -> Any:
        looked(x, w)
        return x.sum(-1)[..., None, None] * w

    options: dict[str, Any] = {"workers": 2, "releases_gil": True} if method == "workers" else {}
    function = gw.external(
        host, out=gw.like("w"), order=order, vmap_method=method, second_order="differences", **options
    )
    function.register_vjp(scale_vjp)
    x, w = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 4, 5, dtype=torch.float64)

    def loss(function: Any) -> Any:
        return lambda x, w: function(x, w).square().sum()

    def truth(x: Tensor, w: Tensor) -> Tensor:
        return x.sum() * w

    for dims in ((0, 0), (0, None), (None, 0)):
        given = [t if dim == 0 else t[0] for t, dim in zip((x, w), dims)]
        found = torch.func.vmap(torch.func.grad(loss(function), (0, 1)), dims)(*given)
        torch.testing.assert_close(found, torch.func.vmap(torch.func.grad(loss(truth), (0, 1)), dims)(*given))
    torch.testing.assert_close(
        torch.func.hessian(loss(function))(x[0], w[0].T), torch.func.hessian(loss(truth))(x[0], w[0].T)
    )
    assert all(seen)
    assert len(seen) > 20
    if options:
        function.close()
