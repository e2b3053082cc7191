"""A whole model is quantised in place, says so, and is as before when it is undone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import gradwright as gw
from gradwright.errors import ArgumentError, OptionError, RuleError
from gradwright.ste import Codes, Grid, Quantize, export_codes, quantize_model


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.ConvTranspose2d(4, 3, 2))
        self.head = nn.Linear(3, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(input=self.features(x).mean((2, 3)))  # by keyword, which a hook must not miss


X = torch.randn(5, 1, 6, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(1)
    return Net()


def test_undo_brings_everything_back_bit_for_bit(net: Net) -> None:
    keys, parameters = list(net.state_dict()), list(net.parameters())
    before, types = copy.deepcopy(net.state_dict()), [type(module) for module in net.modules()]
    attributes = [sorted(vars(module)) for module in net.modules()]
    want = net.eval()(X)
    done = quantize_model(net, weights=2, activations=3)
    assert not torch.equal(net(X), want)
    done.undo()
    assert torch.equal(net(X), want)
    assert list(net.state_dict()) == keys
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(a is b for a, b in zip(net.parameters(), parameters)), "the same objects in the same order"
    assert [type(module) for module in net.modules()] == types
    assert [sorted(vars(module)) for module in net.modules()] == attributes
    done.undo()  # nothing is left to undo


def test_what_is_computed(net: Net) -> None:
    plain = copy.deepcopy(net).eval()
    net.eval()
    quantize_model(net, weights=4, activations=4)
    got = net(X)

    def quantized(x: Tensor, axis: int | None = None) -> Tensor:
        return Quantize(4, axis=axis)(x).detach()

    conv, norm, relu, up = plain.features
    hidden = torch.conv2d(quantized(X), quantized(conv.weight, 0), conv.bias)
    hidden = relu(norm(hidden))
    hidden = torch.conv_transpose2d(quantized(hidden), quantized(up.weight, 1), up.bias).mean((2, 3))
    torch.testing.assert_close(got, quantized(hidden) @ quantized(plain.head.weight, 0).T)


def test_every_parameter_gets_a_gradient(net: Net) -> None:
    quantize_model(net, weights=4, activations=4)
    net(X).square().sum().backward()
    missing = [name for name, parameter in net.named_parameters() if parameter.grad is None]
    assert not missing
    assert "features.0.parametrizations.weight.0.step" in dict(net.named_parameters())
    assert "head.input_quantizer.step" in dict(net.named_parameters())


def test_keys_are_those_of_torch_and_of_the_quantisers(net: Net) -> None:
    before = set(net.state_dict())
    quantize_model(net, weights=4)
    gone, new = before - set(net.state_dict()), set(net.state_dict()) - before
    assert gone == {"features.0.weight", "features.3.weight", "head.weight"}
    assert {key.rpartition(".weight.")[0] for key in new} == {
        "features.0.parametrizations",
        "features.3.parametrizations",
        "head.parametrizations",
    }


def test_state_dict_round_trip(net: Net) -> None:
    quantize_model(net, weights=4, activations=Quantize(4, init="absmax", learned=False))
    net(X)
    other = Net()
    quantize_model(other, weights=4, activations=Quantize(4, init="absmax", learned=False))
    other.load_state_dict(net.state_dict())
    assert torch.equal(other.eval()(2 * X), net.eval()(2 * X))


def test_a_copy_is_of_its_own_and_can_be_undone(net: Net) -> None:
    want = copy.deepcopy(net).eval()(X)
    done = quantize_model(net.eval(), weights=2, activations=3)
    quantized = net(X)
    twin = copy.deepcopy(net)
    assert torch.equal(twin(X), quantized)
    done.undo(twin)
    assert torch.equal(twin(X), want)
    assert torch.equal(net(X), quantized)
    done.undo()
    assert torch.equal(net(X), want)


def test_torch_still_takes_the_property_from_copies_too() -> None:
    layer = nn.Linear(2, 2)
    parametrize.register_parametrization(layer, "weight", nn.Identity())
    twin = copy.deepcopy(layer)
    parametrize.remove_parametrizations(twin, "weight")
    assert not hasattr(layer, "weight"), "fixed by PyTorch: `_restore` needs no class of its own any more"


def test_training_and_evaluation_are_passed_on(net: Net) -> None:
    net.eval()
    quantize_model(net, weights=4, activations=4)
    quantizers = [module for module in net.modules() if isinstance(module, Quantize)]
    assert len(quantizers) == 6
    assert not any(q.training for q in quantizers)
    net.train()
    assert all(q.training for q in quantizers)


def test_skip(net: Net) -> None:
    assert [layer.name for layer in quantize_model(net, weights=4, skip="head").layers] == ["features.0", "features.3"]
    for skip, left in (
        (["features"], ["head"]),
        (["*.3", nn.Linear], ["features.0"]),
        (nn.ConvTranspose2d, ["features.0", "head"]),
    ):
        done = quantize_model(Net(), weights=4, skip=skip)  # type: ignore[arg-type]
        assert [layer.name for layer in done.layers] == left
    with pytest.raises(OptionError, match=r"skip: 'haed' means no layer here; it can mean .*Did you mean 'head'"):
        quantize_model(Net(), weights=4, skip="haed")


def test_a_function_chooses(net: Net) -> None:
    def choose(name: str, layer: nn.Module) -> Quantize | None:
        return Quantize(2 if isinstance(layer, nn.Linear) else 8) if name != "features.3" else None

    done = quantize_model(net, weights=choose)
    assert [(layer.name, (layer.weight or "")[:6]) for layer in done.layers] == [
        ("features.0", "8 bits"),
        ("head", "2 bits"),
    ]
    assert done.skipped == {"features.3": "no quantiser was chosen for it"}
    with pytest.raises(OptionError, match=r"for features.0 got 4; expected a gw.ste.Quantize or None"):
        quantize_model(Net(), weights=lambda name, layer: 4)  # type: ignore[arg-type,return-value]
    with pytest.raises(OptionError, match=r"for features.0 got True; expected a gw.ste.Quantize or None"):
        quantize_model(Net(), weights=True)


def test_the_report_can_be_read(net: Net) -> None:
    done = quantize_model(net, weights=4, activations=8, skip="head")
    assert str(done).splitlines() == [
        "2 of 3 layers quantised",
        "  features.0 (Conv2d)",
        "    weight: 4 bits, codes -8 to 7, axis=0, learned step, mask=pre-round",
        "    input: 8 bits, codes -128 to 127, learned step, mask=pre-round, 0 of 1 batches seen for the step (lsq)",
        "  features.3 (ConvTranspose2d)",
        "    weight: 4 bits, codes -8 to 7, axis=1, learned step, mask=pre-round",
        "    input: 8 bits, codes -128 to 127, learned step, mask=pre-round, 0 of 1 batches seen for the step (lsq)",
        "left as they are",
        "  head: asked for",
        "  BatchNorm2d (1): not a linear or convolution layer",
    ]


def test_what_cannot_be_quantised_is_said() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2)
            self.normed = parametrize_norm(nn.Linear(4, 4))
            self.lazy = nn.LazyLinear(3)
            self.plain = nn.Linear(4, 4)
            self.tied = nn.Embedding(4, 4)
            self.tied.weight = self.plain.weight
            self.bare = nn.Linear(4, 4)
            del self.bare.weight
            self.bare.weight = torch.zeros(4, 4)  # type: ignore[assignment]

    def parametrize_norm(layer: nn.Module) -> nn.Module:
        return nn.utils.parametrizations.weight_norm(layer)

    done = quantize_model(Odd(), weights=4)
    assert done.skipped == {
        "attention.out_proj": "attention computes with its weights itself and never calls it",
        "normed": "its weight is parametrised already",
        "lazy": "it does not know its shape yet: run a batch first",
        "bare": "its weight is no parameter",
    }
    assert done.layers[0].shared == ("tied.weight",)
    assert "not quantised where it is read as tied.weight" in str(done)
    assert done.others == {"MultiheadAttention": 1, "Embedding": 1}


def test_twice_is_once(net: Net) -> None:
    quantize_model(net, weights=4, activations=4)
    again = quantize_model(net, weights=4, activations=4)
    assert not again.layers
    assert set(again.skipped.values()) == {"its input is quantised already"}
    assert again.others == {"BatchNorm2d": 1}


def test_a_layer_is_a_model_too() -> None:
    layer = nn.Linear(3, 2)
    done = quantize_model(layer, weights=4, activations=4)
    assert "the model itself (Linear)" in str(done)
    assert done.layers[0].shared == ()
    done.undo()
    assert list(layer.state_dict()) == ["weight", "bias"]


def test_after_an_error_the_model_is_as_before(net: Net) -> None:
    with torch.no_grad():
        net.head.weight[0, 0] = torch.nan
    keys = list(net.state_dict())
    with pytest.raises(ArgumentError, match=r"quantize_model: the weight of head: .*not finite"):
        quantize_model(net, weights=4, activations=4)
    assert list(net.state_dict()) == keys
    assert not parametrize.is_parametrized(net.features[0])
    with pytest.raises(OptionError, match="neither weights nor activations; expected one of them"):
        quantize_model(net)


def test_codes_stand_for_the_weights(net: Net) -> None:
    quantize_model(net, weights=4, activations=8)
    with pytest.raises(RuleError, match=r"export_codes: features\.0\.input_quantizer has no step yet"):
        export_codes(net)
    net(X)
    codes = export_codes(net)
    assert list(codes) == [
        "features.0.weight",
        "features.0.input_quantizer",
        "features.3.weight",
        "features.3.input_quantizer",
        "head.weight",
        "head.input_quantizer",
    ]
    for name, item in codes.items():
        if isinstance(item, Codes):
            assert item.values.dtype == torch.int8
            assert torch.equal(item.dequantize(), net.get_submodule(name.rpartition(".")[0]).weight)
        else:
            assert isinstance(item, Grid)
            assert item.scale.item() > 0


def test_codes_in_half_precision_and_behind_another_parametrisation() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3).bfloat16())
    parametrize.register_parametrization(layer, "weight", Quantize(12, axis=0))
    codes = export_codes(nn.Sequential(layer))["0.weight"]
    assert isinstance(codes, Codes)
    assert codes.values.dtype == torch.int16
    assert torch.equal(codes.dequantize(torch.bfloat16), layer.weight)


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
def test_compiled(net: Net) -> None:
    torch.compiler.reset()
    quantize_model(net, weights=4, activations=4)
    net.eval()(X)
    fast: Any = torch.compile(net, fullgraph=True)
    got, want = [], []
    for model, found in ((fast, got), (net, want)):
        net.zero_grad()
        out = model(X)
        out.square().sum().backward()
        found += [out.detach(), *(parameter.grad.clone() for parameter in net.parameters())]
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_it_trains(net: Net) -> None:
    target = torch.randn(5, 2, generator=torch.Generator().manual_seed(3))
    quantize_model(net, weights=3, activations=Quantize(4))
    net(X)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(X), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert min(losses[-10:]) < 0.5 * losses[0]
    assert gw.ste.export_codes(net)


def test_a_class_is_no_quantiser() -> None:
    with pytest.raises(OptionError, match=r"for 0 got <class .*Quantize'>; expected a gw.ste.Quantize"):
        gw.ste.quantize_model(nn.Sequential(nn.Linear(2, 2)), weights=gw.ste.Quantize)  # type: ignore[arg-type]
