"""Samples for the Functions of one published package: inputs of the kind it uses, and what its rules mean.

The package is the one named by the environment variable ``GRADWRIGHT_WILD``. Most calls are those of
``_adopted_samples.py``; what is added here is what a rule means where it is not the derivative of its values.
Names are ``module:Class``, because two modules may define classes of one name.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from _adopted_samples import PACKAGES as ADOPTED
from _adopted_samples import Sample, U, fixed, leaf, listed
from _wild_surrogates import (
    above_window,
    arctan,
    boltzmann,
    both,
    circle,
    clipped,
    counted,
    decayed,
    doubled,
    fake_numerical,
    fast_sigmoid,
    filled,
    first_spike,
    half_erf,
    half_tanh,
    identity,
    leaky,
    logistic,
    quantised,
    reversed_by,
    s2nn,
    sparse_fast_sigmoid,
    stochastic,
    super_spike,
    tent,
    triangle,
    user_primitive,
    user_rule,
)
from torch import Tensor

Declared = dict[str, Any]
NOTHING: Mapping[str, Any] = MappingProxyType({})

SCORES = torch.tensor([[1.3, 1.1, 0.7, -0.4], [0.2, 0.9, 0.6, 0.5], [-1.0, 0.3, 0.1, 0.2]], dtype=torch.float64)
TARGET = torch.tensor([0, 2, 1])
ALPHA = torch.tensor([[1.3], [1.6], [1.9]], dtype=torch.float64)
MEMBRANE = torch.tensor([-6.0, -1.5, -0.4, -0.02, 0.03, 0.3, 1.4, 4.0])  # snntorch works in float32
SPIKES = torch.tensor(
    [[[0.0, 1.0], [1.0, 0.0]], [[1.0, 1.0], [0.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]]], dtype=torch.float32
)  # time x batch x neuron; the last neuron of the second row never spikes
BINARY = {"domain": {"spk_rec": (0, 1)}}


def meant(surrogate: Any, *args: Any) -> Declared:
    """Return a sample of a rule that is the derivative of ``surrogate``."""
    return {"args": args, "surrogate": surrogate}


def with_meanings(
    samples: list[Sample],
    surrogates: Mapping[str, Any] | Callable[[str], Any] = NOTHING,
    intents: Mapping[str, Any] = NOTHING,
    domains: Mapping[str, Any] = NOTHING,
) -> Declared:
    """Return samples as a file declares them, with what the rules mean, and where, by the name of the class.

    An intent is declared where the package says that the rule is not the derivative of the values, and there is no
    function of the same arguments whose derivative it is.
    """
    found: Declared = {}
    for sample in samples:
        function = sample.function
        name = function.__qualname__
        surrogate = surrogates(name) if callable(surrogates) else surrogates.get(name)
        entry = {"args": sample.args} | ({"surrogate": surrogate} if surrogate else {})
        entry |= {"intent": intents[name]} if name in intents else {}
        entry |= {"domain": domains[name]} if name in domains else {}
        found.setdefault(f"{function.__module__}:{name}", []).append(entry)
    return found


def entmax() -> Declared:
    return {
        "entmax.activations:SparsemaxFunction": (SCORES,),
        "entmax.activations:Entmax15Function": [(SCORES,), (SCORES, -1, 2)],
        "entmax.root_finding:EntmaxBisectFunction": (SCORES, ALPHA),
        "entmax.root_finding:SparsemaxBisectFunction": (SCORES,),
        "entmax.root_finding:NormmaxBisectFunction": (SCORES,),
        "entmax.root_finding:BudgetBisectFunction": (SCORES,),
        "entmax.losses:SparsemaxLossFunction": (SCORES, TARGET),
        "entmax.losses:SparsemaxBisectLossFunction": (SCORES, TARGET),
        "entmax.losses:Entmax15LossFunction": (SCORES, TARGET),
        "entmax.losses:EntmaxBisectLossFunction": (SCORES, TARGET),
        "entmax.losses:NormmaxBisectLossFunction": (SCORES, TARGET),
    }


def snntorch() -> Declared:
    return {
        "snntorch.surrogate:StraightThroughEstimator": meant(identity, MEMBRANE),
        "snntorch.surrogate:Triangular": meant(triangle, MEMBRANE, 1.0),
        "snntorch.surrogate:FastSigmoid": meant(fast_sigmoid, MEMBRANE, 25),
        "snntorch.surrogate:ATan": meant(arctan, MEMBRANE, 2.0),
        "snntorch.surrogate:Heaviside": meant(torch.relu, MEMBRANE),
        "snntorch.surrogate:Sigmoid": meant(logistic, MEMBRANE, 25),
        "snntorch.surrogate:SpikeRateEscape": meant(boltzmann, MEMBRANE, 1, 25),
        "snntorch.surrogate:StochasticSpikeOperator": meant(stochastic, MEMBRANE, 0, 0.2),
        "snntorch.surrogate:LeakySpikeOperator": meant(leaky, MEMBRANE, 0.1),
        "snntorch.surrogate:SparseFastSigmoid": meant(sparse_fast_sigmoid, MEMBRANE, 25, 1),
        "snntorch.surrogate:CustomSurrogate": meant(user_primitive, MEMBRANE, user_rule),
        "snntorch.functional.quant:StateQuant": meant(identity, MEMBRANE, torch.linspace(-2, 2, 9)),
        "snntorch.functional.loss:SpikeTime.FirstSpike": meant(first_spike, SPIKES) | BINARY,
        "snntorch.functional.loss:SpikeTime.MultiSpike": BINARY
        | meant(lambda spikes, _: first_spike(spikes)[None], SPIKES, 1),
        "snntorch.functional.loss:SpikeTime.Tolerance": meant(
            identity, torch.tensor([[0.4, 3.0], [7.0, 2.1]]), torch.tensor([[0, 5], [6, 2]]), 0.5
        ),
        "snntorch._neurons.leakykernel:LeakyKernel.ATan": meant(arctan, MEMBRANE),
        "snntorch._neurons.leakyparallel:LeakyParallel.ATan": meant(arctan, MEMBRANE),
        "snntorch._neurons.leakyunroll:LeakyParallel.ATan": meant(arctan, MEMBRANE),
    }


def norse() -> Declared:
    meanings = {"HeaviErfc": half_erf, "HeaviTanh": half_tanh, "Logistic": half_tanh, "SuperSpike": fast_sigmoid}
    meanings |= {"HeaviCirc": circle, "CircDist": circle, "HeaviTent": tent}
    return with_meanings(ADOPTED["norse"].samples(), meanings)


def spikingjelly() -> Declared:
    """The package has the function that each surrogate derives, as ``primitive_function``."""
    surrogate = importlib.import_module("spikingjelly.activation_based.surrogate")
    camel = {"piecewise_leaky_relu": "PiecewiseLeakyReLU", "leaky_k_relu": "LeakyKReLU", "atan": "ATan", "s2nn": "S2NN"}
    camel |= {"log_tailed_relu": "LogTailedReLU"}
    own = {"super_spike": super_spike, "s2nn": s2nn, "fake_numerical_gradient": fake_numerical}
    own |= {"ClampATGF": clipped, "MultiLevelSpikeCountATGF": counted}

    def meaning(name: str) -> Any:
        if name in own:
            return own[name]
        if name.endswith(("ATGF", "_pass")):
            return identity
        return getattr(surrogate, camel.get(name, name.title().replace("_", ""))).primitive_function

    return with_meanings(ADOPTED["spikingjelly"].samples(), meaning)


def sinabs() -> Declared:
    functions = {"Quantize": (U,), "StochasticRounding": (U,)}
    return with_meanings(listed("sinabs.activation.quantize", functions), lambda _: identity)


def rockpool() -> Declared:
    meanings = {"ThresholdSubtract": above_window, "Bitshift": decayed}
    return with_meanings(ADOPTED["rockpool"].samples(), meanings)


def brevitas() -> Declared:
    return with_meanings(
        ADOPTED["brevitas"].samples(), lambda name: None if name == "AbsBinarySignGradFn" else identity
    )


def torchao() -> Declared:
    return with_meanings(ADOPTED["torchao"].samples(), {"_Round": identity, "GetSubnet": identity, "ApplyMask": both})


def nncf() -> Declared:
    return with_meanings(listed("nncf.torch.functions", {"STThreshold": (U, 0.5)}), lambda _: identity)


def torchquantum() -> Declared:
    module = "torchquantum.util.quantization.clifford_quantization"
    x = leaf(20, low=-6.0, high=6.0)
    return with_meanings(listed(module, {"QuantizeFunction": (x,)}), lambda _: identity)


def botorch() -> Declared:
    return with_meanings(ADOPTED["botorch"].samples(), lambda _: identity)


def pyro() -> Declared:
    """The samplers have pathwise gradients: of expectations, not of the numbers drawn."""
    straight = {"QuantizeCategorical": identity, "QuantizeBernoulli": identity}
    pathwise = ("_MixDiagNormalSample", "_MixDiagNormalSharedCovarianceSample", "_GSMSample", "_OMTMVNSample")
    intents: dict[str, Any] = dict.fromkeys((*pathwise, "_EwmaLogFn"), "surrogate")
    intents |= {"_AVFMVNSample": ("surrogate", "side-loss")}
    positive, share = (0.05, 20.0), (0.01, 1.0)  # a scale, and a probability, are none otherwise
    domains = {
        "_MixDiagNormalSample": {"scales": positive, "pis": share},
        "_MixDiagNormalSharedCovarianceSample": {"coord_scale": positive, "pis": share},
        "_GSMSample": {"coord_scale": positive, "component_scale": positive, "pis": share},
    }
    return with_meanings(ADOPTED["pyro-ppl"].samples(), straight, intents, domains)


def gpytorch() -> Declared:
    """Natural gradients: with respect to the expectation parameters, not to the arguments."""
    natural = ("_NgdInterpTerms", "_NaturalToMuVarSqrt", "_TrilNaturalToMuVarSqrt")
    return with_meanings(ADOPTED["gpytorch"].samples(), intents=dict.fromkeys(natural, "surrogate"))


def torch_struct() -> Declared:
    """The gradients are samples, or those of a sparse maximum."""
    intents = dict.fromkeys(("_SampledLogSumExp", "_SparseMaxGrad"), "surrogate")
    return with_meanings(ADOPTED["torch-struct"].samples(), intents=intents)


def memcnn() -> Declared:
    """The weights are those of the modules passed in, and constants here: copies would not be the same tensors."""
    samples = ADOPTED["memcnn"].samples()
    constant = [[a.detach() if isinstance(a, torch.nn.Parameter) else a for a in s.args] for s in samples]
    return with_meanings([Sample(s.name, s.function, tuple(args)) for s, args in zip(samples, constant)])


def monai() -> Declared:
    """Guided backpropagation lets only positive gradients through."""
    return with_meanings(ADOPTED["monai"].samples(), intents={"_AutoGradReLU": "surrogate"})


def kornia() -> Declared:
    """The basis is any one of its subspace; the gradient is right for what depends on the subspace alone."""
    return with_meanings(ADOPTED["kornia"].samples(), intents={"_NullSpaceBasis": "surrogate"})


def torchdiffeq() -> Declared:
    meanings = {"_StitchGradient": identity, "_UncheckedAssign": filled}
    return with_meanings(ADOPTED["torchdiffeq"].samples(), meanings)


def linear_operator() -> Declared:
    """The gradient of a root is right for what depends on the product of the root with its transpose alone."""
    return with_meanings(ADOPTED["linear-operator"].samples(), intents={"RootDecomposition": "surrogate"})


def zuko() -> Declared:
    """Without ``phi``, which the function passed in is closed over: copies would not be the same tensors."""
    utils = importlib.import_module("zuko.utils")
    scale, matrix = fixed(3, seed=2, low=0.5, high=1.5), fixed(2, 2, seed=4)
    start, end = (torch.tensor(t, dtype=torch.float64, requires_grad=True) for t in (0.1, 0.9))
    bounds = (fixed(3, low=v, high=v) for v in (-9, 9))
    limits = leaf(3, low=-1.0, high=-0.2), leaf(3, seed=1, low=0.2, high=1.0)
    precise = (1e-13, 1e-13, True)

    def curve(c: Tensor) -> Tensor:
        return scale * c + c**3

    def wave(c: Tensor) -> Tensor:
        return torch.cos(scale * c)

    def field(t: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(matrix @ y) + t

    calls: dict[str, tuple[Any, ...]] = {
        "Bisection": (curve, leaf(3, seed=3), *bounds, 60),
        "GaussLegendre": (wave, *limits, 16),
        "AdaptiveCheckpointAdjoint": (precise, field, leaf(2, seed=5), start, end),
    }
    return with_meanings([Sample(name, getattr(utils, name), args) for name, args in calls.items()])


def timm() -> Declared:
    names = ("Swish", "Mish", "HardSigmoid", "HardSwish", "HardMish")
    x = leaf(9, low=-4.5, high=4.5)
    return with_meanings(listed("timm.layers.activations_me", {f"{name}AutoFn": (x,) for name in names}))


def e3nn() -> Declared:
    return with_meanings(listed("e3nn.math._soft_unit_step", {"_SoftUnitStep": (leaf(7, low=-0.5, high=2.0),)}))


def geomloss() -> Declared:
    return with_meanings(listed("geomloss._legacy.kernel_samples", {"DoubleGrad": (U,)}), lambda _: doubled)


def torch_geometric() -> Declared:
    labels = torch.tensor([[0, 0, 1], [0, 1, 2]])
    twice = torch.tensor([[0, 0, 1], [1, 1, 2]])
    weight = torch.tensor([0.5, 2.0, 1.5], dtype=torch.float64)
    inputs = leaf(2, 3)
    module = importlib.import_module("torch_geometric.utils.cross_entropy")
    calls = [(inputs, labels, None), (inputs, labels, weight), (inputs, twice, None)]
    return with_meanings([Sample("SparseCrossEntropy", module.SparseCrossEntropy, args) for args in calls])


def speechbrain() -> Declared:
    weights = [leaf(1, 2, seed=n) for n in range(4)]
    picture = (leaf(2, 2, 2, 3), leaf(4, 3, seed=1), torch.tensor([0, 1]), 2, False, 0, True)
    return with_meanings(
        [
            *listed("speechbrain.lobes.models.PIQ", {"VectorQuantizationStraightThrough": picture}),
            *listed(
                "speechbrain.nnet.quaternion_networks.q_ops",
                {"QuaternionLinearCustomBackward": (leaf(3, 4, seed=9), *weights, leaf(8, seed=5))},
            ),
        ],
        {"VectorQuantizationStraightThrough": quantised},
    )


def peft() -> Declared:
    """VeLoRA keeps a projection of the input for the gradient of the weight, which is then an approximation."""
    velora = (leaf(3, 4), leaf(2, 4, seed=1), leaf(2, seed=2), fixed(2, seed=3), 2, 1.0)
    return with_meanings(
        [
            *listed("peft.tuners.c3a.utils", {"BlockCircularConvolution": (leaf(2, 6), leaf(1, 2, 3, seed=1))}),
            *listed("peft.tuners.lora.velora", {"VeloraFunction": velora}),
        ],
        intents={"VeloraFunction": "surrogate"},
    )


def pytorch_revgrad() -> Declared:
    return with_meanings(ADOPTED["pytorch-revgrad"].samples(), {"RevGrad": reversed_by})


def dalib() -> Declared:
    return with_meanings(listed("dalib.modules.grl", {"GradientReverseFunction": (U, 0.7)}), lambda _: reversed_by)


OWN: dict[str, Callable[[], Declared]] = {
    "entmax": entmax,
    "snntorch": snntorch,
    "norse": norse,
    "spikingjelly": spikingjelly,
    "sinabs": sinabs,
    "brevitas": brevitas,
    "torchao": torchao,
    "nncf": nncf,
    "torchquantum": torchquantum,
    "botorch": botorch,
    "pyro-ppl": pyro,
    "gpytorch": gpytorch,
    "torch-struct": torch_struct,
    "kornia": kornia,
    "memcnn": memcnn,
    "monai": monai,
    "linear-operator": linear_operator,
    "torchdiffeq": torchdiffeq,
    "rockpool": rockpool,
    "zuko": zuko,
    "timm": timm,
    "e3nn": e3nn,
    "geomloss": geomloss,
    "torch-geometric": torch_geometric,
    "speechbrain": speechbrain,
    "peft": peft,
    "pytorch-revgrad": pytorch_revgrad,
    "dalib": dalib,
}


def declared(name: str) -> Declared:
    """Return the samples of a package."""
    torch.manual_seed(0)  # packages draw the weights of their modules
    return OWN[name]() if name in OWN else with_meanings(ADOPTED[name].samples())


gradwright_samples = declared(os.environ["GRADWRIGHT_WILD"])
