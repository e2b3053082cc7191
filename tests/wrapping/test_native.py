"""Functions of shared libraries: what they get and return, by value, and every mistake by its message."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import gradwright as gw
from examples import call_c
from gradwright.errors import ArgumentError, DefinitionError, ExternalError, RuleError
from gradwright.wrapping.routine import Routine
from tests.wrapping.compiled import library

CUBE = "n:int, x[n]:f8, y[n]:f8:out"
APPLY = "n:int, m:int, a[n,m]:f8, x[m]:f8, y[n]:f8:out"
GATHER = "n:int, m:int, x[n]:f8, at[m]:{}, y[m]:f8:out"
DOUBLE = torch.float64


@pytest.fixture(scope="module")
def routines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("native"), Path(__file__).with_name("routines.c"))


@pytest.fixture
def seen(routines: Path) -> Any:
    """Where the last call found its arrays."""
    address = ctypes.CDLL(str(routines)).address
    address.restype = ctypes.c_int64
    return address


def vector(*size: int, **options: Any) -> Tensor:
    return torch.randn(*size, dtype=DOUBLE, **options)


# --- values and derivatives -----------------------------------------------------------------------


def test_a_function_with_rules_of_its_own_library(routines: Path) -> None:
    cube = gw.native(
        routines,
        "cube",
        CUBE,
        vjp=("cube_vjp", "n:int, x[n]:f8, grad_y[n]:f8, grad_x[n]:f8:out"),
        hvp=("cube_hvp", "n:int, x[n]:f8, grad_y[n]:f8, tangent_x[n]:f8, grad_x[n]:f8:out"),
    )
    x = vector(4, requires_grad=True)
    assert torch.allclose(cube(x), x**3, rtol=1e-15)
    assert gradcheck(cube, x, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(cube, x)
    hessian = torch.func.hessian(lambda v: cube(v).sum())(x.detach())
    assert torch.allclose(hessian, torch.diag(6 * x.detach()), rtol=1e-14)
    batch = vector(3, 2, 4)
    assert torch.equal(torch.func.vmap(torch.func.vmap(cube))(batch), batch * batch * batch)


def test_rules_for_both_modes_and_two_arguments(routines: Path) -> None:
    apply = gw.native(
        routines,
        "apply_c",
        APPLY,
        vjp=("apply_vjp", "n:int,m:int,a[n,m]:f8,x[m]:f8,grad_y[n]:f8,grad_a[n,m]:f8:out,grad_x[m]:f8:out"),
        jvp=("apply_jvp", "n:int,m:int,a[n,m]:f8,x[m]:f8,tangent_a[n,m]:f8,tangent_x[m]:f8,tangent_y[n]:f8:out"),
    )
    a, x = vector(3, 2, requires_grad=True), vector(2, requires_grad=True)
    assert torch.allclose(apply(a, x), a @ x)
    assert gradcheck(apply, (a, x), check_forward_ad=True)
    still, t = a.detach(), vector(2)
    _, tangent = torch.func.jvp(lambda v: apply(still, v), (x.detach(),), (t,))  # a does not move
    assert torch.allclose(tangent, still @ t)
    (grad,) = torch.autograd.grad(apply(a, x).sum(), x, create_graph=True)
    with pytest.raises(RuleError, match="apply_c: its derivative was differentiated again"):
        grad.sum().backward()


def test_a_rule_in_python_asks_by_the_names_of_the_signature(routines: Path) -> None:
    dot = gw.native(routines, "dot", "n:i8, x[n]:f8, y[n]:f8 -> f8")

    @dot.register_vjp
    def dot_vjp(g: Any, x: Any, y: Any, needs: Any) -> dict[str, Any]:
        return {"x": g * y if needs["x"] else None, "y": g * x}

    x, y = vector(5, requires_grad=True), vector(5, requires_grad=True)
    assert dot(x, y).shape == ()
    assert torch.allclose(dot(x, y=y), x @ y)
    assert gradcheck(dot, (x, y))


def test_rules_on_tensors_call_the_library_again(routines: Path) -> None:
    dot = gw.native(routines, "dot", "n:i8, x[n]:f8, y[n]:f8 -> f8", vjp=lambda g, x, y: {"x": g * y, "y": g * x})
    square = gw.native(routines, "cube", CUBE)
    square.vjp(lambda g, x: g * 3 * x * x)
    x = vector(3, requires_grad=True)
    assert gradcheck(square, x)
    assert gradgradcheck(square, x)
    with pytest.raises(RuleError, match="dot: its derivative was differentiated again"):
        torch.func.hessian(lambda v: dot(v, v))(x.detach())


def test_without_rules_differences_do(routines: Path) -> None:
    cube = gw.native(routines, "cube", CUBE, derivative=gw.fd())
    x = vector(4, requires_grad=True)
    (grad,) = torch.autograd.grad(cube(x).sum(), x)
    assert torch.allclose(grad, 3 * x.detach() ** 2, rtol=1e-6)


def test_without_anything_a_derivative_is_refused(routines: Path) -> None:
    cube = gw.native(routines, "cube", CUBE)
    with pytest.raises(RuleError, match=r"cube: a derivative was asked for, but it has none.*register_vjp"):
        cube(vector(4, requires_grad=True)).sum().backward()


def test_several_outputs_by_address(routines: Path) -> None:
    moments = gw.native(
        routines,
        "moments",
        "n:int, x[n]:f8, *first:f8:out, *second:f8:out",
        vjp=("moments_vjp", "n:int, x[n]:f8, grad_first:f8, grad_second:f8, grad_x[n]:f8:out"),
    )
    x = vector(4, requires_grad=True)
    first, second = moments(x)
    assert torch.allclose(first, x.sum())
    assert torch.allclose(second, (x * x).sum())
    assert gradcheck(moments, x)
    (grad,) = torch.autograd.grad(moments(x)[1], x)  # the other cotangent is zero
    assert torch.allclose(grad, 2 * x.detach())


def test_numbers_by_value_may_have_derivatives(routines: Path) -> None:
    def vjp(g: Any, x: Any, width: Any, out: Any) -> dict[str, Any]:
        return {"x": -g * out * x / width**2, "width": g * out * x**2 / width**3}

    gauss = gw.native(routines, "gauss", "x:f8, width:f8 -> f8", vjp=vjp)
    x, width = vector((), requires_grad=True), torch.tensor(1.5, dtype=DOUBLE, requires_grad=True)
    assert torch.allclose(gauss(x, width), torch.exp(-(x**2) / (2 * width**2)))
    assert gradcheck(gauss, (x, width))

    one = gw.native(routines, "gauss", "x:f8, width:f8 -> f8", argnums="x", vjp=lambda g, x, out: -g * out * x)
    assert gradcheck(lambda v: one(v, 1.0), x)
    with pytest.raises(ArgumentError, match="gauss: 'width' is a tensor"):
        one(x, width)


def test_what_is_done_in_place_is_done_to_a_copy(routines: Path) -> None:
    scale = gw.native(
        routines,
        "scale",
        "*n:int, *by:f8, x[n]:f8:inout, *info:int:status",
        vjp=("scale", "*n:int, *by:f8, grad_x[n]:f8:inout, *info:int:status"),
        codes={-3: "it would be zero"},
    )
    x = vector(4, requires_grad=True)
    before = x.detach().clone()
    assert torch.equal(scale(2.0, x), 2 * before)
    assert torch.equal(x, before)
    assert gradcheck(lambda v: scale(3.0, v), x)
    with pytest.raises(ExternalError, match=r"scale: .*scale returned the code -3, it would be zero \(expected 0\)"):
        scale(0.0, x)


def test_whole_numbers_come_back_too(routines: Path) -> None:
    def vjp(g: Any, x: Any, out: Any) -> Any:
        grad = np.zeros_like(x)
        grad[out[0]] = g[1]
        return grad

    largest = gw.native(routines, "largest", "n:int, x[n]:f8, *where:i8:out, *value:f8:out", vjp=vjp)
    x = torch.tensor([1.0, 5.0, 2.0], dtype=DOUBLE, requires_grad=True)
    where, value = largest(x)
    assert (where.item(), where.dtype, value.item()) == (1, torch.int64, 5.0)
    value.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 1, 0]


def test_values_that_are_always_passed_and_memory_to_work_in(routines: Path) -> None:
    differences = gw.native(routines, "differences", "n:int, m:int=n-1, x[n]:f8, work[n]:f8:work, y[m]:f8:out")
    x = vector(5)
    assert torch.equal(differences(x), x.diff())
    with pytest.raises(ArgumentError, match=r"differences: 'y' would have the shape \(-1,\), since .* m is -1"):
        differences(vector(0))


# --- memory ---------------------------------------------------------------------------------------


def test_nothing_is_copied_either_way(routines: Path, seen: Any) -> None:
    cube = gw.native(routines, "cube", CUBE)
    cube(vector(4))
    x = vector(4)
    y = cube(x)
    assert (seen(0), seen(1)) == (x.data_ptr(), y.data_ptr())
    empty = cube(vector(0))
    assert empty.shape == (0,)


def test_columns_first_is_copied_only_where_it_must(routines: Path, seen: Any) -> None:
    apply = gw.native(routines, "apply_f", APPLY.replace("a[n,m]:f8", "a[n,m]:f8:F"))
    strict = gw.native(routines, "apply_f", APPLY.replace("a[n,m]:f8", "a[n,m]:f8:F"), copy=False)
    a, x = vector(3, 2), vector(2)
    assert torch.allclose(apply(a, x), a @ x)
    assert seen(0) != a.data_ptr()
    turned = vector(2, 3).T
    assert torch.allclose(apply(turned, x), turned @ x)
    assert seen(0) == turned.data_ptr()
    assert torch.allclose(strict(turned, x), turned @ x)
    with pytest.raises(ArgumentError, match="apply_f: 'a' does not lie in memory in the order F, with copy=False"):
        strict(a, x)
    assert torch.allclose(apply(vector(6, 4)[::2, ::2], x).isfinite(), torch.ones(3, dtype=torch.bool))


def test_an_array_at_an_odd_address_is_copied(routines: Path, seen: Any) -> None:
    cube = gw.native(routines, "cube", CUBE)
    x = torch.frombuffer(bytearray(33), dtype=DOUBLE, offset=1)
    assert cube(x).tolist() == [0, 0, 0, 0]
    assert seen(0) % 8 == 0
    with pytest.raises(ArgumentError, match="cube: 'x' does not lie in memory where its type may, with copy=False"):
        gw.native(routines, "cube", CUBE, copy=False)(x)


def test_what_is_written_columns_first_comes_back_so(routines: Path, seen: Any) -> None:
    table = gw.native(routines, "table_f", "n:int, m:int, a[n,m]:f8:F:out, *x:f8", argnums="x")
    table(2, 3, vector(()))
    found = table(2, 3, vector(()))
    assert found.tolist() == [[0, 1, 2], [10, 11, 12]]
    assert found.stride() == (1, 2)
    assert seen(1) == found.data_ptr()


def test_a_function_that_writes_into_what_it_declares_as_given_is_caught(routines: Path) -> None:
    writes = gw.native(routines, "writes", "n:int, x[n]:f8, y[n]:f8:out")
    with pytest.raises(ExternalError, match=r"writes: it wrote into its argument 'x'"):
        writes(vector(3))


# --- what is handed over is looked at -------------------------------------------------------------


def test_sizes_must_agree(routines: Path) -> None:
    apply = gw.native(routines, "apply_c", APPLY)
    with pytest.raises(ArgumentError, match=r"apply_c: 'x' has the shape \(4,\); expected \(2,\), .* m is 2"):
        apply(vector(3, 2), vector(4))
    with pytest.raises(ArgumentError, match=r"apply_c: 'a' has 1 dimensions, of sizes \(3,\); expected 2: a\[n,m\]"):
        apply(vector(3), vector(3))
    double = gw.native(routines, "cube", "n:int, x[n]:f8, z[2*n+1]:f8, y[n]:f8:out")
    with pytest.raises(ArgumentError, match=r"cube: 'z' has the shape \(6,\); expected \(7,\)"):
        double(vector(3), vector(6))


def test_other_dtypes_are_cast_there_and_back(routines: Path) -> None:
    cube = gw.native(routines, "cube", CUBE, vjp=lambda g, x: 3 * g * x * x)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.tensor([0.5, 3.0], dtype=dtype, requires_grad=True)
        y = cube(x)
        y.sum().backward()
        assert (y.dtype, y.tolist()) == (dtype, [0.125, 27.0])
        assert x.grad is not None
        assert (x.grad.dtype, x.grad.tolist()) == (dtype, [0.75, 27.0])
    with pytest.raises(ArgumentError, match=r"cube: 'x' is int64; expected float64 \(f8\); write x.to\(torch.float64"):
        cube(torch.arange(3))
    with pytest.raises(ArgumentError, match="cube: 'x' is complex128; expected float64"):
        cube(vector(3).to(torch.complex128))


def test_single_precision_loses_nothing_unasked(routines: Path) -> None:
    single = "n:int, x[n]:f4, y[n]:f4:out"
    cube = gw.native(routines, "cube_f4", single)
    x = torch.tensor([0.5, 3.0])
    assert cube(x).tolist() == [0.125, 27.0]
    assert cube(x.half()).dtype is torch.float32
    with pytest.raises(ArgumentError, match=r"cube_f4: 'x' is float64; expected float32 \(f4\).*dtype='float32'"):
        cube(x.double())
    cast = gw.native(routines, "cube_f4", single, dtype="float32")
    assert cast(x.double()).dtype is DOUBLE


def test_whole_numbers_are_handed_over_where_they_fit(routines: Path) -> None:
    x = vector(4)
    at = torch.tensor([3, 0, 0])
    for kind in ("i4", "i8", "int"):
        gather = gw.native(routines, f"gather_{kind.replace('int', 'i4')}", GATHER.format(kind))
        assert torch.equal(gather(x, at), x[at])
        assert torch.equal(gather(x, at.int()), x[at])
        with pytest.raises(ArgumentError, match="'at' is float64; expected int"):
            gather(x, at.double())
    small = gw.native(routines, "gather_i4", GATHER.format("i4"))
    with pytest.raises(ArgumentError, match=r"gather_i4: 'at' has the value 2147483648, which i4 does not hold.*as i8"):
        small(x, torch.tensor([0, 2**31]))
    strict = gw.native(routines, "gather_i4", GATHER.format("i4"), copy=False)
    with pytest.raises(ArgumentError, match=r"gather_i4: 'at' is int64, and declared i4, with copy=False"):
        strict(x, at)


def test_a_number_that_the_type_does_not_hold_is_refused(routines: Path) -> None:
    rows = gw.native(routines, "cube", "n:int, m:int, x[n,m]:f8, y[m]:f8:out")
    with pytest.raises(ArgumentError, match=r"cube: 'n' is 2147483648, which int does not hold.*declare it as i8"):
        rows(torch.empty(2**31, 0, dtype=DOUBLE))
    table = gw.native(routines, "table_f", "n:int, m:int, a[n,m]:f8:F:out, *x:f4", argnums="x")
    with pytest.raises(ArgumentError, match="table_f: 'm' is -2147483649, which int does not hold"):
        table(1, -(2**31) - 1, vector(()))
    with pytest.raises(ArgumentError, match=r"table_f: 'x' is 1e\+300, which f4 does not hold.*as f8"):
        table(1, 1, torch.tensor(1e300, dtype=DOUBLE))
    gauss = gw.native(routines, "gauss", "x:f8, width:f8 -> f8", argnums="x")
    assert gauss(vector(()), float("inf")).item() == 1
    assert gauss(vector(()), 1).item() < 1
    with pytest.raises(ArgumentError, match=r"gauss: 'width' is 1000.*, which f8 does not hold"):
        gauss(vector(()), 10**400)
    with pytest.raises(ArgumentError, match=r"table_f: 'x' is an array of shape \(2,\); expected a number"):
        table(1, 1, vector(2))
    with pytest.raises(ArgumentError, match="table_f: 'n' is a float; expected a whole number"):
        table(1.5, 1, vector(()))


def test_codes_tell_of_errors(routines: Path) -> None:
    root = gw.native(
        routines, "positive_root", "n:int, x[n]:f8, y[n]:f8:out -> int", codes={2: "an element is negative"}
    )
    assert root(vector(3).abs()).shape == (3,)
    with pytest.raises(ExternalError, match=r"returned the code 2, an element is negative \(expected 0\); it was call"):
        root(-torch.ones(3, dtype=DOUBLE))
    with pytest.raises(ExternalError, match=r"returned the code 1 \(expected 0\)"):
        root(vector(4).abs())
    lenient = gw.native(routines, "positive_root", "n:int, x[n]:f8, y[n]:f8:out -> int(0, 1)", on_error="nan")
    assert lenient(vector(4).abs()).shape == (4,)
    rows = torch.func.vmap(lenient)(torch.tensor([[4.0], [-1.0], [9.0]], dtype=DOUBLE))
    assert torch.equal(rows.nan_to_num(nan=-1.0), torch.tensor([[2.0], [-1.0], [3.0]], dtype=DOUBLE))
    with pytest.raises(ExternalError, match=r"code 2.*at sample 1 of the batch") as caught:
        torch.func.vmap(root)(torch.tensor([[4.0], [-1.0]], dtype=DOUBLE))
    assert caught.value.index == (1,)


# --- what cannot be used is refused when it is declared -------------------------------------------


def test_libraries_and_functions_that_are_not_there(routines: Path, tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=r"kube: the library has no function 'kube'.*extern"):
        gw.native(routines, "kube", CUBE)
    with pytest.raises(DefinitionError, match=r"cube: the library '.*nothing.so' cannot be loaded.*correct the path"):
        gw.native(tmp_path / "nothing.so", "cube", CUBE)
    (tmp_path / "text.so").write_text("text")
    with pytest.raises(DefinitionError, match=r"cannot be loaded \(.*\); expected a shared library for this machine"):
        gw.native(tmp_path / "text.so", "cube", CUBE)
    with pytest.raises(DefinitionError, match=r"cube: the library is an int; expected the path"):
        gw.native(3, "cube", CUBE)
    with pytest.raises(DefinitionError, match=r"cube: the library is a ctypes.PyDLL, whose functions hold the GIL"):
        gw.native(ctypes.PyDLL(str(routines)), "cube", CUBE)
    with pytest.raises(DefinitionError, match="function: symbol is None; expected the name"):
        gw.native(routines, signature=CUBE)
    with pytest.raises(DefinitionError, match="native: no signature was given"):
        gw.native(routines, "cube")


def test_a_library_in_the_current_folder_needs_its_folder(routines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(routines.parent)
    with pytest.raises(DefinitionError, match=f"write ./{routines.name}"):
        gw.native(routines.name, "cube", CUBE)
    cube = gw.native(f"./{routines.name}", "cube", CUBE)
    monkeypatch.chdir("/")
    assert pickle.loads(pickle.dumps(cube.host))(np.array([2.0])).tolist() == [8.0]


def test_what_ctypes_has_loaded_can_be_given(routines: Path) -> None:
    loaded = ctypes.CDLL(str(routines))
    rule = "n:int, x[n]:f8, grad_y[n]:f8, grad_x[n]:f8:out"
    x = vector(3, requires_grad=True)
    for cube in (
        gw.native(loaded, "cube", CUBE, vjp=("cube_vjp", rule)),
        gw.native(loaded.cube, signature=CUBE, vjp=(loaded.cube_vjp, rule)),
    ):
        assert gradcheck(cube, x)
        with pytest.raises(ArgumentError, match="cube: it is to be sent to another process, but its library is a"):
            pickle.dumps(cube.host)
    assert loaded.cube.argtypes is None, "the function of others is left as it is"
    with pytest.raises(DefinitionError, match="cube_vjp: the symbol 'cube_vjp' was given with a function of ctypes"):
        gw.native(loaded.cube, signature=CUBE, vjp=("cube_vjp", rule))


def test_rules_with_names_that_mean_nothing(routines: Path) -> None:
    with pytest.raises(
        DefinitionError, match=r"cube_vjp: the signature of this VJP asks for 'g'; expected one of x, y"
    ):
        gw.native(routines, "cube", CUBE, vjp=("cube_vjp", "n:int, x[n]:f8, g[n]:f8, grad_x[n]:f8:out"))
    with pytest.raises(DefinitionError, match=r"cube_vjp: .* VJP returns out; expected grad_x"):
        gw.native(routines, "cube", CUBE, vjp=("cube_vjp", "n:int, x[n]:f8, grad_y[n]:f8, out[n]:f8:out"))
    with pytest.raises(DefinitionError, match=r"apply_vjp: .* VJP takes 'grad_x'; expected it to be written.*`:out`"):
        unmarked = "n:int,m:int,a[n,m]:f8,x[m]:f8,grad_y[n]:f8,grad_a[n,m]:f8:out,grad_x[m]:f8"
        gw.native(routines, "apply_c", APPLY, vjp=("apply_vjp", unmarked))
    with pytest.raises(DefinitionError, match=r"cube: vjp is 'cube_vjp'; .*write vjp=\('cube_vjp', signature\)"):
        gw.native(routines, "cube", CUBE, vjp="cube_vjp")  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="cube_jvp: the library has no function"):
        gw.native(routines, "cube", CUBE, jvp=("cube_jvp", "n:int, tangent_x[n]:f8, tangent_y[n]:f8:out"))


# --- threads, processes, compiled code ------------------------------------------------------------


def test_several_threads_are_in_it_at_once(routines: Path) -> None:
    met = ctypes.CDLL(str(routines)).met
    meet = gw.native(routines, "meet", CUBE, workers=2)
    rows = vector(6, 3)
    assert torch.equal(torch.func.vmap(meet)(rows), rows)
    assert met() == 2


def test_a_crash_in_a_process_of_its_own_is_an_error(routines: Path) -> None:
    crash = gw.native(routines, "crash", CUBE, workers=1, releases_gil=False)
    rows = torch.ones(3, 2, dtype=DOUBLE)
    try:
        assert torch.equal(torch.func.vmap(crash)(rows), rows)
        rows[1] = -1
        with pytest.raises(ExternalError, match=r"crash: .*at sample 1 of the batch") as caught:
            torch.func.vmap(crash)(rows)
        assert caught.value.index == (1,)
    finally:
        crash.close()


def test_another_process_loads_the_library_again(routines: Path) -> None:
    again = pickle.loads(pickle.dumps(gw.native(routines, "cube", CUBE).host))
    assert isinstance(again, Routine)
    assert again(np.array([2.0, 3.0])).tolist() == [8.0, 27.0]


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_code_keeps_it(backend: str, routines: Path) -> None:
    cube = gw.native(routines, "cube", CUBE, vjp=("cube_vjp", "n:int, x[n]:f8, grad_y[n]:f8, grad_x[n]:f8:out"))
    table = gw.native(
        routines, "table_f", "n:int, m:int, a[n,m]:f8:F:out, *x:f8", argnums="x", vjp=lambda g: 0 * g[0, 0]
    )

    def loss(x: Tensor) -> Tensor:
        return (table(x.shape[0], 3, x[0]) * cube(2 * x)[:, None]).sum()

    compiled = torch.compile(loss, backend=backend, fullgraph=True, dynamic=True)
    for n in (4, 7):
        x = vector(n, requires_grad=True)
        (expected,) = torch.autograd.grad(loss(x), x)
        (found,) = torch.autograd.grad(compiled(x), x)
        assert torch.allclose(compiled(x), loss(x), rtol=1e-12)
        assert torch.allclose(found, expected, rtol=1e-12)


# --- other languages ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swing(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return call_c.pendulum(library(tmp_path_factory.mktemp("c"), call_c.SOURCES / "pendulum.c"))


@pytest.fixture(scope="module")
def tridiagonal(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return call_c.tridiagonal(library(tmp_path_factory.mktemp("cpp"), call_c.SOURCES / "solver.cpp"))


def test_a_simulation_in_c(swing: Any) -> None:
    start, friction = vector(2, requires_grad=True), torch.tensor(0.1, dtype=DOUBLE, requires_grad=True)

    def run(start: Tensor, friction: Tensor) -> Tensor:
        return swing(20, 0.1, start, friction)  # type: ignore[no-any-return]

    angles = []
    angle, speed = start
    for _ in range(20):
        speed = speed + 0.1 * (-angle.sin() - friction * speed)
        angle = angle + 0.1 * speed
        angles.append(angle)
    assert torch.allclose(run(start, friction), torch.stack(angles), rtol=1e-12)
    assert gradcheck(run, (start, friction), check_forward_ad=True)
    assert gradgradcheck(run, (start, friction))
    with pytest.raises(ExternalError, match="swing returned the code 1, the pendulum went round so fast"):
        swing(5, 1e300, start, friction)


def test_a_solver_in_cpp(tridiagonal: Any) -> None:
    lower, diagonal, upper, b = (vector(6).sigmoid() for _ in range(4))
    inputs = [part.requires_grad_() for part in (lower, diagonal + 2, upper, b)]
    full = torch.diag(inputs[1]) + torch.diag(upper[:-1], 1) + torch.diag(lower[1:], -1)
    assert torch.allclose(tridiagonal(*inputs), torch.linalg.solve(full, b))
    assert gradcheck(tridiagonal, inputs, check_forward_ad=True)
    assert gradgradcheck(tridiagonal, inputs)
    rows = vector(3, 6)
    found = torch.func.vmap(tridiagonal, in_dims=(None, None, None, 0))(*inputs[:3], rows)
    assert torch.allclose(found, torch.linalg.solve(full, rows.T).T)
    with pytest.raises(ExternalError, match="tridiagonal returned the code 2, the matrix is singular"):
        tridiagonal(lower, torch.zeros(6, dtype=DOUBLE), upper, b)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_examples_pass_every_check(swing: Any, tridiagonal: Any) -> None:
    start, friction = vector(2, requires_grad=True), torch.tensor(0.1, dtype=DOUBLE, requires_grad=True)
    needs = ("vmap", "func-transforms", "compile", "compile-with-func", "export")
    report = gw.check(swing, 20, 0.1, start, friction, level="full", require=needs)
    assert report, str(report)
    lower, diagonal, upper, b = (vector(5).sigmoid().requires_grad_() for _ in range(4))
    report = gw.check(
        tridiagonal, lower, diagonal.detach().add(2).requires_grad_(), upper, b, level="full", require=needs
    )
    assert report, str(report)


def test_the_mathematics_of_the_system() -> None:
    name = ctypes.util.find_library("m")
    if name is None:
        pytest.skip("the system has no library of mathematics of its own")
    hypot = gw.native(name, "hypot", "x:f8, y:f8 -> f8", vjp=lambda g, x, y, out: {"x": g * x / out, "y": g * y / out})
    x, y = vector(5, requires_grad=True), vector(5, requires_grad=True)
    assert gradcheck(torch.func.vmap(hypot), (x, y))


def test_a_routine_of_lapack_by_addresses() -> None:
    found = sorted(Path(np.__file__).parents[1].glob("numpy.libs/libscipy_openblas64_*"))
    if not found:
        pytest.skip("NumPy does not bring a LAPACK with it here")
    solve = gw.native(
        found[0],
        "scipy_dgesv_64_",
        "*n:i8, *k:i8=1, a[n,n]:f8:F:inout, *lda:i8=n, pivots[n]:i8:work, b[n]:f8:inout, *ldb:i8=n, *info:i8:status",
        argnums=("a", "b"),
    )

    @solve.vjp
    def solve_vjp(g: Any, a: Tensor, out: Any) -> dict[str, Tensor]:
        w = solve(a.T, g[1])[1]
        return {"a": -torch.outer(w, out[1]), "b": w}

    a, b = vector(4, 4, requires_grad=True), vector(4, requires_grad=True)
    assert torch.allclose(solve(a, b)[1], torch.linalg.solve(a, b))
    assert gradcheck(lambda a, b: solve(a, b)[1], (a, b))
    assert gradgradcheck(lambda a, b: solve(a, b)[1], (a, b))
    with pytest.raises(ExternalError, match="scipy_dgesv_64_ returned the code 1"):
        solve(torch.zeros_like(a), b)


FORTRAN = """
subroutine cube(n, x, y)
    integer, intent(in) :: n
    double precision, intent(in) :: x(n)
    double precision, intent(out) :: y(n)
    y = x ** 3
