"""Arguments for the Functions of published packages, of the kind that the packages themselves pass to them.

A tensor that requires a gradient is one the Function is differentiated in; everything else is fixed. Where a package
builds arguments of its own (a solver, a tree of operators), it is called and what it passes on is taken.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sample:
    """One call of a Function."""

    name: str
    function: Any
    args: tuple[Any, ...]
    tolerance: float = 1e-6
    """Relative to the largest entry; what a solver computes is as exact as the solver."""


@dataclass(frozen=True)
class Package:
    """A package: what pip installs for it, and calls of its Functions."""

    requirements: tuple[str, ...]
    samples: Callable[[], list[Sample]]


def leaf(*shape: int, seed: int = 0, low: float = -1.5, high: float = 1.5, dtype: Any = torch.float64) -> Tensor:
    """Return random values that require a gradient."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(*shape, generator=generator, dtype=torch.float64) * (high - low) + low
    return values.to(dtype).requires_grad_()


def fixed(*shape: int, **options: Any) -> Tensor:
    """Return random values."""
    return leaf(*shape, **options).detach()


def positive(n: int, seed: int = 0) -> Tensor:
    """Return a positive definite matrix that requires a gradient."""
    half = fixed(n, n, seed=seed)
    return (half @ half.T + n * torch.eye(n, dtype=torch.float64)).requires_grad_()


def lower(n: int, seed: int = 0) -> Tensor:
    """Return a Cholesky factor that requires a gradient."""
    return torch.linalg.cholesky(positive(n, seed).detach()).requires_grad_()


def listed(module: str, calls: dict[str, tuple[Any, ...]]) -> list[Sample]:
    """Return the samples of one module; a name may hold dots."""
    found = []
    for name, args in calls.items():
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        found.append(Sample(name, function, args))
    return found


def taken(module: str, names: tuple[str, ...], call: Callable[[], Any], tolerance: float = 1e-6) -> list[Sample]:
    """Return the first call of each of these Functions that ``call`` makes."""
    functions = {name: getattr(importlib.import_module(module), name) for name in names}
    found: dict[str, tuple[Any, ...]] = {}
    for name, function in functions.items():
        apply = function.apply

        def recording(*args: Any, name: str = name, apply: Any = apply) -> Any:
            found.setdefault(name, tuple(_own(a) for a in args))
            return apply(*args)

        function.apply = recording
    try:
        call()
    finally:
        for function in functions.values():
            del function.apply
    return [Sample(name, functions[name], found[name], tolerance) for name in names]


def _own(value: Any) -> Any:
    if type(value) is dict:
        return dict(value)  # a package may take options out
    return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value


@contextmanager
def _float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


U = leaf(5, low=-2.3, high=2.3)
"""Membrane potentials, or values to round."""


def entmax() -> list[Sample]:
    scores, target, alpha = leaf(3, 4), torch.tensor([0, 2, 1]), leaf(3, 1, low=1.3, high=1.9)
    losses = ("SparsemaxLoss", "SparsemaxBisectLoss", "Entmax15Loss", "EntmaxBisectLoss", "NormmaxBisectLoss")
    return [
        *listed("entmax.activations", {"SparsemaxFunction": (scores, -1, None), "Entmax15Function": (scores, -1, 3)}),
        *listed(
            "entmax.root_finding",
            {
                "EntmaxBisectFunction": (scores, alpha, -1, 50, True),
                "SparsemaxBisectFunction": (scores, -1, 50, True),
                "NormmaxBisectFunction": (scores, 2.0, -1, 50),
                "BudgetBisectFunction": (scores, 2, -1, 50),
            },
        ),
        *listed("entmax.losses", {f"{name}Function": (scores, target) for name in losses}),
    ]


