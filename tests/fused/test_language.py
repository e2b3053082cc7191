"""A language model that takes labels computes its loss without logits, and is otherwise what it was."""

from __future__ import annotations

import copy
import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwright.errors import RuleError
from gradwright.fused import patch
from gradwright.fused.language import BY_HAND
from tests.footprint import peak_bytes
from tests.fused import lookalikes as alike
from tests.fused.lookalikes import LanguageModel, Softcapped, WithMore, matches, replaced, scattered
from tests.fused.parallel import compare, run

TOKENS = torch.arange(24).reshape(2, 12) % 19
LABELS = TOKENS.clone()
LABELS[0, :5] = -100


@pytest.fixture
def model() -> LanguageModel:
    torch.manual_seed(1)
    return scattered(LanguageModel())


def results(model: nn.Module, **more: Any) -> tuple[Any, list[Tensor]]:
    """Return the output and the gradients, always with the same dropout."""
    torch.manual_seed(5)
    out = model(TOKENS, labels=LABELS, **more)
    return out, list(torch.autograd.grad(out.loss, list(model.parameters()), allow_unused=True))


def assert_same(first: tuple[Any, list[Tensor]], second: tuple[Any, list[Tensor]]) -> None:
    torch.testing.assert_close(second[0].loss, first[0].loss)
    for mine, other in zip(first[1], second[1]):
        torch.testing.assert_close(other, mine)


@pytest.mark.parametrize("kind", [LanguageModel, Softcapped])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("more", [{}, {"num_items_in_batch": 7}, {"num_items_in_batch": torch.tensor(7)}])
def test_loss_and_gradients_are_the_same(kind: type[LanguageModel], tied: bool, more: dict[str, Any]) -> None:
    model = scattered(kind())
    if tied:
        model.lm_head.weight = model.embedding.weight
    want = results(model, **more)
    done = patch(model, loss=True)
    assert [layer.name for layer in done.layers] == ["", "norm"]
    assert "gives no logits" in str(done)
    got = results(model, **more)
    assert_same(want, got)
    assert got[0].loss.dtype == torch.float32
    assert got[0].logits is None
    torch.testing.assert_close(got[0].hidden, want[0].hidden)
    done.undo()
    assert torch.equal(results(model, **more)[0].logits, want[0].logits)


def test_the_logits_are_never_whole() -> None:
    model = LanguageModel(classes=4000)
    tokens = torch.randint(0, 4000, (4, 257))
    logits = tokens.numel() * 4000 * 4

    def step() -> Any:
        return torch.autograd.grad(model(tokens, labels=tokens).loss, list(model.parameters()))

    assert peak_bytes(step) > 2 * logits
    patch(model, loss=True)
    assert peak_bytes(step) < 0.5 * logits + 64 * 1024**2 / 4


@pytest.mark.parametrize(
    "more",
    [
        {"logits_to_keep": 4},
        {"logits_to_keep": torch.tensor([0, 3])},
        {"scale": 2.0},
        {"return_dict": False},
        {"output_router_logits": True},
    ],
)
def test_where_logits_are_asked_for_or_the_loss_is_another(model: LanguageModel, more: dict[str, Any]) -> None:
    kept = {4: 4, 0: 12}.get(more.get("logits_to_keep", 0), 2)  # a tensor is another key
    torch.manual_seed(5)
    want = model(TOKENS, labels=LABELS[:, :kept], **more)
    patch(model, only="", loss=True)
    torch.manual_seed(5)
    got = model(TOKENS, labels=LABELS[:, :kept], **more)
    assert torch.equal(got.loss, want.loss)
    assert torch.equal(got.logits, want.logits)


def test_only_a_training_step_has_no_logits(model: LanguageModel) -> None:
    patch(model, loss=True)
    assert model(TOKENS).logits is not None
    model.eval()
    assert model(TOKENS, None, LABELS).logits is not None
    model.train()
    assert model(TOKENS, None, LABELS).logits is None, "labels by their place"
    with pytest.raises(TypeError, match="missing a required argument: 'input_ids'"):
        model(labels=LABELS)
    handle = model.lm_head.register_forward_hook(lambda *_: None)
    assert model(TOKENS, labels=LABELS).logits is not None, "the hook reads them"
    handle.remove()
    assert model(TOKENS, labels=LABELS).logits is None


