"""Copies of what a program hands to a function: equal in all that matters, and never noticed by the program."""

from __future__ import annotations

import dataclasses
import threading
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gradwright.checking.tensors import same_bits
from gradwright.watching.calls import Elsewhere, Unkept
from gradwright.watching.capture import Budget, capture, capture_call, leaves_of, size_of
from gradwright.watching.copies import copy_tensor
from gradwright.watching.specs import TensorSpec

Pair = namedtuple("Pair", ["first", "second"])


def kept(value: Any) -> Any:
    return capture(value, Budget())


def grid(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.arange(1, 1 + torch.Size(shape).numel(), dtype=dtype).reshape(shape)


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "plain": lambda: grid(3, 4),
    "0-dim": lambda: torch.tensor(2.5),
    "empty": lambda: torch.empty(0, 3),
    "transposed": lambda: grid(3, 4).t(),
    "channels last": lambda: grid(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "every other": lambda: grid(10)[::2],
    "padded rows": lambda: grid(4, 5)[:, :3],
    "expanded": lambda: grid(3, 1).expand(3, 4),
    "expanded scalar": lambda: torch.tensor(2.0).expand(2, 3),
    "overlapping": lambda: grid(8).unfold(0, 3, 1),
    "complex": lambda: torch.complex(grid(3), grid(3).flip(0)),
    "conjugate": lambda: torch.complex(grid(3), grid(3)).conj(),
    "negative": lambda: torch.complex(grid(3), grid(3)).conj().imag,
    "bfloat16": lambda: grid(3).to(torch.bfloat16),
    "float8": lambda: grid(3).to(torch.float8_e4m3fn),
    "bool": lambda: grid(3) > 2,
    "int": lambda: grid(3, dtype=torch.int32),
    "offset": lambda: grid(6)[2:],
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_copy_has_values_strides_and_lazy_bits(name: str) -> None:
    tensor = LAYOUTS[name]()
    copied = kept(tensor)
    assert same_bits(copied, tensor)
    assert copied.stride() == tensor.stride()
    assert copied.storage_offset() == tensor.storage_offset()
    assert (copied.is_conj(), copied.is_neg()) == (tensor.is_conj(), tensor.is_neg())
    assert tensor.numel() == 0 or copied.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()


def test_a_column_of_a_large_matrix_does_not_keep_the_matrix() -> None:
    column = torch.randn(3000, 200)[:, 7]
    copied = kept(column)
    assert torch.equal(copied, column)
    assert copied.stride() == (2,)
    assert copied.untyped_storage().nbytes() == 2 * 3000 * 4 - 4
    block = torch.randn(300, 500)[::40, ::50].t().unsqueeze(1).expand(-1, 4, -1)
    copied = kept(block)
    assert torch.equal(copied, block)
    assert copied.stride() == (2, 0, 21)


def test_part_of_a_large_memory_does_not_keep_the_memory() -> None:
    assert kept(torch.zeros(100_000)[500:510]).untyped_storage().nbytes() <= 26 * 4


def test_requires_grad_is_kept_without_the_graph() -> None:
    leaf = torch.ones(2, requires_grad=True)
    copied = kept([leaf, leaf * 2, leaf.detach()])
    assert [t.requires_grad for t in copied] == [True, True, False]
    assert all(t.is_leaf for t in copied)
    assert kept(torch.nn.Parameter(torch.ones(2))).requires_grad
    with torch.no_grad():
        assert kept(leaf).requires_grad


def test_the_original_stays_as_it_is() -> None:
    leaf = torch.ones(4, requires_grad=True)
    base = leaf * 3
    view = base[::2]
    calls: list[Tensor] = []
    view.register_hook(calls.append)
    before = view._version, torch.get_rng_state(), torch.is_grad_enabled()
    kept((leaf, base, view, {"x": view}))
    assert (view._version, torch.is_grad_enabled()) == (before[0], before[2])
    assert torch.equal(torch.get_rng_state(), before[1])
    assert leaf.grad is None
    assert not calls
    assert view.requires_grad
    assert view.grad_fn is not None
    view.sum().backward()
    assert leaf.grad is not None


def test_containers_are_copied_and_what_is_shared_stays_shared() -> None:
    @dataclasses.dataclass
    class Both:
        weight: Tensor
        name: str

    x = grid(3)
    value = (x, [x, 2], {"x": x, "k": None}, Pair(x, "a"), OrderedDict(y=x), Both(x, "b"))
    copied = kept(value)
    tensors = [leaf for leaf in leaves_of(copied) if isinstance(leaf, Tensor)]
    assert len(tensors) == 6
    assert all(t is tensors[0] for t in tensors)
    assert tensors[0] is not x
    assert copied[1] is not value[1]
    assert copied[1][1] == 2
    assert isinstance(copied[3], Pair)
    assert copied[3].second == "a"
    assert isinstance(copied[4], OrderedDict)
    assert isinstance(copied[5], Both)
    assert copied[5] is not value[5]
    assert copied[5].name == "b"


def test_other_values_are_kept_as_they_are() -> None:
    for value in (1, 2.5, "x", None, True, 1j, torch.float32, torch.device("cpu"), torch.Size([2, 3]), object(), len):
        assert kept(value) is value


def test_a_large_tensor_becomes_a_specification() -> None:
    budget = Budget(sample=100, total=150)
    assert isinstance(capture(torch.ones(26), budget), TensorSpec)
    assert isinstance(capture(torch.ones(25), budget), Tensor)
    assert isinstance(capture(torch.ones(25), budget), TensorSpec), "together they are too many"
    assert isinstance(capture(torch.tensor(1.0).expand(1000, 1000), budget), Tensor), "it takes four bytes"
    spec = capture((torch.ones(30, requires_grad=True) * 2).view(5, 6).t(), budget)
    assert (spec.shape, spec.stride, spec.requires_grad) == ((6, 5), (1, 6), True)


def test_what_was_not_used_is_given_back() -> None:
    budget = Budget(sample=100, total=200)
    x = torch.ones(25)
    copied = capture((x, x, [torch.ones(25)]), budget)
    assert size_of(copied) == 200
    assert budget.left == 0
    budget.give_back(copied)
    assert budget.left == 200


def test_without_a_budget_no_values_are_kept() -> None:
    assert isinstance(capture(torch.tensor([3]), Budget(sample=0)), TensorSpec)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_sparse_tensors_are_copied() -> None:
    for dense in (torch.eye(3), torch.eye(4, dtype=torch.complex64)):
        for sparse in (dense.to_sparse(), dense.to_sparse_csr()):
            copied = kept(sparse)
            assert copied.layout == sparse.layout
            assert copied is not sparse
            assert torch.equal(copied.to_dense(), dense)
    large = capture(torch.eye(100).to_sparse(), Budget(sample=100))
    assert isinstance(large, Unkept)
    assert "too large" in large.reason


def test_quantised_tensors_are_copied() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = torch.quantize_per_tensor(grid(4, dtype=torch.float32), 0.5, 3, torch.quint8)
    copied = kept(tensor)
    assert copied.is_quantized
    assert copied is not tensor
    assert torch.equal(copied.dequantize(), tensor.dequantize())
    assert isinstance(capture(tensor, Budget(sample=1)), Unkept)


def test_inference_tensors_become_ordinary_ones() -> None:
    with torch.inference_mode():
        x = torch.ones(3)
        inside = kept(x)
    outside = kept(x)
    assert not inside.is_inference()
    assert not outside.is_inference()


class Loud(Tensor):
    """Takes part in every operation as a function."""

    seen = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen += 1
        return super().__torch_function__(func, types, args, kwargs or {})


class Dispatched(Tensor):
    """Takes part in every operation as a dispatcher."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("it was seen")


def test_subclasses_keep_their_class_and_see_nothing() -> None:
    tensor: Any = torch.ones(3).as_subclass(Loud).requires_grad_()
    tensor.label = "mine"
    Loud.seen = 0
    copied = kept(tensor)
    assert Loud.seen == 0
    assert type(copied) is Loud
    assert copied.label == "mine"
    assert copied.requires_grad
    assert copied.is_leaf
    strange = kept(torch.ones(3).as_subclass(Dispatched))
    assert isinstance(strange, Unkept)
    assert strange.what == "Dispatched"


def test_modes_see_nothing() -> None:
    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Notice(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen: list[Any] = []
    x, y = torch.ones(3), torch.ones(4).expand(3, 4)
    with Record(), Notice():
        capture((x, y), Budget())
        capture((x, y), Budget(sample=0))
    assert not seen


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(3, device="meta"),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: torch._subclasses.FakeTensorMode().from_tensor(torch.ones(3)),
    ],
    ids=["meta", "nested", "fake"],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_has_no_plain_values_is_named(make: Callable[[], Tensor]) -> None:
    result = kept([make(), 1])
    assert isinstance(result[0], Unkept)
    assert result[0].reason
    assert result[1] == 1


def test_inside_transforms_the_values_are_kept() -> None:
    found: list[Any] = []

    def look(x: Tensor) -> Tensor:
        found.append(kept(x))
        return x.sin().sum()

    x = grid(2, 3)
    torch.func.grad(look)(x[0])
    torch.func.vmap(look)(x)
    torch.func.vmap(torch.func.grad(look))(x)
    torch.func.jvp(look, (x[0],), (x[0],))
    assert all(torch.equal(copied, x[0]) for copied in found)
    assert not any(torch._C._functorch.is_functorch_wrapped_tensor(copied) for copied in found)
    assert [copied.requires_grad for copied in found] == [True, False, True, False]


def test_of_a_batch_of_batches_the_first_sample_is_kept() -> None:
    found: list[Any] = []

    def look(x: Tensor) -> Tensor:
        found.append(kept(x))
        return x.sin()

    x = grid(2, 3, 4)
    torch.func.vmap(torch.func.vmap(look, in_dims=1), in_dims=2)(x)
    (copied,) = found
    assert torch.equal(copied, x[:, 0, 0])


def test_tangents_are_left_behind() -> None:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(grid(3), grid(3))
        copied = kept(dual)
        assert torch.autograd.forward_ad.unpack_dual(copied).tangent is None
        assert torch.autograd.forward_ad.unpack_dual(dual).tangent is not None


def test_batches_of_cotangents_are_named() -> None:
    found: list[Any] = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            found.append(kept(g))
            return g * 2

    x = grid(3).requires_grad_()
    torch.autograd.grad(Twice.apply(x), x, torch.eye(3, dtype=torch.float64), is_grads_batched=True)
    assert isinstance(found[0], Unkept)


def test_nothing_is_raised() -> None:
    class Stubborn:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no")

        __hash__ = None  # type: ignore[assignment]

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("no")

    stubborn = Stubborn()
    assert kept(stubborn) is stubborn
    circle: list[Any] = []
    circle.append(circle)
    assert isinstance(kept(circle), Unkept)
    freed = torch.ones(3)
    freed.untyped_storage().resize_(0)
    assert isinstance(kept(freed), Unkept)


def test_a_call_has_the_random_state() -> None:
    torch.manual_seed(3)
    x = torch.ones(2)
    call = capture_call((x, 2), {"k": x}, Budget())
    drawn = torch.rand(2)
    assert call.args[0] is call.kwargs["k"]
    assert call.random_state is not None
    torch.set_rng_state(call.random_state)
    assert torch.equal(torch.rand(2), drawn)
    circle: list[Any] = []
    circle.append(circle)
    assert isinstance(capture_call((circle,), {}, Budget()).args[0], Unkept)


def test_threads_share_a_budget() -> None:
    budget = Budget(sample=4, total=400)
    results: list[Any] = []

    def work() -> None:
        results.extend(capture(torch.ones(1), budget) for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(result, Tensor) for result in results) == 100


def test_a_tensor_on_another_device_is_copied_into_main_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Away(Tensor):
        is_cpu = False

    x = torch.ones(3, 1).as_subclass(Away).expand(3, 4)
    copied = copy_tensor(x)
    assert copied.stride() == (1, 0)
    assert Elsewhere(copied, "cuda:0").values is copied
