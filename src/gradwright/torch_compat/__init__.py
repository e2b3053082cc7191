"""Every private torch name gradwright uses, probed once, with its public fallback.

Nothing else in the package may touch a name of torch that starts with an underscore; a test enforces it.
"""

from __future__ import annotations

import inspect
import math
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

from gradwright.errors import missing_torch

try:
    import torch
    from torch.autograd import Function
except ModuleNotFoundError as error:
    if error.name == "torch":
        raise missing_torch() from None
    raise

from torch.autograd import forward_ad
from torch.utils._pytree import keystr, tree_flatten, tree_flatten_with_path, tree_unflatten

from gradwright.torch_compat.batches import any_batched as any_batched
from gradwright.torch_compat.batches import bare_sample as bare_sample
from gradwright.torch_compat.batches import batched_like as batched_like
from gradwright.torch_compat.batches import functorch as _functorch
from gradwright.torch_compat.batches import is_legacy_batch as is_legacy_batch
from gradwright.torch_compat.batches import legacy_batch_first as legacy_batch_first
from gradwright.torch_compat.batches import legacy_batched as legacy_batched
from gradwright.torch_compat.batches import may_be_batched as may_be_batched
from gradwright.torch_compat.batches import outside_transforms as outside_transforms
from gradwright.torch_compat.batches import transforms_active as transforms_active
from gradwright.torch_compat.batches import under_vmap as under_vmap
from gradwright.torch_compat.batches import unwrap_dead as unwrap_dead
from gradwright.torch_compat.ending import at_end as at_end
from gradwright.torch_compat.ending import can_fork as can_fork
from gradwright.torch_compat.ending import go_on as go_on
from gradwright.torch_compat.ending import refuse_collectives as refuse_collectives
from gradwright.torch_compat.functions import all_functions as all_functions
from gradwright.torch_compat.functions import function_of as function_of
from gradwright.torch_compat.functions import generated_for as generated_for
from gradwright.torch_compat.functions import watch_apply as watch_apply
from gradwright.torch_compat.functions import watch_functions as watch_functions
from gradwright.torch_compat.hooks import saved_tensor_hooks_off as saved_tensor_hooks_off
from gradwright.torch_compat.modules import call_module as call_module
from gradwright.torch_compat.modules import module_lock as module_lock
from gradwright.torch_compat.modules import module_places as module_places
from gradwright.torch_compat.operators import is_operator as is_operator
from gradwright.torch_compat.operators import operator_definition as operator_definition
from gradwright.torch_compat.operators import operator_name as operator_name
from gradwright.torch_compat.operators import operator_named as operator_named
from gradwright.torch_compat.operators import operator_overload as operator_overload
from gradwright.torch_compat.operators import operator_schema as operator_schema
from gradwright.torch_compat.operators import operator_source as operator_source
from gradwright.torch_compat.recording import anywhere as anywhere
from gradwright.torch_compat.recording import call_untraced as call_untraced
from gradwright.torch_compat.recording import call_unwatched as call_unwatched
from gradwright.torch_compat.recording import compiled_code as compiled_code
from gradwright.torch_compat.recording import compiler_is_off as compiler_is_off
from gradwright.torch_compat.recording import compiler_watches as compiler_watches
from gradwright.torch_compat.recording import is_exporting as is_exporting
from gradwright.torch_compat.recording import is_recording as is_recording
from gradwright.torch_compat.recording import modes as modes
from gradwright.torch_compat.recording import never_from_disk as never_from_disk
from gradwright.torch_compat.recording import reset_compiler as reset_compiler
from gradwright.torch_compat.recording import run_by_compiler as run_by_compiler
from gradwright.torch_compat.recording import unseen as unseen
from gradwright.torch_compat.recording import untraced as untraced
from gradwright.torch_compat.recording import without_numbers as without_numbers

F = TypeVar("F", bound=Callable[..., Any])

any_autocast: Callable[[], bool]
"""Tell whether autocast is on for some device; without the probe: perhaps, so look closer."""
try:
    from torch._C import _is_any_autocast_enabled as any_autocast
except ImportError:  # pragma: no cover - depends on the torch version

    def any_autocast() -> bool:
        """Tell whether autocast is on; not known in this version, so perhaps."""
        return True


if hasattr(forward_ad, "_current_level"):

    def forward_mode_on() -> bool:
        """Tell whether a level of forward mode is open, so that tensors may carry tangents."""
        return forward_ad._current_level >= 0

else:  # pragma: no cover - depends on the torch version

    def forward_mode_on() -> bool:
        """Tell whether a level of forward mode is open; not known in this version, so perhaps."""
        return True


def forward_mode_enabled() -> AbstractContextManager[Any]:
    """Return a context in which operations pass tangents on, also inside the ``jvp`` of a Function."""
    enabled = getattr(forward_ad, "_set_fwd_grad_enabled", None)
    return nullcontext() if enabled is None else enabled(True)


