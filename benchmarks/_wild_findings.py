"""What every failure in published packages is: read in the source, and confirmed by a few lines of plain PyTorch.

Failures of one cause are one finding. Where a package means what it does, the text says so.
"""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("wrong", "second", "interface", "meant")
"""Wrong gradients; second derivatives; other parts of the contract; meant, and said so by the package."""


@dataclass(frozen=True)
class Finding:
    """One cause, and the failures that it explains."""

    kind: str
    package: str
    functions: tuple[str, ...]
    contracts: tuple[str, ...]
    what: str
    """What happens, with the numbers that plain PyTorch gives."""
    matters: str
    """Whether it does in practice."""


WRONG = (
    Finding(
        "wrong",
        "peft",
        ("BlockCircularConvolution",),
        ("matches-differences",),
        "The gradient of `x` is a correlation with the kernel where a convolution is due: "
        "`fft(fft(g) * ifft(w))` instead of `ifft(fft(g) * fft(w))`. Against autograd through the same forward: "
        "relative error 0.74, cosine 0.70; with the second formula the two agree to the last digit. "
        "The gradient of `w` is right.",
        "Yes: each C3A layer passes a wrong gradient to the layers below it. A single adapted layer trains rightly.",
    ),
    Finding(
        "wrong",
        "zuko",
        ("AdaptiveCheckpointAdjoint",),
        ("matches-differences",),
        "The gradient of the initial time has the wrong sign: `sum(f(t0, x0) * grad_x)` without a minus. "
        "-0.911124 where differences of `odeint` give 0.911124; that of the final time is right.",
        "Only where the initial time is learned or computed; zuko's own flows keep it constant.",
    ),
    Finding(
        "wrong",
        "torch-geometric",
        ("SparseCrossEntropy",),
        ("matches-differences",),
        "A label that is listed twice is subtracted once: `grad[rows, labels] -= g` does not add up over equal "
        "indices. Off by 0.5 in one entry of six; `gradcheck` fails too. Without repeated labels it is right.",
        "Where an edge occurs twice in `edge_label_index`: the loss counts it twice, the gradient once.",
    ),
    Finding(
        "wrong",
        "memcnn",
        ("AdditiveBlockInverseFunction",),
        ("matches-differences",),
        "The halves of the gradient of `y` are swapped: differentiated by `(y2, y1)`, put together in that order. "
        "Off by 3.1; the block forwards, and `AdditiveBlockInverseFunction2`, agree with autograd exactly.",
        "When the inverse is trained through with `implementation_bwd=0`, which is not the default.",
    ),
    Finding(
        "wrong",
        "torchquantum",
        ("QuantizeFunction",),
        ("matches-surrogate", "shapes", "linear-in-cotangent", "extreme-values"),
        "Straight-through, but the incoming gradient is clipped at three of its own standard deviations: of a single "
        "element that is NaN, and `CliffordQuantizer.quantize_sse`, the only caller, passes a single element.",
        "Yes: the gradient through `quantize_sse` is always NaN. A one-hot gradient of 20 elements becomes 0.72.",
    ),
    Finding(
        "wrong",
        "pytorch-wavelets",
        ("AFB2D", "SFB2D"),
        ("matches-differences",),
        "Backward of the analysis is the synthesis, which is its transpose only for the paddings `zero` and "
        "`periodization`. With `symmetric` and `reflect` `gradcheck` fails at every size tried, in 1-D and 2-D.",
        "Yes, near the borders of the picture, when training through a transform with these paddings.",
    ),
    Finding(
        "wrong",
        "speechbrain",
        ("QuaternionLinearCustomBackward",),
        ("needs-input-grad-subsets",),
        "Freezing changes the function: when the bias does not require grad, forward leaves it out (the outputs differ "
        "by exactly the bias), and when `r_weight` does not, the other three weights get no gradient.",
        "When a trained layer with `autograd=False` is frozen; the default, `autograd=True`, is right.",
    ),
    Finding(
        "wrong",
        "snntorch",
        ("Sigmoid",),
        ("matches-surrogate",),
        "`25 exp(-25 u)` over a square: both overflow in float32, and the rule is NaN for `u` below -3.42.",
        "When a membrane potential lies that far below the threshold; one NaN spreads to all weights.",
    ),
    Finding(
        "wrong",
        "snntorch",
        ("LeakySpikeOperator",),
        ("gradient-count",),
        "One gradient too few: `forward(ctx, input_, slope)`, `return grad`.",
        "Training with it raises.",
    ),
    Finding(
        "wrong",
        "norse",
        ("HeaviErfc", "HeaviTanh", "Logistic", "HeaviCirc", "CircDist"),
        ("matches-surrogate",),
        "The rule is the derivative of the documented function but for a factor: `2 / k` for the first three, "
        "`2 alpha` for the circles. At `k = alpha = 1.5` that is 1.333 and 3.",
        "A scale of the surrogate, which changes with `k`: tuning `k` also tunes the learning rate.",
    ),
    Finding(
        "wrong",
        "torch-struct",
        ("_SimplexProject",),
        ("matches-differences", "second-order", "shapes"),
        "The gradient is right, the value is not: forward subtracts the norm of the projection, where half of its "
        "square belongs to this gradient. Against that value the gradient agrees to 2e-10, against its own it is "
        "off by 0.06.",
        "The sparse maximum that is reported is not the one that is optimised.",
    ),
    Finding(
        "wrong",
        "diffsort",
        ("NormalCDF",),
        ("matches-differences",),
        "`sigma` goes through a float32 tensor: a relative error of 3.5e-8 in float64 at 0.77.",
        "No, unless float64 was chosen for its digits; `gradcheck` in float64 may fail on a sorting network.",
    ),
)