def snntorch() -> list[Sample]:
    def user_rule(u: Tensor, g: Tensor, _: Tensor) -> Tensor:
        return g / (1 + u.abs()) ** 2

    spikes = torch.tensor([[[0.0, 1.0]], [[1.0, 0.0]], [[1.0, 1.0]]], requires_grad=True)
    return [
        *listed(
            "snntorch.surrogate",
            {
                "StraightThroughEstimator": (U,),
                "Triangular": (U, 1.0),
                "FastSigmoid": (U, 25),
                "ATan": (U, 2.0),
                "Heaviside": (U,),
                "Sigmoid": (leaf(5, low=-1.0, high=1.0), 5),
                "SpikeRateEscape": (U, 1, 25),
                "StochasticSpikeOperator": (U, 0, 0.2),
                "LeakySpikeOperator": (U, 0.1),
                "SparseFastSigmoid": (U, 25, 1),
                "CustomSurrogate": (U, user_rule),
            },
        ),
        *listed("snntorch.functional.quant", {"StateQuant": (U, torch.linspace(-2, 2, 9).double())}),
        *listed(
            "snntorch.functional.loss",
            {
                "SpikeTime.FirstSpike": (spikes, "cpu"),
                "SpikeTime.MultiSpike": (spikes, 1, "cpu"),
                "SpikeTime.Tolerance": (leaf(2, 2, low=0.0, high=5.0), torch.tensor([[0.0, 5.0], [6.0, 2.0]]), 0.5),
            },
        ),
        *listed("snntorch._neurons.leakykernel", {"LeakyKernel.ATan": (U, 2.0)}),
        *listed("snntorch._neurons.leakyparallel", {"LeakyParallel.ATan": (U, 2.0)}),
    ]


def spikingjelly() -> list[Sample]:
    one = (
        "piecewise_quadratic",
        "piecewise_exp",
        "sigmoid",
        "soft_sign",
        "super_spike",
        "atan",
        "nonzero_sign_log_abs",
    )
    one += ("erf", "q_pseudo_spike", "fake_numerical_gradient", "log_tailed_relu", "rect")
    return [
        *listed("spikingjelly.activation_based.surrogate", dict.fromkeys(one, (U, 1.5))),
        *listed(
            "spikingjelly.activation_based.surrogate",
            {
                "piecewise_leaky_relu": (U, 1.0, 0.01),
                "squarewave_fourier_series": (U, 2, 8.0),
                "s2nn": (U, 4.0, 1.0),
                "leaky_k_relu": (U, 0.1, 1.0),
                "deterministic_pass": (U,),
                "poisson_pass": (leaf(5, low=0.2, high=0.8),),
            },
        ),
        *listed(
            "spikingjelly.activation_based.quantize",
            {
                "RoundATGF": (U,),
                "CeilATGF": (U,),
                "FloorATGF": (U,),
                "ClampATGF": (U, -1.0, 1.0),
                "StepQuantizeATGF": (U, 0.25),
                "MultiLevelSpikeCountATGF": (U, 3, 0.0, 3.0),
                "KBitQuantizeATGF": (U, 3),
            },
        ),
    ]


def brevitas() -> list[Sample]:
    rounding = ("RoundToZero", "DPURound", "Ceil", "Floor", "BinarySign", "TernarySign", "Round")
    low, high = fixed(5, low=-1.2, high=-0.8), fixed(5, low=0.8, high=1.2)
    return listed(
        "brevitas.ops.autograd_ste_ops",
        {
            **{f"{name}SteFn": (U,) for name in rounding},
            "AbsBinarySignGradFn": (U,),
            "ScalarClampSteFn": (U, -1.0, 1.0),
            "ScalarClampMinSteFn": (U, -1.0),
            "TensorClampSteFn": (U, low, high),
            "InplaceTensorClampSteFn": (U, low, high),
        },
    )


def norse() -> list[Sample]:
    k = torch.tensor(1.5, dtype=torch.float64)
    names = ("HeaviErfc", "HeaviTanh", "Logistic", "HeaviCirc", "CircDist", "HeaviTent")
    return [
        *listed("norse.torch.functional.threshold", dict.fromkeys(names, (U, k))),
        *listed("norse.torch.functional.superspike", {"SuperSpike": (U, 100.0)}),
    ]