end subroutine
"""


def test_fortran_by_f2py_and_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "cubes.f90"
    source.write_text(FORTRAN)
    by_name = gw.native(library(tmp_path, source), "cube_", "*n:int, x[n]:f8, y[n]:f8:out")
    x = vector(3, requires_grad=True)
    assert torch.equal(by_name(x), x * x * x)
    command = [sys.executable, "-m", "numpy.f2py", "-c", "-m", "cubes", str(source)]
    if subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode:
        pytest.skip("f2py cannot build here; it needs meson and ninja")
    monkeypatch.syspath_prepend(tmp_path)
    cubes = importlib.import_module("cubes")
    cube = gw.external(lambda x: cubes.cube(x), out=gw.like(0))
    cube.register_vjp(lambda g, x: 3 * x * x * g)
    assert gradcheck(cube, x)


def test_numba_in_threads() -> None:
    numba = pytest.importorskip("numba", reason="Numba is not installed")

    @numba.njit(nogil=True)  # type: ignore[untyped-decorator]
    def logistic(x: Any, r: float) -> Any:
        out = x.copy()
        for _ in range(10):
            out = r * out * (1 - out)
        return out

    @numba.njit(nogil=True)  # type: ignore[untyped-decorator]
    def backwards(g: Any, x: Any, r: float) -> Any:
        grad = g.copy()
        out = x.copy()
        for _ in range(10):
            grad = grad * r * (1 - 2 * out)
            out = r * out * (1 - out)
        return grad

    grow = gw.external(logistic, argnums="x", out=gw.like("x"), workers=2, releases_gil=True)
    grow.register_vjp(lambda g, x, r: backwards(g, x, r))
    x = torch.rand(5, dtype=DOUBLE, requires_grad=True)
    assert gradcheck(lambda v: grow(v, 1.5), x)
    rows = torch.rand(8, 5, dtype=DOUBLE)
    found = torch.func.vmap(lambda v: grow(v, 1.5))(rows)
    assert torch.equal(found, torch.stack([grow(row, 1.5) for row in rows]))


def test_a_callback_of_numba_is_a_function_of_ctypes() -> None:
    numba = pytest.importorskip("numba", reason="Numba is not installed")

    @numba.cfunc("float64(float64)")  # type: ignore[untyped-decorator]
    def square(x: float) -> float:
        return x * x

    found = gw.native(square.ctypes, signature="x:f8 -> f8", vjp=lambda g, x: 2 * x * g)
    assert gradcheck(found, vector((), requires_grad=True))
