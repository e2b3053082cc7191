"""``op=``: a function with a custom gradient as an operator, kept whole by torch.compile and torch.export."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import gradwright as gw
from gradwright.errors import DefinitionError, RuleError

_NUMBERS = itertools.count()


def fresh() -> str:
    return f"gradwright_tests::op{next(_NUMBERS)}"


def opaque_sin(**options: Any) -> Any:
    """The sine through NumPy, with a rule that is marked by a factor."""

    @gw.custom_gradient(op=fresh(), **options)
    def sine(x: Tensor) -> Tensor:
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @sine.vjp
    def sine_vjp(g, x):
        return 7 * g * torch.cos(x)

    @sine.fake
    def sine_fake(x):
        return torch.empty_like(x)

    return sine


@pytest.fixture
def x() -> Tensor:
    return torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64, requires_grad=True)


def gradient(function: Any, x: Tensor) -> Tensor:
    return torch.autograd.grad(function(x).sum(), x)[0]


def compiled(function: Any, backend: str = "aot_eager") -> Any:
    torch.compiler.reset()
    return torch.compile(function, backend=backend, fullgraph=True)


class Around(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def exported(function: Any, x: Tensor, strict: bool = False) -> Any:
    return torch.export.export(Around(function), (x.detach(),), strict=strict).module()


def test_an_opaque_forward_compiles_in_one_graph(x):
    sine = opaque_sin()
    double = compiled(lambda x: 2 * sine(x))
    assert torch.allclose(double(x), 2 * x.sin())
    assert torch.allclose(gradient(double, x), 14 * x.cos())


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_trains_with_the_rule(x, strict, recwarn):
    sine = opaque_sin()
    module = exported(sine, x, strict)
    assert torch.allclose(module(x), x.sin())
    assert torch.allclose(gradient(module, x), 7 * x.cos())
    assert not [w for w in recwarn if "gradient rule" in str(w.message)]


def test_an_exported_program_has_second_derivatives(x):
    module = exported(opaque_sin(), x)
    (first,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
    assert torch.allclose(gradient(lambda _: first, x), -7 * x.sin())


def test_second_derivatives_of_an_exported_program_raise_where_the_rule_is_good_for_one(x):
    module = exported(opaque_sin(double_backward="once"), x)
    (first,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="sine: its gradient was differentiated again"):
        gradient(lambda x: first + x**4, x)


def test_without_a_fake_rule_the_function_itself_tells_the_shape(x):
    @gw.custom_gradient(op=fresh())
    def halves(x: Tensor) -> tuple[Tensor, Tensor]:
        return x[:1] * 2, x[1:] * 3

    @halves.vjp
    def halves_vjp(g):
        return torch.cat([5 * g[0], 6 * g[1]])

    got = gradient(compiled(lambda x: torch.cat(halves(x))), x)
    assert torch.equal(got, torch.tensor([5.0, 6.0, 6.0], dtype=x.dtype))
    assert torch.equal(gradient(exported(lambda x: torch.cat(halves(x)), x), x), got)


def test_a_forward_that_cannot_be_traced_asks_for_a_fake_rule(x):
    @gw.custom_gradient(op=fresh())
    def blind(x: Tensor) -> Tensor:
        return torch.from_numpy(np.sin(x.detach().numpy()))

    blind.vjp(lambda g, x: g * x.cos())
    with pytest.raises(Exception, match=r"blind: PyTorch cannot run its forward .*write `@blind.fake` above"):
        compiled(blind)(x)


def test_numpy_in_a_rule_is_told_where_to_go(x):
    """The rule is recorded, other than the forward; in an operator of its own NumPy works there too."""

    def numpy_cos(x: Tensor) -> Tensor:
        return torch.from_numpy(np.cos(x.detach().numpy()))

    def sine(cos):
        @gw.custom_gradient(op=fresh())
        def sine(x: Tensor) -> Tensor:
            return torch.sin(x)

        @sine.vjp
        def sine_vjp(g, x):
            return g * cos(x)

        return sine

    with pytest.raises(Exception, match=r"sine: its rule 'sine_vjp' failed where PyTorch records it.* an op= of its"):
        gradient(compiled(sine(numpy_cos)), x)

    cos = gw.custom_gradient(op=fresh())(numpy_cos)
    cos.vjp(lambda g, x: -g * x.sin())
    cos.fake(lambda x: torch.empty_like(x))
    assert torch.allclose(gradient(compiled(sine(cos)), x), x.cos())


def test_the_error_of_a_rule_is_its_own_where_nothing_is_recorded(x):
    @gw.custom_gradient(op=fresh())
    def broken(x: Tensor) -> Tensor:
        return x * 2

    @broken.vjp
    def broken_vjp(g):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        gradient(exported(broken, x), x)


def test_every_kind_of_argument(x):
    @gw.custom_gradient(op=fresh())
    def mixed(
        x: Tensor,
        bias: Tensor | None,
        k: float,
        n: int = 2,
        flag: bool = True,
        mode: Literal["a", "b"] = "a",
        sizes: tuple[int, ...] = (3,),
        dtype: torch.dtype = torch.float64,
        *,
        word: str = "w",
    ) -> Tensor:
        assert (flag, mode, sizes, dtype, word) == (True, "a", (3,), torch.float64, "w")
        return x * k * n if bias is None else x * k * n + bias

    @mixed.vjp
    def mixed_vjp(g, x, k, n, mode, sizes, word, needs):
        assert (mode, sizes, word) == ("a", (3,), "w")
        return {"x": 7 * g * k * n if needs["x"] else None, "bias": 3 * g if needs["bias"] else None}

    bias = torch.ones(3, dtype=torch.float64, requires_grad=True)
    for call in (lambda x: mixed(x, None, 0.5), lambda x: mixed(x, x.detach(), 0.5, n=2, word="w")):
        assert torch.equal(gradient(compiled(call), x), torch.full_like(x, 7))
        assert torch.equal(gradient(exported(call, x), x), torch.full_like(x, 7))
    assert torch.equal(gradient(compiled(lambda b: mixed(x.detach(), b, 0.5)), bias), torch.full_like(x, 3))


def test_residuals_are_kept(x):
    @gw.custom_gradient(op=fresh())
    def weighed(x: Tensor, sizes: tuple[int, ...] = (1, 2)) -> Tensor:
        return x.exp()

    @weighed.fwd
    def weighed_fwd(x):
        out = x.exp()
        return out, (x, out, x + 1)

    @weighed.vjp
    def weighed_vjp(g, residuals):
        same, out, own = residuals
        return g * (same + out + own)

    expected = 2 * x + x.exp() + 1
    for function in (weighed, compiled(lambda x: weighed(x)), exported(weighed, x)):
        assert torch.allclose(gradient(function, x), expected)
    (first,) = torch.autograd.grad(exported(weighed, x)(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"keeps residuals in \.fwd"):
        gradient(lambda x: first + x**4, x)


def test_outputs_that_are_views_or_inputs_are_copied(x):
    @gw.custom_gradient(op=fresh())
    def passed(x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x[:2]

    passed.vjp(lambda g: 2 * g[0] + torch.nn.functional.pad(g[1], (0, 1)))
    for function in (compiled(lambda x: torch.cat(passed(x))), exported(lambda x: torch.cat(passed(x)), x)):
        assert torch.equal(function(x), torch.cat([x, x[:2]]))
        assert gradient(function, x).tolist() == [3, 3, 2]


def test_a_rule_in_forward_mode_alone_is_transposed(x):
    @gw.custom_gradient(op=fresh())
    def cube(x: Tensor) -> Tensor:
        return x**3

    cube.jvp(lambda t, x: 7 * t * x**2)
    assert torch.allclose(gradient(compiled(lambda x: cube(x)), x), 7 * x**2)
    assert torch.allclose(gradient(exported(cube, x), x), 7 * x**2)


def test_unused_outputs_have_cotangents_as_the_option_says(x):
    for symbolic in (False, True):

        @gw.custom_gradient(op=fresh(), symbolic_zeros=symbolic)
        def twice(x: Tensor) -> tuple[Tensor, Tensor]:
            return 1 * x, 2 * x

        @twice.vjp
        def twice_vjp(g):
            assert (g[1] is None) is symbolic  # noqa: B023 - called within the round
            return 7 * g[0]

        assert torch.equal(gradient(exported(lambda x: twice(x)[0], x), x), torch.full_like(x, 7))


def test_autocast_is_that_of_the_place_where_it_was_recorded():
    seen: list[tuple[torch.dtype, bool]] = []

    @gw.custom_gradient(op=fresh())
    def product(x: Tensor, w: Tensor) -> Tensor:
        return x @ w

    @product.vjp
    def product_vjp(g, x, w):
        seen.append((g.dtype, torch.is_autocast_enabled("cpu")))
        return {"x": g @ w.T, "w": x.T @ g}

    def step(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return product(x, w)

    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    outs = [f(x, w) for f in (step, compiled(step), exported_two(step, x, w))]
    assert [out.dtype for out in outs] == [torch.bfloat16] * 3
    for out in outs[1:]:
        assert torch.equal(out, outs[0])
    for out in outs:
        out.float().sum().backward()
    assert seen == [(torch.bfloat16, True)] * 3


def exported_two(function: Any, x: Tensor, w: Tensor) -> Any:
    class Two(torch.nn.Module):
        def forward(self, x: Tensor, w: Tensor) -> Tensor:
            return function(x, w)  # type: ignore[no-any-return]

    return torch.export.export(Two(), (x.detach(), w.detach()), strict=False).module()


def test_dynamic_shapes(x):
    sine = opaque_sin()
    torch.compiler.reset()
    function = torch.compile(lambda x: sine(x) * 1, backend="aot_eager", fullgraph=True, dynamic=True)
    for size in (3, 4, 7):
        leaf = torch.linspace(0, 1, size, dtype=torch.float64, requires_grad=True)
        assert torch.allclose(gradient(function, leaf), 7 * leaf.cos())


def test_torch_tests_of_operators_pass(x):
    sine = opaque_sin()
    operator = next(iter_operators(sine))
    torch.library.opcheck(
        operator, (x, ""), test_utils=("test_schema", "test_faketensor", "test_autograd_registration")
    )


def iter_operators(function: Any) -> Any:
    namespace, _, name = function.__custom_gradient__.options.op.partition("::")
    yield getattr(getattr(torch.ops, namespace), name).default


def test_a_transform_inside_of_compiled_code_is_right_or_refused(x):
    sine = opaque_sin()
    torch.compiler.reset()
    slope = torch.compile(torch.func.grad(lambda x: sine(x).sum()), backend="aot_eager")
    assert torch.allclose(slope(x.detach()), 7 * x.cos())
    torch.compiler.reset()
    with pytest.raises(Exception, match=r"sine: a transform of torch\.func"):
        torch.compile(torch.func.grad(lambda x: sine(x).sum()), backend="aot_eager", fullgraph=True)(x.detach())


def test_forward_mode_through_an_exported_program_is_refused(x):
    module = exported(opaque_sin(), x)
    with forward_ad.dual_level(), pytest.raises(RuleError, match="sine: forward mode was asked of its operator"):
        module(forward_ad.make_dual(x.detach(), torch.ones_like(x)))
    with pytest.raises(RuleError, match="sine: forward mode was asked of its operator"):
        torch.func.jvp(module, (x.detach(),), (torch.ones_like(x),))


def test_a_fake_rule_that_says_something_else_is_refused_at_the_first_run(x):
    @gw.custom_gradient(op=fresh())
    def narrow(x: Tensor) -> Tensor:
        return torch.from_numpy(np.sin(x.detach().numpy()))

    narrow.vjp(lambda g, x: g * x.cos())
    narrow.fake(lambda x: torch.empty_like(x, dtype=torch.float32))
    with pytest.raises(
        RuleError, match=r"narrow: the rule '<lambda>' says float32 \(3,\) on cpu; the function returned"
    ):
        compiled(lambda x: narrow(x))(x)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_new_rules_are_noticed_by_compiled_code(x):
    sine = opaque_sin()
    function = compiled(lambda x: sine(x) * 1, backend="inductor")
    assert torch.allclose(gradient(function, x), 7 * x.cos())
    sine.vjp(lambda g, x: 5 * g * torch.cos(x))
    assert torch.allclose(gradient(function, x), 5 * x.cos())


TORCH = """
import torch
from torch import Tensor