def pyro() -> list[Sample]:
    from pyro import distributions as d

    loc, scale, logits = leaf(2, 3), leaf(2, 3, seed=1, low=0.5, high=1.5), leaf(2, seed=2)
    shape, shared = torch.Size([2]), leaf(3, seed=3, low=0.5, high=1.5)
    mixture = lambda: d.MixtureOfDiagNormals(loc, scale, logits).rsample(shape)  # noqa: E731
    return [
        *listed("pyro.ops.special", {"_SafeLog": (leaf(4, low=0.3, high=2.0),)}),
        *listed("pyro.contrib.oed.eig", {"_EwmaLogFn": (leaf(4, low=0.3, high=2.0), fixed(4, low=1.0, high=2.0))}),
        *listed(
            "pyro.distributions.relaxed_straight_through",
            {"QuantizeCategorical": (leaf(2, 3),), "QuantizeBernoulli": (leaf(4, low=0.1, high=0.9),)},
        ),
        *taken("pyro.distributions.diag_normal_mixture", ("_MixDiagNormalSample",), mixture),
        *taken(
            "pyro.distributions.diag_normal_mixture_shared_cov",
            ("_MixDiagNormalSharedCovarianceSample",),
            lambda: d.MixtureOfDiagNormalsSharedCovariance(loc, shared, logits).rsample(shape),
        ),
        *taken(
            "pyro.distributions.gaussian_scale_mixture",
            ("_GSMSample",),
            lambda: d.GaussianScaleMixture(
                leaf(2, low=0.5, high=1.5), logits, leaf(2, seed=4, low=0.5, high=1.5)
            ).rsample(shape),
        ),
        *taken(
            "pyro.distributions.omt_mvn",
            ("_OMTMVNSample",),
            lambda: d.OMTMultivariateNormal(leaf(3), lower(3)).rsample(shape),
        ),
        *taken(
            "pyro.distributions.avf_mvn",
            ("_AVFMVNSample",),
            lambda: d.AVFMultivariateNormal(leaf(3), lower(3), leaf(2, 2, 3, low=0.1, high=0.3)).rsample(shape),
        ),
    ]


def gpytorch() -> list[Sample]:
    from gpytorch.kernels.kernel import dist, sq_dist

    a, b, scale = fixed(3, 2), fixed(2, 2, seed=1), leaf(1, 1, low=0.7, high=1.3)
    precision = (-0.5 * positive(3).detach()).requires_grad_()
    variational = "gpytorch.variational."
    return [
        *listed("gpytorch.functions.rbf_covariance", {"RBFCovariance": (a, b, scale, sq_dist)}),
        *listed("gpytorch.functions.matern_covariance", {"MaternCovariance": (a, b, scale, 1.5, dist)}),
        *listed("gpytorch.functions._log_normal_cdf", {"LogNormalCDF": (leaf(5, low=-3.0, high=2.0),)}),
        *listed(
            f"{variational}natural_variational_distribution", {"_NaturalToMuVarSqrt": (leaf(3, seed=2), precision)}
        ),
        *listed(
            f"{variational}tril_natural_variational_distribution", {"_TrilNaturalToMuVarSqrt": (leaf(3), lower(3))}
        ),
        *listed(
            f"{variational}variational_strategy",
            {"ComputePredictiveUpdates": (lower(3), leaf(3, 2), positive(3, seed=1), leaf(3, seed=2))},
        ),
        *listed(f"{variational}large_batch_variational_strategy", {"QuadFormDiagonal": (positive(3), leaf(3, 2))}),
        *listed(
            f"{variational}ciq_variational_strategy", {"_NgdInterpTerms": (leaf(3, 2), leaf(3, seed=1), precision)}
        ),
    ]


def linear_operator() -> list[Sample]:
    from linear_operator import to_linear_operator

    rhs, operator = leaf(3, 2), to_linear_operator(positive(3))
    functions = "linear_operator.functions._"
    sparse = torch.eye(3, dtype=torch.float64).to_sparse()
    return [
        *taken(f"{functions}matmul", ("Matmul",), lambda: operator @ rhs),
        *taken(f"{functions}solve", ("Solve",), lambda: operator.solve(rhs)),
        *taken(f"{functions}inv_quad", ("InvQuad",), lambda: operator.inv_quad(rhs)),
        *listed(f"{functions}dsmm", {"DSMM": (sparse, rhs)}),
        *taken(f"{functions}pivoted_cholesky", ("PivotedCholesky",), lambda: operator.pivoted_cholesky(rank=2)),
        *taken(
            f"{functions}root_decomposition",
            ("RootDecomposition",),
            lambda: operator.root_decomposition(method="lanczos"),
        ),
    ]


def monai() -> list[Sample]:
    return [
        *listed("monai.networks.blocks.activation", {"SwishImplementation": (leaf(4),)}),
        *listed("monai.visualize.gradient_based", {"_AutoGradReLU": (leaf(4),)}),
    ]