def test_the_signature_is_that_of_the_model(model: LanguageModel) -> None:
    """The trainer of Hugging Face goes by it."""
    want = inspect.signature(model.forward)
    patch(model, loss=True)
    assert inspect.signature(model.forward) == want


def test_copies_and_pickles(model: LanguageModel) -> None:
    patch(model, loss=True)
    want = results(model)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_same(want, results(twin))


def test_the_trial_leaves_no_trace(model: LanguageModel) -> None:
    model.dropout.eval()
    before, state = torch.get_rng_state(), copy.deepcopy(model.state_dict())
    patch(model, loss=True)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert [module.training for module in model.modules()] == [True, True, True, False, True]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert "forward" not in vars(model.lm_head)


def test_without_being_asked_it_keeps_its_logits(model: LanguageModel) -> None:
    done = patch(model)
    assert done.skipped == {
        "": "`loss=True` lets it compute its loss without logits, which a training step then does not return"
    }
    assert model(TOKENS, labels=LABELS).logits is not None


def with_head(head: nn.Module) -> LanguageModel:
    model = LanguageModel()
    model.lm_head = head  # type: ignore[assignment]
    return model


def with_routers() -> LanguageModel:
    model = WithMore()
    model.config.output_router_logits = True
    return model


def watched() -> LanguageModel:
    model = LanguageModel()
    model.lm_head.register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (alike.Scaled, "its forward changes the logits, or does not return them"),
        (alike.Unshifted, "its loss is off by .* from the cross-entropy of the tokens that follow"),
        (with_routers, "its loss is off by .*"),
        (alike.Tuples, "its result has no fields for loss and logits"),
        (alike.Unnamed, "its last linear layer is not found, as lm_head or by get_output_embeddings"),
        (lambda: with_head(nn.Sequential(nn.Linear(8, 23))), "its last layer is a Sequential, of which no .*"),
        (lambda: with_head(replaced(nn.Linear(8, 23))), "a hook reads its logits"),
        (watched, "a hook reads its logits"),
        (lambda: with_head(nn.Linear(7, 23)), "could not be tried: RuntimeError: mat1 and mat2 .*"),
    ],
)
def test_what_is_left_and_why(make: Any, why: str) -> None:
    model = make()
    said = patch(model, loss=True).skipped[""]
    assert matches(said, f"{why}; {BY_HAND}"), said
    assert "forward" not in vars(model)


def test_a_model_that_takes_no_labels() -> None:
    """As nanoGPT has it."""
    assert str(patch(alike.Targets(), loss=True)).splitlines() == [
        "0 of 0 layers swapped",
        "left as they are",
        "  the loss: no forward takes `labels`, as those of Hugging Face do; in a forward",
        "    of your own call gw.fused.linear_cross_entropy, or use",
        "    gw.fused.LinearCrossEntropyLoss",
        "  Embedding (1), Dropout (1), Linear (1): nothing cheaper is known",
    ]
    assert "loss" not in str(patch(alike.Targets())), "it was not asked for"


def test_what_only_wraps_a_language_model_or_has_no_words_is_not_accused() -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = LanguageModel()

        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            out: Tensor = self.model(x, labels=labels).loss
            return out

    done = patch(Wrapper(), loss=True)
    assert [layer.name for layer in done.layers] == ["model", "model.norm"]
    assert not done.skipped
    assert not done.loss
    assert not patch(alike.Unnamed()).skipped, "where the loss is not asked for"


def test_more_loss_that_is_asked_for_later_is_not_lost() -> None:
    model = scattered(WithMore())
    patch(model, only="", loss=True)
    plain = results(model)
    asked = results(model, output_router_logits=True)
    assert asked[0].logits is not None
    assert asked[0].loss > plain[0].loss
    model.config.output_router_logits = True
    assert_same(asked, results(model))