def primal(tensor: Any) -> Any:
    """Return a tensor without its tangent; inside a vmap as well, for which ``unpack_dual`` has no batching rule."""
    if tensor.layout != torch.strided:
        return tensor  # a sparse tensor has no tangent, and cannot be asked
    if _functorch is None or not _functorch.is_batchedtensor(tensor):
        return forward_ad.unpack_dual(tensor).primal
    inner = primal(_functorch.get_unwrapped(tensor))
    return _functorch._add_batch_dim(inner, _functorch.maybe_get_bdim(tensor), _functorch.maybe_get_level(tensor))


def tracked(tensor: torch.Tensor) -> bool:
    """Tell whether a derivative may be asked for in a tensor, at any level of ``torch.func``; if in doubt, it may."""
    if _functorch is None or not hasattr(_functorch, "is_gradtrackingtensor"):
        return True  # pragma: no cover - depends on the torch version
    tensor = unwrap_dead(tensor)
    if tensor.requires_grad or _functorch.is_gradtrackingtensor(tensor):
        return True
    if _functorch.is_batchedtensor(tensor):
        return tracked(_functorch.get_unwrapped(tensor))
    return forward_mode_on() and (tensor.layout != torch.strided or forward_ad.unpack_dual(tensor).tangent is not None)


def in_graph(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor has a graph at the level where it is, looking through ``vmap``, which does not tell."""
    tensor = unwrap_dead(tensor)
    while _functorch is not None and _functorch.is_batchedtensor(tensor):
        tensor = unwrap_dead(_functorch.get_unwrapped(tensor))
    return tensor.requires_grad


def moves(tensor: torch.Tensor) -> bool:
    """Tell whether a derivative is followed through a tensor, at any level of ``torch.func``, or it is a batch."""
    while _functorch is not None and _functorch.is_functorch_wrapped_tensor(tensor):
        if _functorch.is_batchedtensor(tensor) or _followed(tensor):
            return True
        tensor = _functorch.get_unwrapped(tensor)
    return _followed(tensor)


def _followed(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad or (forward_mode_on() and forward_ad.unpack_dual(tensor).tangent is not None)


def may_move(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor may be differentiated: it requires grad, or a transform or forward mode is at it."""
    if tensor.requires_grad:
        return True
    if transforms_active() and not torch.compiler.is_compiling():
        return torch.func.debug_unwrap(tensor) is not tensor
    return forward_mode_on() and forward_ad.unpack_dual(tensor).tangent is not None


def checkpointing() -> bool:
    """Tell whether ``torch.utils.checkpoint`` is around, which runs what is in it again in the backward."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    hooks = None if top is None else top(True)
    if hooks is not None and getattr(hooks[0], "__module__", "") == "torch.utils.checkpoint":
        return True
    # The reentrant kind has no hooks: it is known by the Function that runs the call.
    file = getattr(sys.modules.get("torch.utils.checkpoint"), "__file__", None)
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return frame is not None


def direct_apply(function: type[Function]) -> Callable[..., Any]:
    """Return ``function.apply`` without what PyTorch does in Python around it: binding and the look for transforms.

    To be called only with positional arguments and while no transform is active.
    """
    return super(Function, function).apply  # type: ignore[misc, no-any-return]


def has_setup_context(function: type[Function]) -> bool:
    """Tell whether ``function`` is in the two-part style: ``forward`` without ``ctx``, plus ``setup_context``."""
    return function.setup_context is not Function.setup_context


def flatten(value: Any, whole: type | None = None) -> tuple[list[Any], Any]:
    """Return the leaves of nested containers (list, tuple, dict, dataclass known to torch) and their structure.

    A container of the type ``whole`` is one leaf.
    """
    return tree_flatten(value, None if whole is None else lambda part: isinstance(part, whole))


def unflatten(leaves: list[Any], structure: Any) -> Any:
    """Undo :func:`flatten`."""
    return tree_unflatten(leaves, structure)


def leaf_paths(value: Any, whole: type | None = None) -> list[str]:
    """Return how each leaf of ``value`` is reached from it, for example ``['weight'][0]``, in the order of flatten."""
    paths, _ = tree_flatten_with_path(value, None if whole is None else lambda part: isinstance(part, whole))
    return [keystr(path) for path, _ in paths]


def fields_of_tuple(value: Any) -> tuple[str, ...] | None:
    """Return the names in a named tuple (Python documents ``_fields``), or None for anything else."""
    fields = getattr(value, "_fields", None) if isinstance(value, tuple) else None
    return None if fields is None else tuple(fields)


def node_function(node: Any) -> type[Function] | None:
    """Return the Function class that made an autograd graph node, or None for a node of PyTorch's own."""
    owner = getattr(type(node), "_forward_cls", None)
    return owner if isinstance(owner, type) and issubclass(owner, Function) else None


def expected_gradients(node: Any) -> list[tuple[torch.Size, torch.dtype, torch.device]]:
    """Return shape, dtype and device of each gradient that a graph node must give; empty when torch does not tell.

    There is one for each input that needs a gradient, in order.
    """
    edges = [(following, number) for following, number in node.next_functions if following is not None]
    if not all(hasattr(following, "_input_metadata") for following, _ in edges):
        return []  # pragma: no cover - depends on the torch version
    wanted = [following._input_metadata[number] for following, number in edges]
    return [(torch.Size(item.shape), item.dtype, item.device) for item in wanted]


def where_between(values: torch.Tensor, positions: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Return ``values`` where ``low < positions < high``, and zero elsewhere; where ``positions`` is nan, either.

    It is the kernel behind the gradient of ``hardtanh``: one pass over the memory, and no boolean in between.
    """
    kept: torch.Tensor = torch.ops.aten.hardtanh_backward(values, positions, low, high)
    return kept


def where_above(value: float, positions: torch.Tensor, low: float) -> torch.Tensor:
    """Return ``value`` where ``positions > low`` or nan, and zero elsewhere.

    It is the kernel behind the gradient of ``relu``, as for :func:`where_between`.
    """
    values = torch.full((), value, dtype=positions.dtype, device=positions.device).expand(positions.shape)
    kept: torch.Tensor = torch.ops.aten.threshold_backward(values, positions, low)
    return kept


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Tell whether two tensors lie in the same memory, also where they have none (fake tensors)."""
    return bool(torch._C._is_alias_of(a, b))  # type: ignore[attr-defined]


edits: Callable[[Any], int] = operator.attrgetter("_version")
"""Return how many in-place changes of a tensor autograd has noticed."""


def all_edits(tensors: Sequence[Any]) -> list[int]:
    """Return :func:`edits` of each tensor; of those made in inference mode, which are not counted, 0."""
    try:
        return list(map(edits, tensors))
    except RuntimeError:
        return [0 if tensor.is_inference() else edits(tensor) for tensor in tensors]


# What ``save_for_backward``, ``mark_dirty`` and ``mark_non_differentiable`` leave on a ctx; the names of that have no
# documentation (checked up to torch 2.13).


saved_so_far: Callable[[Any], tuple[Any, ...] | None] = operator.attrgetter("to_save")
"""Return what the forward that runs has saved on a ctx of PyTorch; None where that is nothing."""

marked_dirty: Callable[[Any], tuple[Any, ...] | None] = operator.attrgetter("dirty_tensors")
"""Return what the forward that runs has marked as changed in place."""

marked_still: Callable[[Any], tuple[Any, ...] | None] = operator.attrgetter("non_differentiable")
"""Return what the forward that runs has marked as without derivative."""


def is_view(tensor: Any) -> bool:
    """Tell whether a tensor is a view of another, as autograd counts them, also inside transforms."""
    return bool(torch.func.debug_unwrap(tensor, recurse=True)._is_view())


def is_delayed_error(node: Any) -> bool:
    """Tell whether a graph node is the one that ``once_differentiable`` leaves to raise when it is run."""
    return type(node).__name__ == "Error"


@contextmanager
def data_of_batched_tensors_refused() -> Iterator[None]:
    """Make ``.data`` of a tensor that ``is_grads_batched=True`` hands out raise instead of ending the process.

    PyTorch dereferences a null pointer there (seen up to torch 2.13), which a rule with ``grad_output.data`` runs into.
    """
    is_batched = getattr(torch._C._functorch, "is_legacy_batchedtensor", None)
    tensor_class: Any = torch.Tensor
    stored: Any = torch._C.TensorBase.data
    if is_batched is None or "data" in vars(tensor_class):  # pragma: no cover - depends on the torch version
        yield
        return

    def read(tensor: torch.Tensor) -> torch.Tensor:
        if is_batched(tensor):
            raise RuntimeError("`.data` of a batched tensor is not allowed; use .detach()")
        found: torch.Tensor = stored.__get__(tensor)
        return found

    tensor_class.data = property(read, lambda tensor, value: stored.__set__(tensor, value))
    try:
        yield
    finally:
        del tensor_class.data


def has_memory(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor holds numbers: a tangent of zeros in forward mode need not, and reading it crashes."""
    return not tensor.is_meta and not tensor._is_zerotensor()


def stored_elements(tensor: torch.Tensor) -> int:
    """Return how many elements a sparse tensor stores; all of them, where that cannot be told."""
    try:
        return int(tensor._nnz()) * tensor.numel() // max(math.prod(tensor.shape[: tensor.sparse_dim()]), 1)
    except (RuntimeError, NotImplementedError):
        return tensor.numel()


def watch_operations(look: Callable[[Any, Any], None]) -> AbstractContextManager[Any]:
    """Call ``look(operation, result)`` for every operation that is really run within the block.

    It is a ``TorchDispatchMode``, whose module is private.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            look(func, result)
            return result

    return Watch()  # type: ignore[no-untyped-call]


def has_hooks(module: torch.nn.Module) -> bool:
    """Tell whether anything runs before or after a module, or its backward."""
    kinds = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    return any(getattr(module, kind, None) for kind in kinds)


def is_compiled(module: torch.nn.Module) -> bool:
    """Tell whether a module is what ``torch.compile`` returned, or was told to ``compile()`` itself."""
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None


def version() -> str:
    """Return the version of torch."""
    return str(torch.__version__)