SECOND = (
    Finding(
        "second",
        "entmax",
        ("Entmax15Function", "EntmaxBisectFunction"),
        ("second-order",),
        "NaN: backward takes a root (a power) of the output, which is exactly zero off the support: infinity times "
        "zero in double backward. The gradient itself is smooth there.",
        "Gradient penalties and Hessians through these are NaN.",
    ),
    Finding(
        "second",
        "entmax",
        (
            *("SparsemaxLossFunction", "SparsemaxBisectLossFunction", "Entmax15LossFunction"),
            *("EntmaxBisectLossFunction", "NormmaxBisectLossFunction"),
        ),
        ("second-order",),
        "Missing: backward multiplies by a probability vector that forward computed and saved, a constant to double "
        "backward. Double backward 0, differences of the gradient -0.36, -0.36, -0.35, -0.35, -0.45.",
        "A Hessian of these losses is zero without an error.",
    ),
    Finding(
        "second",
        "snntorch",
        ("Heaviside", "StochasticSpikeOperator"),
        ("second-order",),
        "The rule multiplies by the saved *output*, and double backward goes through that output's own surrogate: the "
        "second derivative is not zero, that of the declared function is.",
        "Only where a spiking network is differentiated twice.",
    ),
    Finding(
        "second",
        "gpytorch",
        ("RBFCovariance", "MaternCovariance"),
        ("second-order",),
        "Missing with respect to `lengthscale`: 0 where differences give -0.59 and -0.21. What backward needs is "
        "computed and saved in forward.",
        "A Hessian of the marginal likelihood (Laplace, Newton) lacks these terms without an error.",
    ),
    Finding(
        "second",
        "gpytorch",
        ("QuadFormDiagonal", "ComputePredictiveUpdates"),
        ("second-order",),
        "Wrong: intermediates of forward are saved. In `rhs` the Hessian of the first has 0 where autograd through the "
        "same formula gives -19.4; of the second, 2.1 for -5.7 along a random direction.",
        "As above; the variational strategies themselves are differentiated once.",
    ),
    Finding(
        "second",
        "gpytorch",
        ("_NgdInterpTerms", "_NaturalToMuVarSqrt", "_TrilNaturalToMuVarSqrt"),
        ("second-order",),
        "The natural-gradient rules compute with saved outputs, and double backward goes through the rules of those: "
        "-0.39, 13.7 and -4.8 where differences of the rule give -1.98, 1.72 and 2.37.",
        "No: natural gradients are for a first-order optimiser.",
    ),
    Finding(
        "second",
        "kornia",
        ("_NullSpaceBasis",),
        ("second-order",),
        "Wrong: the singular vectors that backward uses are outputs marked as not differentiable. -1.3 for 6.2.",
        "Only where the five-point solver is differentiated twice.",
    ),
    Finding(
        "second",
        "memcnn",
        ("AdditiveBlockFunction", "AdditiveBlockFunction2", "AdditiveBlockInverseFunction2"),
        ("second-order",),
        "Missing: backward differentiates inside without `create_graph`. 0 for -1.13 and 1.35.",
        "Gradient penalties through invertible blocks have no effect, without an error.",
    ),
    Finding(
        "second",
        "peft",
        ("VeloraFunction",),
        ("second-order",),
        "Missing: backward uses a compressed input that forward saved, a constant to double backward.",
        "No: adapters are trained at first order.",
    ),
    Finding(
        "second",
        "linear-operator",
        ("InvQuad", "PivotedCholesky", "RootDecomposition"),
        ("second-order",),
        "Missing: backward runs without grad, or on detached tensors. For `InvQuad` the Hessian by autograd through "
        "`torch.linalg.solve` is [[-0.72, 0.19], [0.19, -0.62]]; through `inv_quad` the gradient has no graph.",
        "A Hessian through them is zero, or raises that there is no graph.",
    ),
    Finding(
        "second",
        "speechbrain",
        ("QuaternionLinearCustomBackward",),
        ("second-order",),
        "Missing: backward wraps what it computes in `Variable(..., requires_grad=False)`.",
        "Gradient penalties through a layer with `autograd=False` are silently incomplete.",
    ),
)

