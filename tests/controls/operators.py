"""Ordinary operators at ordinary points: elementwise, special, linear algebra, Fourier, shapes, losses."""

from __future__ import annotations

import torch

from tests.controls.entries import Control, control, t, u, x, z

F = torch.nn.functional
L = torch.linalg
S = torch.special

SPECIAL = {
    "entr": S.entr,
    "erf": S.erf,
    "erfc": S.erfc,
    "erfcx": S.erfcx,
    "erfinv": S.erfinv,
    "exp2": S.exp2,
    "expit": S.expit,
    "expm1": S.expm1,
    "i0": S.i0,
    "i0e": S.i0e,
    "i1": S.i1,
    "i1e": S.i1e,
    "log1p": S.log1p,
    "log_ndtr": S.log_ndtr,
    "logit": S.logit,
    "ndtr": S.ndtr,
    "ndtri": S.ndtri,
    "sinc": S.sinc,
}
ACTIVATIONS = (
    "gelu",
    "hardswish",
    "logsigmoid",
    "mish",
    "silu",
    "softplus",
    "softsign",
    "tanhshrink",
    "softmin",
    "softmax",
    "log_softmax",
    "glu",
)
ALONG = {"softmin", "softmax", "log_softmax", "glu"}


def activation(name: str):
    function = getattr(F, name)
    return (lambda a: function(a, dim=-1)) if name in ALONG else function


def spd(n: int = 3):
    a = x(n, n)
    return a @ a.t() + n * torch.eye(n, dtype=torch.float64)


LINALG = [
    ("inverse", L.inv, x(3, 3) + 3 * torch.eye(3)),
    ("ill-conditioned inverse", L.inv, torch.diag(t(1.0, 1e-8)) + 1e-9 * x(2, 2)),
    ("solve", L.solve, x(3, 3) + 3 * torch.eye(3), x(3, 2, seed=1)),
    ("logarithm of the determinant", lambda a: L.slogdet(a)[1], spd()),
    ("Cholesky factor", lambda a: L.cholesky(a + a.t()), spd()),
    ("symmetric eigenvalues", lambda a: L.eigvalsh(a + a.t()), x(4, 4)),
    ("eigenvalues, nearly equal", lambda a: L.eigvalsh(a + a.t()), torch.diag(t(1.0, 1 + 1e-6, 3.0))),
    ("singular values", L.svdvals, x(3, 4)),
    ("QR", lambda a: L.qr(a)[1].abs(), x(4, 3)),
    ("matrix exponential", L.matrix_exp, x(3, 3)),
    ("matrix power", lambda a: L.matrix_power(a, 3), x(3, 3)),
    ("pseudo-inverse", L.pinv, x(4, 2)),
    ("least squares", lambda a, b: L.lstsq(a, b).solution, x(4, 2), x(4, 1, seed=1)),
    ("nuclear norm", lambda a: L.matrix_norm(a, "nuc"), x(3, 3)),
    ("spectral norm", lambda a: L.matrix_norm(a, 2), x(3, 3)),
    ("vector 3-norm", lambda a: L.vector_norm(a, 3), x(5)),
    ("triangular solve", lambda a, b: L.solve_triangular(a, b, upper=False), spd().tril(), x(3, 2, seed=1)),
    ("multi_dot", lambda a, b, c: L.multi_dot([a, b, c]), x(2, 3), x(3, 4, seed=1), x(4, 2, seed=2)),
    ("cross product", L.cross, x(4, 3), x(4, 3, seed=1)),
    ("Householder product", L.householder_product, x(4, 2), x(2, seed=1)),
    ("LU", lambda a: L.lu(a)[2], x(3, 3)),
    ("einsum", lambda a, b: torch.einsum("ij,jk->ki", a, b), x(3, 2), x(2, 4, seed=1)),
    ("batched matmul", torch.bmm, x(2, 3, 4), x(2, 4, 2, seed=1)),
    ("Kronecker product", torch.kron, x(2, 2), x(2, 3, seed=1)),
    ("bilinear", F.bilinear, x(3, 2), x(3, 4, seed=1), x(2, 2, 4, seed=2)),
]

