"""The layers of a model get their cheaper forms in place, where these give the same numbers, and lose them again."""

from __future__ import annotations

import copy
import io
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import gradwright as gw
from gradwright.errors import ArgumentError, OptionError, RuleError
from gradwright.fused import patch, unpatch
from tests.footprint import kept_bytes
from tests.fused import lookalikes as alike

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """One of each."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8), nn.ELU(), nn.Linear(8, 8))
        self.foreign = alike.LlamaRMSNorm(8)
        self.head = nn.Sequential(nn.Softplus(), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.foreign(x + self.mlp(self.norm(x))))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(1)
    return alike.scattered(Net())


def gradients(model: nn.Module, x: Tensor = X) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    return dict(zip(named, torch.autograd.grad(model(x).square().sum(), list(named.values()))))


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(second[name], first[name], rtol=2e-5, atol=2e-5)


# -------------------------------------------------------------------- what stays


def test_the_gradients_are_the_same_for_less(net: Net) -> None:
    want, before = gradients(net), kept_bytes(lambda: net(X), [X, *net.parameters()])
    done = patch(net)
    assert [layer.name for layer in done.layers] == ["norm", "mlp", "mlp.3", "foreign", "head.0"]
    assert_same(want, gradients(net))
    assert kept_bytes(lambda: net(X), [X, *net.parameters()]) < 0.6 * before


def test_undo_brings_everything_back_bit_for_bit(net: Net) -> None:
    keys, parameters = list(net.state_dict()), list(net.parameters())
    types, attributes = [type(module) for module in net.modules()], [sorted(vars(module)) for module in net.modules()]
    want, slopes = net(X), gradients(net)
    done = patch(net)
    assert list(net.state_dict()) == keys
    assert all(a is b for a, b in zip(net.parameters(), parameters))
    assert [type(module) for module in net.modules()] == types
    assert not torch.equal(gradients(net)["mlp.0.weight"], slopes["mlp.0.weight"]), "what is undone below"
    done.undo()
    assert torch.equal(net(X), want)
    assert all(torch.equal(g, slopes[name]) for name, g in gradients(net).items())
    assert [sorted(vars(module)) for module in net.modules()] == attributes
    done.undo()  # nothing is left to undo


def test_an_optimiser_that_was_made_before_goes_on(net: Net) -> None:
    twin = copy.deepcopy(net)
    optimisers = [torch.optim.Adam(model.parameters(), 1e-2) for model in (net, twin)]
    patch(net)
    for model, optimiser in zip((net, twin), optimisers):
        for _ in range(3):
            optimiser.zero_grad()
            model(X).square().mean().backward()
            optimiser.step()
    for mine, other in zip(net.parameters(), twin.parameters()):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("place", ["before", "after"])
def test_hooks_see_what_they_saw(net: Net, place: str) -> None:
    seen: dict[str, list[Tensor]] = {}

    def note(name: str) -> Any:
        return lambda module, inputs, out: seen.setdefault(name, []).extend([inputs[0].detach(), out.detach()])

    if place == "after":
        patch(net)
    for name in ("norm", "mlp", "mlp.1", "mlp.2", "mlp.3", "foreign"):
        net.get_submodule(name).register_forward_hook(note(name))
    if place == "before":
        done = patch(net)
        assert done.skipped["mlp"] == "1 and 2 stay apart: a hook reads what is between them"
        assert not seen, "the trial does not run them"
    net(X)
    got, seen = seen, {}
    for module in net.modules():
        vars(module).pop("forward", None)
    net(X)
    assert got.keys() == seen.keys()
    for name in got:
        torch.testing.assert_close(got[name], seen[name])


def test_parts_of_a_sequential_are_what_they_were(net: Net) -> None:
    want = net.mlp[:2](X)
    patch(net)
    assert torch.equal(net.mlp[:2](X), want)
    assert torch.equal(net.mlp[1](X), nn.functional.gelu(X))
    net.mlp[2] = nn.Identity()  # and a pair that is one no more
    net.mlp[4] = nn.Identity()
    torch.testing.assert_close(net.mlp(X), nn.functional.elu(nn.functional.gelu(net.mlp[0](X))))


def test_copies_and_pickles_are_patched_and_of_their_own(net: Net) -> None:
    want = gradients(net)
    done = patch(net)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    twins = [copy.deepcopy(net), pickle.loads(pickle.dumps(net)), torch.load(file, weights_only=False)]
    slopes = gradients(net)
    for twin in twins:
        assert all(torch.equal(g, slopes[name]) for name, g in gradients(twin).items())
        with torch.no_grad():
            twin.norm.weight.zero_()
        assert not torch.equal(twin(X), net(X)), "it computes with its own parameters"
        done.undo(twin)
        assert all("forward" not in vars(module) for module in twin.modules())
    assert all(torch.equal(g, slopes[name]) for name, g in gradients(net).items())
    done.undo()
    assert all(torch.equal(g, want[name]) for name, g in gradients(net).items())


def test_unpatch_needs_only_the_model(net: Net) -> None:
    want = gradients(net)
    done = patch(net, only="norm")
    patch(net)
    twins = [copy.deepcopy(net), pickle.loads(pickle.dumps(net))]
    for twin in [*twins, net]:
        said = patch(twin).skipped["norm"]
        assert said == "is swapped already, which gw.fused.unpatch(model) takes back"
        assert unpatch(nn.ModuleList([twin])) == 5
        assert unpatch(twin) == 0
        assert all("forward" not in vars(module) for module in twin.modules())
        assert all(torch.equal(g, want[name]) for name, g in gradients(twin).items())
    done.undo()
    with pytest.raises(ArgumentError, match=r"unpatch: model is None; expected a torch\.nn\.Module; give the model"):
        unpatch(None)  # type: ignore[arg-type]


def test_unpatch_leaves_what_others_replaced(net: Net) -> None:
    alike.replaced(net.norm)
    patch(net)
    assert unpatch(net) == 4
    assert "forward" in vars(net.norm)


def test_a_layer_that_has_gone_need_not_be_undone(net: Net) -> None:
    done = patch(net)
    net.norm = nn.Identity()  # type: ignore[assignment]
    del net.mlp[3]
    done.undo()
    assert unpatch(net) == 0


def test_a_with_statement_undoes_it_at_the_end(net: Net) -> None:
    with patch(net) as done:
        assert "forward" in vars(net.norm)
    assert unpatch(net) == 0
    assert str(done) == "undone: the layers that were swapped have their own forward again"
    with pytest.raises(KeyError), patch(net):
        raise KeyError
    assert unpatch(net) == 0


def test_a_model_goes_when_nobody_holds_it(net: Net) -> None:
    patch(net)
    gone = weakref.ref(net.norm.weight)
    del net.norm
    assert gone() is None, "without the garbage collector"


def test_tied_and_parametrised_weights_stay_so(net: Net) -> None:
    net.mlp[4].weight = net.mlp[4].weight
    net.foreign.weight = net.norm.weight
    parametrize.register_parametrization(net.mlp[2], "weight", nn.Tanh())
    want = gradients(net)
    patch(net)
    assert net.foreign.weight is net.norm.weight
    assert_same(want, gradients(net))


def test_a_functional_call_is_patched_too(net: Net) -> None:
    others = {name: parameter.detach() * 1.5 for name, parameter in net.named_parameters()}

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(net, parameters, (X,)).square().sum()

    many = {name: torch.stack([p, 2 * p]) for name, p in others.items()}
    want = torch.func.grad(loss)(others), torch.func.vmap(torch.func.grad(loss))(many)
    patch(net)
    got = torch.func.grad(loss)(others), torch.func.vmap(torch.func.grad(loss))(many)
    for first, second in zip(want, got):
        for name in first:
            torch.testing.assert_close(second[name], first[name], rtol=1e-4, atol=1e-3)


def test_an_export_is_that_of_the_model_itself(net: Net) -> None:
    plain = str(torch.export.export(net, (X,)).graph)
    patch(net)
    assert str(torch.export.export(net, (X,)).graph) == plain, "and it does not warn that a rule is lost"


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
def test_it_compiles_whole(net: Net) -> None:
    want = gradients(net)
    patch(net)
    torch.compiler.reset()
    net.compile(fullgraph=True)
    assert_same(want, gradients(net))


# -------------------------------------------------------------------- what is known, and what is left


@pytest.mark.parametrize(
    ("norm", "becomes"),
    [
        (alike.LlamaRMSNorm, "gw.fused.rms_norm"),
        (alike.T5LayerNorm, "gw.fused.rms_norm"),
        (alike.RoundedRMSNorm, "gw.fused.rms_norm"),
        (alike.GemmaRMSNorm, "gw.fused.rms_norm, with 1 + weight"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_norms_of_another_library(norm: type, becomes: str, dtype: torch.dtype, autocast: bool) -> None:
    layer = alike.scattered(norm(8)).to(dtype)
    parameter = layer.weight
    inputs = [X.to(kind).requires_grad_() for kind in (torch.float32, torch.bfloat16)]

    def results() -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            outs = [layer(x) for x in inputs]
        loss = sum((out.float() * X.roll(1, 0)).sum() for out in outs)
        return [*outs, *torch.autograd.grad(loss, [*inputs, layer.weight])]

    want = results()
    (done,) = patch(layer).layers
    assert (done.name, done.kind, done.becomes) == ("", norm.__name__, becomes)
    assert layer.weight is parameter
    for first, second in zip(want, results()):
        assert first.dtype == second.dtype
        torch.testing.assert_close(second, first, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (alike.CentredRMSNorm(8), "the output is off by .* from the cheaper form, in float32"),
        (alike.OutsideRMSNorm(8), "the output is off by .*"),
        (alike.DetachedRMSNorm(8), "the gradient of the input is off by .*"),
        (alike.ExponentialRMSNorm(8), "the output is off by .*"),
        (alike.GatedRMSNorm(8), "its forward takes more than the input"),
        (alike.LlamaRMSNorm(8).double(), "the output is off by .* in float64"),
        (alike.NamelessRMSNorm(8), "what it adds below the root is not known"),
        (nn.RMSNorm(8, device="meta"), "its weight has no numbers yet, .*"),
        (alike.OwnRMSNorm(8), "its class has a forward of its own"),
        (gw.fused.RMSNorm(8), "is one of gw.fused already"),
        (gw.fused.ELU(), "is one of gw.fused already"),
        (alike.of_a_subclass(nn.RMSNorm(8)), "its weight is a Other: .*"),
        (alike.replaced(nn.RMSNorm(8)), "its forward was replaced by something else"),
        (nn.ELU(inplace=True), "works in place, and .*"),
        (nn.LeakyReLU(-0.5), "with these options, in float32, its output does not tell its gradient"),
        (
            nn.GELU(),
            "has a .* only with the linear layer after it: in a Sequential, or write gw.fused.GELULinear for both",
        ),
        (nn.SiLU(), ".* or write gw.fused.SiLULinear for both"),
        (nn.Mish(), ".* or write gw.fused.MishLinear for both"),
        (nn.Sequential(nn.SiLU(inplace=True), nn.Linear(2, 2)), "0 and 1 stay apart: the activation works in place"),
        (nn.Sequential(alike.replaced(nn.SiLU()), nn.Linear(2, 2)), "0 and 1 stay apart: the forward of one was .*"),
    ],
)
def test_what_is_left_and_why(layer: nn.Module, why: str) -> None:
    done = patch(layer)
    assert not done.layers
    (said, *_) = done.skipped.values()
    assert alike.matches(said, why), said


def test_the_trial_leaves_no_trace(net: Net) -> None:
    before = torch.get_rng_state(), copy.deepcopy(net.state_dict())
    patch(net)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert all(torch.equal(tensor, before[1][name]) for name, tensor in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_norm_that_is_another_one_in_training() -> None:
    """Whatever the model does as it is patched; the mode stays, and so do the random numbers to come."""
    for training in (False, True):
        model = nn.Sequential(nn.Linear(8, 8), alike.DroppingRMSNorm(8)).train(training)
        state = torch.get_rng_state()
        done = patch(model)
        assert not done.layers
        assert done.skipped["1"].endswith("in float32" if training else "in float32, in training")
        assert all(module.training == training for module in model.modules())
        assert torch.equal(torch.get_rng_state(), state)


def test_only_and_skip() -> None:
    def names(**options: Any) -> list[str]:
        return [layer.name for layer in patch(Net(), **options).layers]

    assert names(only="mlp") == ["mlp", "mlp.3"]
    assert names(only=nn.RMSNorm) == ["norm"]
    assert names(only=["*norm", nn.Softplus]) == ["norm", "head.0"]
    assert names(skip=["mlp", alike.LlamaRMSNorm]) == ["norm", "head.0"]
    assert names(only="mlp", skip="mlp.*") == ["mlp"]
    assert patch(Net(), skip="norm").skipped["norm"] == "asked for"
    assert set(patch(Net(), only="norm").skipped.values()) == {"not in `only`"}
    assert patch(nn.Sequential(nn.ReLU6(), nn.Hardtanh(), nn.Linear(2, 2)), only=nn.ReLU6).layers[0].name == "0"


@pytest.mark.parametrize("option", ["only", "skip"])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("nrom", r"'nrom' means no layer here; it can mean norm \(RMSNorm\), mlp \(Sequential\), .* 'norm'\?"),
        (nn.Tanh, r"Tanh means no layer here; it can mean norm \(RMSNorm\), .*"),
        (
            1,
            "got an int; expected names of layers, as `named_modules` gives them, or classes; give one or a list of .*",
        ),
        ([nn.Linear(2, 2)], "got a Linear; expected names .*"),
    ],
)
def test_names_that_mean_nothing(option: str, value: Any, said: str) -> None:
    with pytest.raises(OptionError, match=rf"^patch: {option}: {said}$"):
        patch(Net(), **{option: value})


def test_what_is_no_model() -> None:
    with pytest.raises(
        ArgumentError, match=r"patch: model is a function; expected a torch\.nn\.Module; give the model"
    ):
        patch(lambda x: x)  # type: ignore[arg-type]


def test_what_is_compiled_already_is_refused(net: Net) -> None:
    compiled: Any = torch.compile(net, backend="eager")
    with pytest.raises(
        ArgumentError, match=r"patch: the model itself is compiled already; .*; patch it first, and compile"
    ):
        patch(compiled)
    with pytest.raises(ArgumentError, match="patch: 0 is compiled"):
        patch(nn.Sequential(compiled))
    net.mlp.compile(backend="eager")
    with pytest.raises(ArgumentError, match="patch: mlp is compiled"):
        patch(net)
    assert unpatch(net) == 0, "nothing was swapped"


def test_patching_twice_changes_nothing_more(net: Net) -> None:
    done = patch(net)
    again = patch(net)
    assert not again.layers
    assert {again.skipped[layer.name] for layer in done.layers} == {
        "is swapped already, which gw.fused.unpatch(model) takes back"
    }
    again.undo()
    assert "forward" in vars(net.norm)
    done.undo()
    assert "forward" not in vars(net.norm)


def test_what_came_over_it_is_undone_first(net: Net) -> None:
    done = patch(net)
    ours = net.foreign.forward
    net.foreign.forward = lambda x: ours(x) + 1
    with pytest.raises(RuleError, match=r"undo: the forward of foreign is another one now; .*; undo first what was"):
        done.undo()
    assert "forward" in vars(net.norm), "nothing is undone"


def test_the_report(net: Net) -> None:
    net.norm = nn.ModuleList([nn.RMSNorm(8) for _ in range(5)])  # type: ignore[assignment]
    net.mlp[3] = nn.ELU(inplace=True)
    assert str(patch(net)).splitlines() == [
        "8 of 9 layers swapped",
        "  norm.0, norm.1, norm.2 and 2 more: RMSNorm -> gw.fused.rms_norm",
        "  mlp: Sequential -> 1 and 2 in one, the activation computed again",
        "  foreign: LlamaRMSNorm -> gw.fused.rms_norm",
        "  head.0: Softplus -> gw.fused.softplus, from the output",
        "left as they are",
        "  mlp.3: works in place, and keeps nothing but its output already",
        "  Linear (3): nothing cheaper is known",
    ]


def test_the_report_fits_the_screen() -> None:
    model = nn.ModuleDict(
        {f"{'long' * 5}{i}": layer for i, layer in enumerate([nn.GELU(), nn.GELU(), *[nn.ELU()] * 2])}
    )
    assert str(patch(model)).splitlines() == [
        "1 of 3 layers swapped",
        "  longlonglonglonglong2: ELU -> gw.fused.elu, from the output",
        "left as they are",
        "  longlonglonglonglong0, longlonglonglonglong1: has a cheaper form only with the",
        "    linear layer after it: in a Sequential, or write gw.fused.GELULinear for",
        "    both",
    ]


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_a_scripted_model_has_nothing_to_swap() -> None:
    assert not patch(torch.jit.trace(nn.RMSNorm(8), X)).layers
    assert gw.fused.patch is patch
