"""A case: one subject on one sample, ready to be evaluated again and again.

Every evaluation gets fresh copies of the sample's tensors, so that nothing a user's function does to its inputs can
reach the next evaluation. Numerics see a case as a real function of real vectors: complex tensors are viewed as pairs
of real numbers, and all differentiable outputs are joined into one vector.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function

from gradwright.checking import trees
from gradwright.checking.allowances import NONE, Allowances
from gradwright.checking.approximate import accuracy_of, allowed
from gradwright.checking.companions import pull_companion
from gradwright.checking.domain import parse_domain, refuse_outside, refuse_unknown
from gradwright.checking.limits import STOPS
from gradwright.checking.parts import Adjustment, Output, Pass, differentiable_inputs
from gradwright.checking.precision import hidden_epsilon
from gradwright.checking.randomness import fixed_random_state, generator_states
from gradwright.checking.samples import Sample
from gradwright.checking.subject import Argument, Subject, describe_arguments
from gradwright.checking.tensors import (
    copy_of,
    from_flat,
    join,
    real_dtype,
    real_size,
    same_bits,
    tensors_in,
    to_flat,
    unravel,
)
from gradwright.errors import ForwardError, SampleError, describe_exception
from gradwright.typing import Level

Randomness = Literal["none", "seeded", "uncontrolled"]
REPEATS = 20
"""So many pairs of equal calls tell one that draws random numbers from one that changed once."""


class Case:
    """One subject on one sample.

    Raises:
        SampleError: the sample does not fit the subject or has nothing to differentiate.
        ForwardError: forward raised on the sample.
    """

    def __init__(
        self,
        subject: Subject,
        sample: Sample,
        level: Level = "standard",
        seed: int = 0,
        arguments: Sequence[Argument] | None = None,
        allowances: Allowances = NONE,
    ) -> None:
        self.subject = subject
        self.sample = sample
        self.level = level
        self.seed = seed
        self.granted = allowances
        """What the caller allows."""
        self.arguments = list(arguments) if arguments is not None else subject.bind(sample)
        self.inputs = differentiable_inputs(subject, self.arguments)
        if not self.inputs:
            raise SampleError(
                f"{subject.name}: the sample ({self.describe()}) has no floating-point or complex tensor to "
                "differentiate; expected at least one that is an argument of its own (autograd does not track tensors "
                "inside containers that are passed to a Function); pass torch.randn(3, dtype=torch.float64), say."
            )
        self.domain = parse_domain(sample.domain, f"{subject.name}: domain")
        refuse_unknown(self.domain, [item.name for item in self.inputs], subject.name)
        if arguments is None:
            for item in self.inputs:
                refuse_outside(self.domain, item.name, item.tensor, subject.name)
        self.hung_under: str | None = None
        """Id of the contract that was stopped before a single backward had come back."""
        self.audit: object | None = None
        """Kept by :func:`gradwright.checking.audit.audit`."""
        self.adjust: Adjustment | None = None
        """What is done to each gradient before it is compared; set by :mod:`gradwright.checking.intended` alone."""
        self.in_place = False
        self.randomness: Randomness = "none"
        first = self._first_pass()
        if not first.outputs:
            raise SampleError(
                f"{subject.name}: forward returned no tensor that can be found; expected a tensor, or a tuple, list or "
                "dictionary of tensors; return one of these."
            )
        floating = [(p, out) for p, out in enumerate(first.outputs) if out.is_floating_point() or out.is_complex()]
        self.detached = not any(out.requires_grad for _, out in floating)
        """True when no output requires grad; all floating outputs are then evaluated, but none has a gradient."""
        self.outputs = [
            Output(position, out.shape, out.dtype) for position, out in floating if out.requires_grad or self.detached
        ]
        self.n_outputs = len(first.outputs)
        self._sizes = [real_size(o.shape, o.dtype) for o in self.outputs]
        self.m = sum(self._sizes)
        self.n = [real_size(i.tensor.shape, i.tensor.dtype) for i in self.inputs]
        self.randomness = self._find_randomness()
        self.draws = self.randomness != "none"
        """True when forward itself draws random numbers (backward may do so too)."""
        self.base = [to_flat(i.tensor) for i in self.inputs]

    @functools.cached_property
    def accuracy(self) -> float:
        """The relative error that the gradient has by the way it is computed, as the subject declares it."""
        return accuracy_of(self)

    @functools.cached_property
    def allowances(self) -> Allowances:
        """What the caller allows, and what the subject declares."""
        return allowed(self)

    @functools.cached_property
    def exact(self) -> Case:
        """The case the numerics use: its float64 twin when it is of lower precision and runs there, else itself."""
        if self.dtype == torch.float64:
            return self
        return self.twin(torch.float64) or self

    # ---------------------------------------------------------------- words

    def describe(self) -> str:
        """Describe the sample in a line, for example ``x: float64 (3, 4), k=2``."""
        return describe_arguments(self.arguments)

    def output_name(self, output: int) -> str:
        """Name the ``output``-th differentiable output for messages: ``the output`` when there is only one."""
        return "the output" if self.n_outputs == 1 else f"output {self.outputs[output].position}"

    def locate_output(self, j: int) -> tuple[int, tuple[int, ...]]:
        """Return which differentiable output element ``j`` of the joint vector lies in, and its index there."""
        for number, size in enumerate(self._sizes):
            if j < size:
                return number, unravel(j, self.outputs[number].shape, self.outputs[number].dtype)
            j -= size
        raise IndexError(j)

    def locate_input(self, k: int, i: int) -> tuple[int, ...]:
        """Return the index of element ``i`` of the flattened ``k``-th input."""
        return unravel(i, self.inputs[k].tensor.shape, self.inputs[k].tensor.dtype)

    def output_size(self, output: int) -> int:
        """Return how many real numbers the ``output``-th differentiable output holds."""
        return self._sizes[output]

    def output_slice(self, output: int) -> slice:
        """Return where the ``output``-th differentiable output lies in the joint vector."""
        start = sum(self._sizes[:output])
        return slice(start, start + self._sizes[output])

    def real_output_shape(self, output: int) -> tuple[int, ...]:
        """Return the shape of the ``output``-th differentiable output, with a last dimension of 2 if it is complex."""
        item = self.outputs[output]
        return (*item.shape, 2) if item.dtype.is_complex else tuple(item.shape)

    # ---------------------------------------------------------------- evaluation

    def forward(self, flats: Mapping[int, Tensor] | None = None, *, function: type[Function] | None = None) -> Pass:
        """Run forward with grad enabled on fresh tensors.

        Arguments:
            flats: real flat vectors that replace the values of some inputs, by input number.
            function: a stand-in for the Function class.
        """
        return self.forward_on(self.fresh_inputs(flats), function=function)

    def fresh_inputs(self, flats: Mapping[int, Tensor] | None = None) -> list[Tensor]:
        """Return fresh copies of the inputs that require grad; ``flats`` replaces the values of some of them."""
        flats = flats or {}
        return [
            (from_flat(flats[k], item.tensor) if k in flats else copy_of(item.tensor)).requires_grad_()
            for k, item in enumerate(self.inputs)
        ]

    def forward_on(
        self,
        tensors: Sequence[Tensor],
        *,
        function: type[Function] | None = None,
        mode: AbstractContextManager[Any] | None = None,
    ) -> Pass:
        """Run forward on these very tensors, one for each input, within a grad mode (enabled by default)."""
        passed = [t.clone() for t in tensors] if self.in_place else list(tensors)
        arguments = self.rebuild(passed)
        with self.sandbox(), mode or nullcontext():
            result = self.subject.call(arguments, function)
        outputs = tensors_in(result)
        # The first pass decides which outputs count as differentiable; until then there are none.
        known = getattr(self, "outputs", [])
        differentiable = [outputs[o.position] for o in known if o.position < len(outputs)]
        return Pass(arguments, list(tensors), outputs, differentiable, result)

    def value(self, flats: Mapping[int, Tensor] | None = None) -> Tensor:
        """Return all differentiable outputs as one real float64 vector of length ``m``.

        Where forward raises, or changes the shape of its outputs, and outside the declared domain, the function has no
        value: the vector is NaN.
        """
        if not self.in_domain(flats or {}):
            return torch.full((self.m,), float("nan"), dtype=torch.float64)
        try:
            outputs = [out.detach() for out in self.forward(flats).differentiable]
        except STOPS:
            raise
        except BaseException:
            outputs = []
        if [o.shape for o in outputs] != [o.shape for o in self.outputs]:
            return torch.full((self.m,), float("nan"), dtype=torch.float64)
        # Copies, as in pull: forward may return the same buffer at every call.
        return join([to_flat(out).to(torch.float64, copy=True) for out in outputs])

    def in_domain(self, flats: Mapping[int, Tensor]) -> bool:
        """Tell whether other values of some inputs lie in the declared domain."""
        real = ((self.inputs[k], x) for k, x in flats.items() if not self.inputs[k].tensor.is_complex())
        return all(self.domain.contains(item.name, x) for item, x in real)

    def cotangents(self, v: Tensor) -> list[Tensor]:
        """Split a real vector of length ``m`` into fresh cotangents, one for each differentiable output."""
        parts = torch.split(v, self._sizes)
        return [from_flat(part, torch.empty(o.shape, dtype=o.dtype)) for part, o in zip(parts, self.outputs)]

    def pull(self, v: Tensor, flats: Mapping[int, Tensor] | None = None) -> list[Tensor | None]:
        """Return the VJP of ``v``: for each input a real float64 vector, or None where backward gives none."""
        run = self.forward(flats)
        with self.sandbox():
            gradients = run.gradients(self.cotangents(v))
        # Copies: a rule that returns the same buffer at every call must not change what an earlier call gave.
        pulled = [None if g is None else to_flat(g.detach()).to(torch.float64, copy=True) for g in gradients]
        return pulled if self.adjust is None else self.adjust(pulled, flats or {})

    def pull_all(self, v: Tensor, flats: Mapping[int, Tensor] | None = None) -> list[Tensor]:
        """Like :meth:`pull`, with zeros where backward gives no gradient."""
        return [
            g if g is not None else torch.zeros(n, dtype=torch.float64) for n, g in zip(self.n, self.pull(v, flats))
        ]

    def flatten_inputs(self, gradients: Sequence[Tensor | None]) -> list[Tensor]:
        """Turn gradients of the inputs into real float64 vectors, with zeros for None."""
        return [
            torch.zeros(n, dtype=torch.float64) if g is None else to_flat(g).to(torch.float64)
            for n, g in zip(self.n, gradients)
        ]

    def flatten_outputs(self, values: Sequence[Tensor | None]) -> Tensor:
        """Turn one tensor (or None, for zeros) for each differentiable output into one real vector of length ``m``."""
        return join([torch.zeros(n) if value is None else to_flat(value) for n, value in zip(self._sizes, values)])

    def pull_surrogate(self, v: Tensor) -> list[Tensor]:
        """Return the VJP of ``v`` through the declared surrogate, as real float64 vectors."""
        return pull_companion(self, "surrogate", v)

    def on(self, arguments: Sequence[Argument]) -> Case:
        """Return the same subject on other arguments; raises what making a case raises."""
        return Case(self.subject, self.sample, self.level, self.seed, arguments, self.granted)

    def twin(self, dtype: torch.dtype) -> Case | None:
        """Return the same case with every real floating tensor in ``dtype`` (complex ones in the matching dtype).

        None when the subject does not run there.
        """

        def convert(leaf: Any) -> Any:
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                return leaf.detach().to(dtype).requires_grad_(leaf.requires_grad)
            if isinstance(leaf, Tensor) and leaf.is_complex():
                return leaf.detach().to(dtype.to_complex()).requires_grad_(leaf.requires_grad)
            return leaf

        arguments = []
        for argument in self.arguments:
            leaves, structure = trees.flatten(argument.value)
            arguments.append(replace(argument, value=trees.unflatten([convert(x) for x in leaves], structure)))
        try:
            twin = self.on(arguments)
        except (ForwardError, SampleError):
            return None
        if self.randomness != "none":
            twin.randomness = self.randomness
        return twin

    @functools.cached_property
    def dtype(self) -> torch.dtype:
        """The real dtype of the least precise input."""
        return max((real_dtype(i.tensor.dtype) for i in self.inputs), key=lambda dtype: torch.finfo(dtype).eps)

    @functools.cached_property
    def epsilon(self) -> float:
        """Unit of rounding of the least precise dtype that forward computes in, as far as can be seen."""
        dtypes = [i.tensor.dtype for i in self.inputs] + [o.dtype for o in self.outputs]
        seen = max(float(torch.finfo(real_dtype(dtype)).eps) for dtype in dtypes)
        return max(seen, self._hidden_epsilon)

    def output_epsilon(self) -> Tensor:
        """Return the rounding unit of each element of the joint output vector."""
        hidden = self._hidden_epsilon
        return join(
            [
                torch.full((size,), max(hidden, float(torch.finfo(real_dtype(o.dtype)).eps)), dtype=torch.float64)
                for size, o in zip(self._sizes, self.outputs)
            ]
        )

    @functools.cached_property
    def _hidden_epsilon(self) -> float:
        return hidden_epsilon(self)

    @functools.cached_property
    def forward_seconds(self) -> float:
        """Time of one forward, the smaller of two."""
        times = []
        for _ in range(2):
            start = time.perf_counter()
            self.forward()
            times.append(time.perf_counter() - start)
        return min(times)

    def generator(self, salt: str = "") -> torch.Generator:
        """Return a generator of random numbers that depends on the seed and on who asks."""
        return torch.Generator().manual_seed((self.seed * 1_000_003 + sum(map(ord, salt))) % 2**63)

    @contextmanager
    def sandbox(self) -> Iterator[None]:
        """Run with grad enabled; random numbers are the same ones each time: of a recorded call, those it drew."""
        with torch.enable_grad():
            if self.randomness != "seeded":
                yield
                return
            with fixed_random_state(self.seed, self.sample.random_state):
                yield

    # ---------------------------------------------------------------- construction

    def _first_pass(self) -> Pass:
        try:
            try:
                return self.forward()
            except RuntimeError as error:
                # An in-place Function refuses a leaf that requires grad; it is right on anything computed.
                if "leaf Variable" not in str(error):
                    raise
                self.in_place = True
                return self.forward()
        except STOPS:
            raise
        except BaseException as error:
            raise ForwardError(
                f"{self.subject.name}: forward raised {describe_exception(error)} on the sample ({self.describe()}); "
                "expected it to run; change the sample or mend forward."
            ) from error

    def _find_randomness(self) -> Randomness:
        return self._randomness_of(self.value)

    @functools.cached_property
    def backward_randomness(self) -> Randomness:
        """Whether backward gives the same twice; one that draws random numbers is seeded from here on."""
        v = torch.linspace(0.5, 1.5, self.m, dtype=torch.float64)
        return self._randomness_of(lambda: join(self.pull_all(v)))

    def _randomness_of(self, call: Callable[[], Tensor]) -> Randomness:
        before = generator_states()
        moves = not same_bits(call(), call())
        # Two masks of few elements may be equal by chance.
        drawn = generator_states() != before
        # What changed once counts its calls, which is not chance.
        if not drawn and (not moves or all(same_bits(call(), call()) for _ in range(REPEATS))):
            return "none"
        self.randomness = "seeded"
        return "seeded" if same_bits(call(), call()) else "uncontrolled"

    def rebuild(self, tensors: Sequence[Tensor]) -> list[Argument]:
        """Return the arguments with the inputs replaced by ``tensors`` and every other tensor by a fresh copy."""
        placed = {(item.argument, item.leaf): tensor for item, tensor in zip(self.inputs, tensors)}
        rebuilt = []
        for number, argument in enumerate(self.arguments):
            value = argument.value
            if isinstance(value, Tensor):
                value = placed[number, 0] if (number, 0) in placed else copy_of(value)
            elif not isinstance(value, (int, float, str, type(None))):
                leaves, structure = trees.flatten(value)
                leaves = [
                    placed[number, i] if (number, i) in placed else copy_of(leaf) if isinstance(leaf, Tensor) else leaf
                    for i, leaf in enumerate(leaves)
                ]
                value = trees.unflatten(leaves, structure)
            rebuilt.append(Argument(argument.name, value, argument.origin))
        return rebuilt