FOURIER = [
    ("fft", torch.fft.fft, z(6)),
    ("fft of real values", torch.fft.fft, x(5)),
    ("rfft", torch.fft.rfft, x(6)),
    ("rfft of odd length", torch.fft.rfft, x(5)),
    ("irfft", torch.fft.irfft, z(4)),
    ("irfft of odd length", lambda a: torch.fft.irfft(a, n=5), z(3)),
    ("ihfft", torch.fft.ihfft, x(5)),
    ("fft2", torch.fft.fft2, z(3, 2)),
    ("rfftn", torch.fft.rfftn, x(2, 3, 2)),
    ("orthonormal fft", lambda a: torch.fft.fft(a, norm="ortho"), z(4)),
    ("fftshift", torch.fft.fftshift, x(5)),
    ("stft", lambda a: torch.stft(a, 8, window=torch.ones(8, dtype=torch.float64), return_complex=True), x(16)),
]

SHAPES = [
    ("roll", lambda a: a.roll((1, -1), (0, 1)), x(3, 4)),
    ("flip", lambda a: a.flip(0, 1), x(2, 3)),
    ("permute", lambda a: a.permute(2, 0, 1), x(2, 3, 4)),
    ("expand", lambda a: a.expand(3, 4), x(1, 4)),
    ("diagonal", lambda a: a.diagonal(), x(3, 3)),
    ("triangle", lambda a: a.tril(-1), x(4, 4)),
    ("unfold", lambda a: a.unfold(0, 3, 1), x(6)),
    ("index_select with duplicates", lambda a, i: a.index_select(0, i), x(4), torch.tensor([0, 2, 2, 3])),
    ("gather", lambda a, i: a.gather(1, i), x(2, 4), torch.tensor([[0, 0], [3, 1]])),
    ("scatter_add", lambda a, i: torch.zeros(4, dtype=a.dtype).scatter_add(0, i, a), x(3), torch.tensor([1, 1, 3])),
    ("index_put", lambda a, i: torch.zeros(5, dtype=a.dtype).index_put((i,), a), x(2), torch.tensor([4, 1])),
    ("masked_fill", lambda a, m: a.masked_fill(m, 0.0), x(4), torch.tensor([True, False, True, False])),
    ("masked_select", lambda a, m: a.masked_select(m), x(4), torch.tensor([True, False, True, False])),
    ("take", lambda a, i: a.take(i), x(2, 3), torch.tensor([5, 0, 0])),
    ("repeat_interleave", lambda a: a.repeat_interleave(2), x(3)),
    ("pad", lambda a: F.pad(a, (1, 2)), x(2, 3)),
    ("reflect pad", lambda a: F.pad(a[None], (2, 2), mode="reflect")[0], x(1, 5)),
    ("trapezoid", lambda a: torch.trapezoid(a), x(5)),
    ("renorm", lambda a: a.renorm(2, 0, 1.0), x(3, 4)),
    ("cdist", torch.cdist, x(3, 2), x(4, 2, seed=1)),
    ("pdist", F.pdist, x(4, 3)),
    ("variance", lambda a: a.var(0), x(4, 3)),
    ("variance and mean", lambda a: torch.var_mean(a, 1), x(3, 4)),
    ("logcumsumexp", lambda a: a.logcumsumexp(1), x(2, 4)),
    ("stack", lambda a, b: torch.stack([a, b]), x(3), x(3, seed=1)),
    ("split", lambda a: a.split(2), x(5)),
    ("unbind", lambda a: a.unbind(0), x(3, 2)),
    ("chunk", lambda a: a.chunk(3), x(7)),
    ("meshgrid", lambda a, b: torch.meshgrid(a, b, indexing="ij"), x(2), x(3, seed=1)),
    ("where with broadcasting", lambda m, a, b: torch.where(m, a, b), torch.tensor([[True], [False]]), x(3), x(2, 1)),
    ("complex from parts", torch.complex, x(3), x(3, seed=1)),
    ("polar", torch.polar, u(3, low=0.5, high=2.0), x(3, seed=1)),
    ("angle", torch.angle, z(4)),
    ("complex square", lambda a: a * a, z(4)),
    ("complex absolute value", torch.abs, z(4)),
    ("complex logarithm", torch.log, z(4)),
    ("complex to real part", lambda a: (a * a.conj()).real, z(4)),
    ("conjugate", lambda a: a.conj() * a**2, z(3)),
    ("sgn", torch.sgn, z(3)),
    ("sinc", torch.sinc, t(0.3, 1.0, -2.5)),
    ("atan2", torch.atan2, x(4), x(4, seed=1)),
    ("lerp", torch.lerp, x(3), x(3, seed=1), u(3)),
    ("addcmul", torch.addcmul, x(3), x(3, seed=1), x(3, seed=2)),
    ("addcdiv", torch.addcdiv, x(3), x(3, seed=1), u(3, low=0.5, high=1.0)),
    ("grid_sample", lambda a, g: F.grid_sample(a, g, align_corners=False), x(1, 1, 4, 4), 0.7 * u(1, 2, 2, 2) - 0.31),
    ("interpolate", lambda a: F.interpolate(a, scale_factor=2.0, mode="bilinear"), x(1, 1, 3, 3)),
    ("attention", F.scaled_dot_product_attention, x(1, 3, 2), x(1, 4, 2, seed=1), x(1, 4, 2, seed=2)),
    ("embedding", lambda w, i: F.embedding(i, w), x(5, 2), torch.tensor([1, 1, 4])),
    ("embedding bag", lambda w, i: F.embedding_bag(i, w), x(5, 2), torch.tensor([[1, 1], [4, 0]])),
    ("one-hot matmul", lambda a, i: F.one_hot(i, 4).to(a.dtype) @ a, x(4, 2), torch.tensor([3, 0])),
    ("segment_reduce", lambda a: torch.segment_reduce(a, "sum", lengths=torch.tensor([2, 3])), x(5)),
    ("histogram-like bincount with weights", lambda a: a * torch.bincount(torch.tensor([0, 1, 1])), x(2)),
]

