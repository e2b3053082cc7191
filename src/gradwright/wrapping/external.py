"""``external``: a function of arrays, which autograd cannot see, as a differentiable function of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradwright.wrapping.calculus import SecondOrder
from gradwright.wrapping.foreign import ForeignFunction


def external(
    function: Callable[..., Any] | None = None,
    /,
    *,
    argnums: int | str | Sequence[int | str] | None = None,
    out: Any = None,
    derivative: Any = None,
    dtype: torch.dtype | str | None = None,
    order: str = "K",
    copy: bool | None = None,
    device_types: str | Sequence[str] | None = None,
    vmap_method: str | None = "sequential",
    workers: Any = None,
    on_error: Any = "raise",
    max_order: int | None = None,
    second_order: SecondOrder = "error",
    cache: int = 0,
    pure: bool = True,
    releases_gil: bool = False,
    op: str | None = None,
) -> Any:
    """Make a function of arrays a differentiable function of tensors: a decorator, and a function of a function.

    The function may be anything that Python can call: NumPy, SciPy, a compiled extension, a simulator. It gets an array
    for every tensor and everything else as it is, and returns an array or a number, or a tuple of them. Its derivative
    is attached as rules on arrays, which ask by name for what they need, as those of ``gw.custom_gradient`` do:

    - ``register_vjp``: ``rule(g, ...)`` returns J^T g for each differentiable argument (a dict by name, or a tuple);
    - ``register_jvp``: ``rule(t, ...)`` returns J t;
    - ``register_jacobian``: ``rule(...)`` returns J, of the shape of the output and then that of the argument;
    - ``register_hvp``: ``rule(g, t, ...)`` returns the gradient of ``<g, J t>``, for second derivatives;
    - ``register_vmap``: the function for a whole batch.

    One of the first three is enough, or ``derivative=gw.fd()``. Under ``torch.func``, forward mode, ``vmap``,
    ``torch.compile`` and ``torch.export`` the derivative is the same, or an error says what is missing.

    Arguments:
        function: of arrays and constants.
        argnums: positions or names of the differentiable arguments; by default all that are not annotated as constants
            (``int``, ``str``, ...) and have no constant as default.
        out: what it returns: ``gw.like(0)``, ``gw.spec(shape, dtype)``, a tuple of these, or a function of the same
            arguments that returns empty tensors. It is needed for ``torch.compile(fullgraph=True)`` and export, and
            every result is compared with it.
        derivative: ``gw.fd(...)`` or ``gw.spsa(...)`` where there are no rules.
        dtype: in which it computes: floating arguments are cast to it, results and gradients back. None: as they come
            (bfloat16, which NumPy does not have, as float32).
        order: memory order of its arguments: ``"C"``, ``"F"``, or ``"K"`` for as they are.
        copy: None: arguments share memory with the tensors, read-only, where they can; True: it gets copies, to write
            into; False: an argument that had to be copied is an error.
        device_types: of the tensors that are accepted; None: any, through the memory of the CPU.
        vmap_method: under ``vmap``: ``"sequential"``, one call a sample; ``"broadcast_all"``, one call, with the batch
            as leading dimension of every array, which rules then get as well; ``"expand_dims"``, the same with size 1
            where an argument is not batched; ``"workers"``, as ``workers`` says; None: refused.
        workers: runs the samples of a batch, and the points of ``gw.fd``, in parallel: a number of processes (of
            threads with ``releases_gil``), an executor, a ``joblib.Parallel``, a Dask client or a Ray actor pool.
        on_error: for a sample of a batch that raises: ``"raise"``, ``"nan"`` for its result, or ``f(error, index,
            inputs)`` that returns what takes its place. A single call always raises.
        max_order: how many derivatives are promised: 1 refuses a second even where there is a rule for it.
        second_order: ``"differences"`` takes second derivatives as differences of first ones, where there is no rule.
        cache: how many results are kept, found by the values of the arguments; none of calls with constants that may
            change (anything but numbers, text and tuples of these).
        pure: False for a function that returns something else each time or has effects: it is never called more often
            than asked for, always in order, and refuses to be compiled or checkpointed.
        releases_gil: whether several threads of it run at once.
        op: ``"namespace::name"`` of its operator in compiled and exported code; by default made of module and name.

    Raises:
        DefinitionError: the function or a declaration cannot be used as it is.
        OptionError: an option has a value that is not known.

    Example:
        >>> import numpy as np, torch, gradwright as gw
        >>> @gw.external(out=gw.like("x"))
        ... def softplus(x):
        ...     return np.logaddexp(x, 0.0)
        >>> @softplus.register_vjp
        ... def softplus_vjp(g, x):
        ...     return g / (1 + np.exp(-x))
        >>> x = torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True)
        >>> torch.autograd.grad(softplus(x).sum(), x)
        (tensor([0.5000, 0.7311], dtype=torch.float64),)
        >>> torch.func.jacfwd(softplus)(x.detach()).diagonal()
        tensor([0.5000, 0.7311], dtype=torch.float64)
    """
    options = dict(locals())
    options.pop("function")
    if function is None:
        return lambda function: ForeignFunction(function, **options).call
    return ForeignFunction(function, **options).call