@torch.library.custom_op("gradwright_files::marked", mutates_args=())
def marked(x: Tensor) -> Tensor:
    return torch.round(x)

marked.register_fake(lambda x: torch.empty_like(x))
marked.register_autograd(lambda ctx, g: FACTOR * g)
x = torch.tensor([0.2, 1.7], requires_grad=True)
torch.compile(lambda x: marked(x) * 1, fullgraph=True)(x).sum().backward()
print(x.grad.tolist())
"""
"""What PyTorch does with a custom op whose backward is edited."""

PROGRAM = """
import sys, torch, gradwright as gw
from torch import Tensor

@gw.custom_gradient(OPTIONS)
def marked(x: Tensor) -> Tensor:
    return torch.round(x)

@marked.vjp
def marked_vjp(g):
    return FACTOR * g

class Around(torch.nn.Module):
    def forward(self, x):
        return marked(x)

x = torch.tensor([0.2, 1.7], requires_grad=True)
if sys.argv[1] == "save":
    torch.export.save(torch.export.export(Around(), (x.detach(),)), sys.argv[2])
elif sys.argv[1] == "load":
    torch.export.load(sys.argv[2]).module()(x).sum().backward()
else:
    torch.compile(lambda x: marked(x) * 1, fullgraph=True)(x).sum().backward()