class Adapted(nn.Linear):
    """A layer with an adapter, whose weight is that of the layer alone."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features)
        self.weight, self.bias = layer.weight, layer.bias
        self.down = nn.Parameter(torch.ones(2, layer.in_features))
        self.up = nn.Parameter(torch.ones(layer.out_features, 2))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x @ self.down.t() @ self.up.t()


def test_a_last_layer_that_has_changed_is_not_passed_by(model: LanguageModel) -> None:
    done = patch(model, only="", loss=True)
    model.lm_head = Adapted(model.lm_head)
    got = results(model)
    assert got[0].logits is not None
    done.undo()
    assert_same(results(model), got)


def test_a_loss_that_has_changed_is_the_new_one(model: LanguageModel) -> None:
    patch(model, only="", loss=True)
    own = model.loss_function
    model.loss_function = lambda *args, **more: 3 * own(*args, **more)  # type: ignore[method-assign]
    torch.manual_seed(5)
    changed = model(TOKENS, labels=LABELS)
    assert changed.logits is not None
    del model.loss_function
    torch.manual_seed(5)
    torch.testing.assert_close(changed.loss, 3 * model(TOKENS, labels=LABELS).loss)


def test_a_forward_that_has_changed_is_refused(model: LanguageModel) -> None:
    patch(model, loss=True)
    model.bent = lambda logits: 2 * logits  # type: ignore[method-assign]
    with pytest.raises(RuleError, match="LanguageModel: its forward does something else with the logits than it did"):
        model(TOKENS, labels=LABELS)
    assert "forward" not in vars(model.lm_head)


def test_a_batch_without_targets_is_nan_as_before(model: LanguageModel) -> None:
    patch(model, loss=True)
    assert model(TOKENS, labels=torch.full_like(TOKENS, -100)).loss.isnan()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    model = scattered(LanguageModel()).to(dtype)
    want = results(model)
    patch(model, only="", loss=True)
    got = results(model)
    assert got[0].logits is None
    assert got[0].loss.dtype == want[0].loss.dtype
    tolerance = 0.03 if dtype == torch.bfloat16 else 1e-5
    for mine, other in zip([want[0].loss, *want[1]], [got[0].loss, *got[1]]):
        torch.testing.assert_close(other, mine, rtol=tolerance, atol=tolerance)


def test_autocast(model: LanguageModel) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        want = results(model)
        patch(model, loss=True)
        got = results(model)
    assert got[0].logits is None
    for mine, other in zip([want[0].loss, *want[1]], [got[0].loss, *got[1]]):
        assert mine.dtype == other.dtype
        torch.testing.assert_close(other, mine, rtol=0.03, atol=0.03)


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
def test_it_compiles(model: LanguageModel) -> None:
    model.dropout.p = 0.0
    want = results(model)
    patch(model, loss=True)
    torch.compiler.reset()
    assert_same(want, results(torch.compile(model)))  # type: ignore[arg-type]


# -------------------------------------------------------------------- several processes


needs_gloo = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="this torch has no gloo"
)


@needs_gloo
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("inside", [False, True])
def test_ddp(inside: bool, tmp_path: Path) -> None:
    compare(0, 1, str(tmp_path / "meeting"), inside)


@needs_gloo
@pytest.mark.slow
@pytest.mark.parametrize("inside", [False, True])
def test_ddp_with_two_processes(inside: bool, tmp_path: Path) -> None:
    run(2, str(tmp_path / "meeting"), inside)


# -------------------------------------------------------------------- the library itself

SIZES = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "head_dim": 8}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["Llama", "Gemma", "Gemma2", "Qwen3", "Mistral"])
def test_models_of_hugging_face(name: str) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = getattr(transformers, f"{name}Config")(**SIZES, **HEADS)
    model = scattered(getattr(transformers, f"{name}ForCausalLM")(config)).train()
    want = [model(input_ids=TOKENS, labels=LABELS, num_items_in_batch=count).loss for count in (None, 7)]
    done = patch(model, loss=True)
    assert not done.skipped
    assert {layer.kind for layer in done.layers} == {f"{name}ForCausalLM", f"{name}RMSNorm"}
    for first, count in zip(want, (None, 7)):
        out = model(input_ids=TOKENS, labels=LABELS, num_items_in_batch=count)
        assert out.logits is None
        torch.testing.assert_close(out.loss, first)
        parameters = list(model.parameters())
        for mine, other in zip(torch.autograd.grad(first, parameters), torch.autograd.grad(out.loss, parameters)):
            torch.testing.assert_close(other, mine, rtol=1e-4, atol=1e-5)