def kornia() -> list[Sample]:
    target = torch.tensor([[[0, 2]]])
    return [
        *listed("kornia.losses.focal", {"_TargetLogSoftmax": (leaf(1, 3, 1, 2), target[:, None], None)}),
        *listed("kornia.geometry.epipolar.essential", {"_NullSpaceBasis": (leaf(1, 5, 9),)}),
    ]


def memcnn() -> list[Sample]:
    with _float64():
        torch.manual_seed(0)
        f, g = torch.nn.Conv1d(1, 1, 1), torch.nn.Conv1d(1, 1, 1)
    weights = (*f.parameters(), *g.parameters())
    args = (leaf(2, 2, 2), f, g, *weights)
    blocks = ("BlockFunction", "BlockInverseFunction", "BlockFunction2", "BlockInverseFunction2")
    return [
        *listed("memcnn.models.additive", {f"Additive{name}": args for name in blocks}),
    ]


def pytorch_wavelets() -> list[Sample]:
    with _float64():
        import pytorch_wavelets as pw

        x, line = leaf(1, 1, 4, 4), leaf(1, 1, 6)
        there, back = pw.DWTForward(J=1, wave="db2", mode="symmetric"), pw.DWTInverse(wave="db2", mode="symmetric")
        there1, back1 = pw.DWT1DForward(J=1, wave="db2"), pw.DWT1DInverse(wave="db2")
        tree, wood = pw.DTCWTForward(J=2), pw.DTCWTInverse()
        complex_parts = "pytorch_wavelets.dtcwt.transform_funcs"
        return [
            *taken("pytorch_wavelets.dwt.lowlevel", ("AFB2D", "SFB2D"), lambda: back(there(x))),
            *taken("pytorch_wavelets.dwt.lowlevel", ("AFB1D", "SFB1D"), lambda: back1(there1(line))),
            *taken(complex_parts, ("FWD_J1", "FWD_J2PLUS"), lambda: tree(x)),
            *taken(complex_parts, ("INV_J1", "INV_J2PLUS"), lambda: wood(tree(x))),
            *listed(
                "pytorch_wavelets.scatternet.lowlevel",
                {"SmoothMagFn": (leaf(4), leaf(4, seed=1), 0.01)},
            ),
            *taken("pytorch_wavelets.scatternet.lowlevel", ("ScatLayerj1_f",), lambda: pw.ScatLayer()(x)),
        ]


def xitorch() -> list[Sample]:
    import xitorch as xt
    from xitorch import integrate, linalg, optimize

    def shifted(y: Tensor, a: Tensor) -> Tensor:
        return y**3 + y - a

    def decay(_: Tensor, y: Tensor, a: Tensor) -> Tensor:
        return -a * y

    def wave(x: Tensor, a: Tensor) -> Tensor:
        return torch.cos(a * x)

    a, start = leaf(2, low=0.5, high=1.5), torch.zeros(2, dtype=torch.float64)
    matrix, times = positive(3), torch.linspace(0, 0.5, 3, dtype=torch.float64)
    ends = torch.tensor(0.1, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)
    operator = xt.LinearOperator.m(matrix)
    return [
        *taken(
            "xitorch.linalg.solve", ("solve_torchfcn",), lambda: linalg.solve(operator, leaf(3, 1), method="cg"), 1e-3
        ),
        *listed("xitorch._impls.linalg.symeig", {"degen_symeig": (matrix,)}),
        *taken(
            "xitorch.optimize.rootfinder",
            ("_RootFinder",),
            lambda: optimize.rootfinder(shifted, start, params=(a,)),
            1e-3,
        ),
        *taken("xitorch.integrate.quad", ("_Quadrature",), lambda: integrate.quad(wave, *ends, params=(a,))),
        *taken(
            "xitorch.integrate.solve_ivp",
            ("_SolveIVP",),
            lambda: integrate.solve_ivp(decay, times, leaf(2), params=(a,), method="rk4"),
            1e-3,
        ),
    ]