print(None if x.grad is None else x.grad.tolist())
"""


def run(tmp_path, factor: int, *arguments: str, options: str = 'op="gradwright_files::marked"', text=PROGRAM) -> str:
    path = tmp_path / "program.py"
    path.write_text(text.replace("FACTOR", str(factor)).replace("OPTIONS", options), encoding="utf-8")
    done = subprocess.run([sys.executable, str(path), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_an_exported_program_trains_in_another_process(tmp_path):
    file = str(tmp_path / "program.pt2")
    run(tmp_path, 7, "save", file)
    assert run(tmp_path, 7, "load", file) == "[7.0, 7.0]"


@pytest.mark.slow
@pytest.mark.xfail(strict=True, reason="torch 2.13")
def test_what_the_compiler_keeps_on_disk_of_a_torch_operator(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    assert run(tmp_path, 7, text=TORCH) == "[7.0, 7.0]"
    assert run(tmp_path, 5, text=TORCH) == "[5.0, 5.0]"


@pytest.mark.slow
@pytest.mark.parametrize("options", ['op="gradwright_files::marked"', ""], ids=["operator", "function"])
def test_what_the_compiler_keeps_on_disk_has_no_old_rule(tmp_path, monkeypatch, options):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    assert run(tmp_path, 7, "compile", options=options) == "[7.0, 7.0]"
    assert run(tmp_path, 5, "compile", options=options) == "[5.0, 5.0]"


def test_names_and_types_are_checked_at_once():
    def tell(function: Any, op: Any = None) -> str:
        with pytest.raises(DefinitionError) as caught:
            gw.custom_gradient(op=fresh() if op is None else op)(function)
        return str(caught.value)

    def plain(x: Tensor) -> Tensor:
        return x

    for bad in ("plain", "aten::plain", 3, "a::b::c", "a.b::c"):
        assert "plain: op is" in tell(plain, bad)

    def without(x):
        return x

    assert "the annotation of what it returns is needed" in tell(without)

    def odd(x: Tensor, k: object) -> Tensor:
        return x

    assert "the argument 'k' must have a type that operators know" in tell(odd)

    def tree(x: dict[str, Tensor]) -> Tensor:
        return x["x"]

    assert "the argument 'x' must have a type that operators know" in tell(tree)


def test_two_functions_cannot_share_an_operator():
    name = fresh()

    @gw.custom_gradient(op=name)
    def first(x: Tensor) -> Tensor:
        return x

    first.vjp(lambda g: g)
    with pytest.raises(DefinitionError, match=r"second: op='.*' is the operator of .*first already"):

        @gw.custom_gradient(op=name)
        def second(x: Tensor) -> Tensor:
            return x


def test_a_fake_rule_needs_an_operator():
    @gw.custom_gradient
    def plain(x: Tensor) -> Tensor:
        return x

    with pytest.raises(DefinitionError, match=r"plain: it has \.fake, which is for operators"):
        plain.fake(lambda x: torch.empty_like(x))


def test_define_takes_op_and_fake(x):
    def sine(x: Tensor) -> Tensor:
        return torch.from_numpy(np.sin(x.detach().numpy()))

    sine_op = gw.define(
        sine, vjp=lambda g, x: 7 * g * x.cos(), op=fresh(), fake=lambda x: torch.empty_like(x), name="sine_op"
    )
    assert torch.allclose(gradient(compiled(lambda x: sine_op(x)), x), 7 * x.cos())


def test_check_finds_nothing_against_a_right_operator():
    @gw.custom_gradient(op=fresh())
    def sine(x: Tensor) -> Tensor:
        return torch.from_numpy(np.sin(x.detach().numpy()))

    sine.vjp(lambda g, x: g * torch.cos(x))
    sine.fake(lambda x: torch.empty_like(x))
    report = gw.check(sine, torch.linspace(-1, 1, 5, dtype=torch.float64), level="full", only=("compile", "export"))
    assert report, report
    assert {r.id: r.verdict for r in report.results} == {"compile": "pass", "export": "pass"}


def test_two_functions_of_one_definition_do_not_take_each_others_gradient(x):
    def make(k: float) -> Any:
        @gw.custom_gradient(op=name)
        def scaled(x: Tensor) -> Tensor:
            return x * k

        scaled.vjp(lambda g: g * 7 * k)
        return scaled

    torch.compiler.reset()
    name = fresh()
    old = make(2.0)
    old_compiled = torch.compile(old, fullgraph=True, backend="aot_eager")
    assert gradient(old_compiled, x).tolist() == [14] * 3
    recorded = torch.export.export(Around(old), (x,)).module()
    new = make(3.0)
    message = f"scaled: its operator {name} was defined anew, by another scaled with this op"
    for again in (old_compiled, torch.compile(old, fullgraph=True, backend="aot_eager")):
        with pytest.raises(RuntimeError, match=message):
            again(x)
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=message):
            torch.export.export(Around(old), (x,), strict=strict)
    # Without fullgraph it runs uncompiled; what was exported goes by the name alone, across processes too.
    assert gradient(torch.compile(old, backend="aot_eager"), x).tolist() == [14] * 3
    assert gradient(torch.compile(new, fullgraph=True, backend="aot_eager"), x).tolist() == [21] * 3
    assert gradient(recorded, x).tolist() == [21] * 3


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_exported_programs_use_the_rule_of_today() -> None:
    """What PyTorch keeps of compiled programs on disk is looked up by their operations, and not by the rules."""
    name = fresh()

    def declared(factor: float) -> Any:
        @gw.custom_gradient(op=name)
        def scaled(x: Tensor) -> Tensor:
            return torch.sin(x)

        scaled.vjp(lambda g, x: factor * g * torch.cos(x))
        return scaled

    first = declared(2.0)

    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return first(x).sum()

    x = torch.ones(3, requires_grad=True)
    program = torch.export.export(Model(), (x,)).module()
    for factor in (2.0, 5.0):
        torch._dynamo.reset()
        declared(factor)
        (found,) = torch.autograd.grad(torch.compile(program)(x), x)
        torch.testing.assert_close(found, factor * torch.cos(x.detach()))