INTERFACE = (
    Finding(
        "interface",
        "entmax",
        ("EntmaxBisectFunction",),
        ("saved-through-hooks",),
        "`ctx.alpha` is a view of the tensor `alpha`, not saved: an in-place change between forward and backward gives "
        "a wrong gradient without an error.",
        "Rarely: an optimiser step between forward and backward would do it.",
    ),
    Finding(
        "interface",
        "brevitas",
        ("InplaceTensorClampSteFn",),
        ("inputs-untouched",),
        "In place by name, but not declared by `mark_dirty`: a leaf parameter of [0.5, 2] silently becomes [0.5, 1], "
        "where PyTorch would refuse.",
        "PyTorch notices when the overwritten tensor was saved, and not when it was not.",
    ),
    Finding(
        "interface",
        "torchdiffeq",
        ("_UncheckedAssign",),
        ("inputs-untouched",),
        "Writes into its argument through `.data`; the comment says why: to sneak past the version check.",
        "No: the buffer belongs to the solver, and each slot is written once.",
    ),
    Finding(
        "interface",
        "torchdiffeq",
        ("OdeintAdjointMethod",),
        ("needs-input-grad-subsets",),
        "Raises when a parameter that is passed does not require grad.",
        "No: `odeint_adjoint` leaves frozen parameters out.",
    ),
    Finding(
        "interface",
        "torchsde",
        ("_SdeintAdjointMethod",),
        ("needs-input-grad-subsets",),
        "Raises when a parameter that is passed does not require grad.",
        "No: `sdeint_adjoint` leaves frozen parameters out.",
    ),
    Finding(
        "interface",
        "gpytorch",
        ("RBFCovariance", "MaternCovariance"),
        ("gradient-shape-and-dtype",),
        "The gradient of `lengthscale` has the shape of the covariance and is left to PyTorch to sum.",
        "No: the sum is right. It is larger in memory than need be.",
    ),
    Finding(
        "interface",
        "gpytorch",
        ("LogNormalCDF",),
        ("saved-through-hooks",),
        "`ctx.numerator` and `ctx.denominator` are kept on ctx instead of being saved.",
        "Invisible to offloading and checkpoints, and alive after backward.",
    ),
    Finding(
        "interface",
        "linear-operator",
        ("Matmul", "Solve", "InvQuad", "RootDecomposition", "DSMM"),
        ("saved-through-hooks",),
        "The operator, with its tensors, is kept on ctx (`DSMM`: `ctx.sparse`). For `DSMM` an in-place change between "
        "forward and backward gives a wrong gradient without an error.",
        "Memory is held, and offloading does not see it.",
    ),
    Finding(
        "interface",
        "zuko",
        ("AdaptiveCheckpointAdjoint",),
        ("saved-through-hooks",),
        "The checkpoints are kept on ctx, the output among them: ctx and output hold each other.",
        "The memory of a solution is freed by the garbage collector only.",
    ),
    Finding(
        "interface",
        "pytorch-wavelets",
        ("SFB2D", "SFB1D"),
        ("needs-input-grad-subsets",),
        "Backward asks `needs_input_grad[0]` for both inputs: with only the high-pass requiring grad its gradient is "
        "missing, without an error.",
        "When the low-pass is detached or constant, as in editing details alone.",
    ),
    Finding(
        "interface",
        "optimum-quanto",
        ("QuantizedLinearFunction",),
        ("shapes",),
        "`g.view(-1, out_features)` raises for an empty batch.",
        "Only for empty batches. A gradient that `view` refuses, as after a transpose, raises too.",
    ),
    Finding(
        "interface",
        "spikingjelly",
        ("poisson_pass",),
        ("gradient-shape-and-dtype",),
        "`torch.bernoulli(x).float()`: float32 for float64 inputs.",
        "No: spikes and a gradient passed through lose no digits that matter.",
    ),
    Finding(
        "interface",
        "rockpool",
        ("Bitshift",),
        ("gradient-shape-and-dtype",),
        "Works in float32 whatever comes in.",
        "No: it imitates a bit shift of hardware.",
    ),
)

MEANT = (
    Finding(
        "meant",
        "torchdiffeq",
        ("OdeintAdjointMethod",),
        ("matches-differences",),
        "The adjoint equation is solved by steps of its own, so the gradient is as exact as the solver: a relative "
        "error of 9e-6 with `rk4` and steps of 0.25.",
        "As of every continuous adjoint. Smaller steps make it smaller.",
    ),
    Finding(
        "meant",
        "monai",
        ("_AutoGradReLU",),
        ("linear-in-cotangent",),
        "Guided backpropagation: negative incoming gradients are cut off, so that B(-v) is not -B(v).",
        "As its paper has it: for pictures of saliency, not for training.",
    ),
    Finding(
        "meant",
        "torch-struct",
        ("_MultiSampledLogSumExp",),
        ("linear-in-cotangent",),
        "The incoming gradient is a bit mask: 32 samples are packed into one float.",
        "The semiring's own trick; no ordinary gradient flows through it.",
    ),
    Finding(
        "meant",
        "pyro-ppl",
        ("_AVFMVNSample",),
        ("linear-in-cotangent",),
        "The gradient of `control_var` is that of the variance of the gradient, quadratic in what comes in.",
        "As its paper has it: the control variate is adapted to lower the variance.",
    ),
)

FINDINGS = (*WRONG, *SECOND, *INTERFACE, *MEANT)