def torchdiffeq() -> list[Sample]:
    import torchdiffeq as td

    with _float64():
        field = torch.nn.Linear(2, 2)
    times = torch.linspace(0, 0.5, 3, dtype=torch.float64)

    class Field(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = field

        def forward(self, _: Tensor, y: Tensor) -> Tensor:
            return torch.tanh(self.linear(y))

    return [
        *listed("torchdiffeq._impl.misc", {"_StitchGradient": (leaf(3), fixed(3, seed=1))}),
        *listed("torchdiffeq._impl.rk_common", {"_UncheckedAssign": (leaf(2, 3), leaf(2, seed=1), (..., 0))}),
        *taken(
            "torchdiffeq._impl.adjoint",
            ("OdeintAdjointMethod",),
            lambda: td.odeint_adjoint(Field(), leaf(2), times, method="rk4"),
        ),
    ]


def torchsde() -> list[Sample]:
    import torchsde as ts

    class Equation(torch.nn.Module):
        noise_type, sde_type = "diagonal", "stratonovich"

        def __init__(self) -> None:
            super().__init__()
            self.drift = torch.nn.Parameter(torch.tensor([0.3, -0.2], dtype=torch.float64))

        def f(self, _: Tensor, y: Tensor) -> Tensor:
            return self.drift * y

        def g(self, _: Tensor, y: Tensor) -> Tensor:
            return 0.1 * torch.ones_like(y)

    times = torch.tensor([0.0, 0.2], dtype=torch.float64)
    motion = ts.BrownianInterval(0.0, 0.2, size=(1, 2), entropy=1, dtype=torch.float64)
    return taken(
        "torchsde._core.adjoint",
        ("_SdeintAdjointMethod",),
        lambda: ts.sdeint_adjoint(Equation(), leaf(1, 2), times, bm=motion, dt=0.1, method="midpoint"),
    )


def pytorch_revgrad() -> list[Sample]:
    return listed("pytorch_revgrad.functional", {"RevGrad": (leaf(4), torch.tensor(0.7, dtype=torch.float64))})


def rockpool() -> list[Sample]:
    tau, dash = torch.tensor(0.9, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)
    return listed(
        "rockpool.nn.modules.torch.lif_torch", {"ThresholdSubtract": (U, 1.0, 0.5), "Bitshift": (U, dash, tau)}
    )


def torch_struct() -> list[Sample]:
    samples = importlib.import_module("torch_struct.semirings.sample")
    check = importlib.import_module("torch_struct.semirings.checkpoint")
    log = importlib.import_module("torch_struct.semirings.semirings").LogSemiring
    logits, pair = leaf(2, 3), (leaf(1, 2, 3), leaf(1, 3, 2, seed=1))

    def inner(semiring: Any, method: str, place: str) -> Any:
        """Return a Function that a class was closed over."""
        function = getattr(semiring, method)
        return dict(zip(function.__code__.co_freevars, (c.cell_contents for c in function.__closure__)))[place]

    maximum, field = samples.GumbelMaxSemiring(0.5), samples.GumbelCRFSemiring(0.5)
    checkpoint, shard = check.CheckpointSemiring(log), check.CheckpointShardSemiring(log, 2)
    return [
        *listed("torch_struct.semirings.sample", {"_SampledLogSumExp": (logits, -1)}),
        Sample("_GumbelMaxLogSumExp", inner(maximum, "sum", "_GumbelMaxLogSumExp"), (logits, -1)),
        Sample("_GumbelCRFLogSumExp", inner(field, "sum", "_GumbelCRFLogSumExp"), (logits, -1)),
        *listed("torch_struct.semirings.sparse_max", {"_SimplexProject": (logits, -1, 1)}),
        *listed("torch_struct.semirings.sparse_max", {"_SparseMaxGrad": (leaf(2, 3), torch.tensor(-1))}),
        Sample("CheckpointSemiring._Check", inner(checkpoint, "matmul", "_Check"), pair),
        Sample("CheckpointShardSemiring._Check", inner(shard, "matmul", "_Check"), pair),
    ]


def pypose() -> list[Sample]:
    import pypose as pp

    torch.manual_seed(0)
    groups = {"SO3": pp.randn_SO3, "SE3": pp.randn_SE3, "RxSO3": pp.randn_RxSO3, "Sim3": pp.randn_Sim3}
    calls: dict[str, tuple[Any, ...]] = {}
    with _float64():
        for name, make in groups.items():
            x, y = (make(1).tensor().detach().requires_grad_() for _ in range(2))
            algebra = (0.5 * make(1).Log().tensor()).detach().requires_grad_()
            calls[f"{name}_Log"], calls[f"{name[0].lower()}{name[1:]}_Exp".replace("sO3", "so3")] = (x,), (algebra,)
            calls[f"{name}_Act"], calls[f"{name}_Act4"] = (x, leaf(1, 3)), (x, leaf(1, 4))
            calls[f"{name}_AdjXa"], calls[f"{name}_AdjTXa"] = (x, algebra), (x, algebra)
            calls[f"{name}_Mul"], calls[f"{name}_Inv"] = (x, y), (x,)
    renamed = {"sE3_Exp": "se3_Exp", "rxSO3_Exp": "rxso3_Exp"}
    return listed("pypose.lietensor.operation", {renamed.get(name, name): args for name, args in calls.items()})


def diffsort() -> list[Sample]:
    return listed("diffsort.functional", {"NormalCDF": (leaf(4), 0.7)})


def botorch() -> list[Sample]:
    return listed("botorch.utils.rounding", {"RoundSTE": (U,), "OneHotArgmaxSTE": (leaf(2, 3),)})


def optimum_quanto() -> list[Sample]:
    return listed(
        "optimum.quanto.tensor.function", {"QuantizedLinearFunction": (leaf(2, 3), leaf(2, 3, seed=1), leaf(2, seed=2))}
    )


def torchao() -> list[Sample]:
    zeros, ones = torch.zeros(5, dtype=torch.float64), torch.ones(5, dtype=torch.float64)
    return [
        *listed("torchao.quantization.quant_primitives", {"_Round": (U,)}),
        *listed("torchao.sparsity.supermask", {"GetSubnet": (U, zeros, ones, 0.5), "ApplyMask": (U, leaf(5, seed=1))}),
    ]


COMMON = ("tqdm==4.70.1",)
"""What some of them need to be imported, beside what the tests of gradwright need."""

PACKAGES = {
    "entmax": Package(("entmax==1.3",), entmax),
    "snntorch": Package(("snntorch==1.0.0",), snntorch),
    "spikingjelly": Package(("spikingjelly==2.0.0", "loguru==0.7.3"), spikingjelly),
    "brevitas": Package(("brevitas==0.13.4",), brevitas),
    "norse": Package(("norse==0.0.4",), norse),
    "pyro-ppl": Package(("pyro-ppl==1.9.2", "pyro-api==0.1.2", "opt-einsum==3.4.0"), pyro),
    "gpytorch": Package(("gpytorch==1.15.2", "linear-operator==0.6.1", "jaxtyping==0.3.11"), gpytorch),
    "linear-operator": Package(("linear-operator==0.6.1", "jaxtyping==0.3.11"), linear_operator),
    "monai": Package(("monai==1.6.1",), monai),
    "kornia": Package(("kornia==0.9.0", "kornia_rs==0.2.0"), kornia),
    "memcnn": Package(("memcnn==1.5.2",), memcnn),
    "pytorch-wavelets": Package(
        ("pytorch-wavelets==1.3.0", "PyWavelets==1.9.0", "setuptools==79.0.1"), pytorch_wavelets
    ),
    "xitorch": Package(("xitorch==0.5.1",), xitorch),
    "torchdiffeq": Package(("torchdiffeq==0.2.5",), torchdiffeq),
    "torchsde": Package(("torchsde==0.2.6", "trampoline==0.1.2"), torchsde),
    "pytorch-revgrad": Package(("pytorch-revgrad==0.2.0",), pytorch_revgrad),
    "rockpool": Package(("rockpool==2.0",), rockpool),
    "torch-struct": Package(("torch-struct==0.5",), torch_struct),
    "pypose": Package(("pypose==0.9.5",), pypose),
    "diffsort": Package(("diffsort==0.2.0",), diffsort),
    "botorch": Package(
        (
            *("botorch==0.18.1", "gpytorch==1.15.2", "linear-operator==0.6.1", "pyro-ppl==1.9.2", "pyro-api==0.1.2"),
            *("opt-einsum==3.4.0", "jaxtyping==0.3.11"),
        ),
        botorch,
    ),
    "optimum-quanto": Package(("optimum-quanto==0.2.7",), optimum_quanto),
    "torchao": Package(("torchao==0.18.0",), torchao),
}