TARGETS = torch.tensor([0, 2, 1])
LOSSES = [
    ("cross entropy", lambda a: F.cross_entropy(a, TARGETS), x(3, 4)),
    ("cross entropy with smoothing", lambda a: F.cross_entropy(a, TARGETS, label_smoothing=0.1), x(3, 4)),
    ("cross entropy of each", lambda a: F.cross_entropy(a, TARGETS, reduction="none"), x(3, 4)),
    ("cross entropy, one target ignored", lambda a: F.cross_entropy(a, TARGETS, ignore_index=2), x(3, 4)),
    ("negative log likelihood", lambda a: F.nll_loss(a.log_softmax(1), TARGETS), x(3, 4)),
    ("binary cross entropy with logits", F.binary_cross_entropy_with_logits, x(4), u(4)),
    ("mean square", F.mse_loss, x(4), x(4, seed=1)),
    ("Kullback-Leibler", lambda a, b: F.kl_div(a, b, reduction="sum"), x(4), u(4, low=0.1)),
    ("Poisson", F.poisson_nll_loss, x(4), u(4)),
    ("Gaussian", F.gaussian_nll_loss, x(4), x(4, seed=1), u(4, low=0.5)),
    ("margin ranking", lambda a, b: F.margin_ranking_loss(a, b, torch.ones(4, dtype=a.dtype)), x(4), x(4, seed=1)),
    ("hinge embedding", lambda a: F.hinge_embedding_loss(a, t(1.0, -1.0, 1.0)), x(3)),
    ("soft margin", lambda a: F.soft_margin_loss(a, t(1.0, -1.0, 1.0)), x(3)),
    ("multi-margin", lambda a: F.multi_margin_loss(a, TARGETS), x(3, 4)),
    ("multi-label margin", lambda a: F.multilabel_soft_margin_loss(a, a.detach().sign() * 0.5 + 0.5), x(3, 4)),
    ("triplet", F.triplet_margin_loss, x(3, 4), x(3, 4, seed=1), x(3, 4, seed=2)),
    ("cosine embedding", lambda a, b: F.cosine_embedding_loss(a, b, t(1.0, -1.0, 1.0)), x(3, 4), x(3, 4, seed=1)),
    (
        "connectionist temporal classification",
        lambda a: F.ctc_loss(a.log_softmax(-1), torch.tensor([[1, 2]]), torch.tensor([5]), torch.tensor([2])),
        x(5, 1, 3),
    ),
]

CONTROLS: list[Control] = [
    *(control(f"special {name}", function, u(4, low=0.1, high=0.9)) for name, function in SPECIAL.items()),
    control("special zeta in its second argument", lambda a: S.zeta(t(2.5, 3.0), a), u(2, low=1.0, high=2.0)),
    control("special xlog1py", S.xlog1py, x(3), u(3)),
    control("special polygamma", lambda a: S.polygamma(2, a), u(3, low=0.5, high=2.0)),
    *(control(f"activation {name}", activation(name), x(3, 4)) for name in ACTIVATIONS),
    *(control(f"linear algebra: {name}", function, *inputs) for name, function, *inputs in LINALG),
    *(control(f"Fourier: {name}", function, *inputs) for name, function, *inputs in FOURIER),
    *(control(name, function, *inputs) for name, function, *inputs in SHAPES),
    *(control(f"loss: {name}", function, *inputs) for name, function, *inputs in LOSSES),
]
