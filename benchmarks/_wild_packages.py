"""The published packages whose Functions are checked as they are, and what it takes to import them on a CPU.

Packages are installed without their dependencies, so that no second torch comes along. Where the ``__init__`` of a
package imports what is not there, and the module with the Functions does not need it, that ``__init__`` is not run
(``bare``): the module itself is the published one.
"""

from __future__ import annotations

from dataclasses import dataclass

from _adopted_samples import PACKAGES as ADOPTED


@dataclass(frozen=True)
class Package:
    """What pip installs, and the modules that are checked."""

    requirements: tuple[str, ...]
    targets: tuple[str, ...]
    bare: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        return self.requirements[0].partition("==")[2]


def known(name: str, *targets: str, more: tuple[str, ...] = ()) -> Package:
    """Return a package that is adopted elsewhere in these benchmarks."""
    return Package((*ADOPTED[name].requirements, *more), targets)


def parents(*modules: str) -> tuple[str, ...]:
    """Return the packages that these modules lie in, outermost first."""
    found = (".".join(m.split(".")[:n]) for m in modules for n in range(1, m.count(".") + 1))
    return tuple(dict.fromkeys(found))


def alone(requirement: str, *modules: str) -> Package:
    """Return a package of which only these modules are imported."""
    return Package((requirement,), modules, parents(*modules))


PACKAGES = {
    "entmax": known("entmax", "entmax"),
    "snntorch": known("snntorch", "snntorch.surrogate", "snntorch.functional", "snntorch._neurons"),
    "norse": known("norse", "norse.torch"),
    "spikingjelly": known(
        "spikingjelly", "spikingjelly.activation_based.surrogate", "spikingjelly.activation_based.quantize"
    ),
    "sinabs": alone("sinabs==3.1.3", "sinabs.activation.quantize"),
    "rockpool": known("rockpool", "rockpool.nn.modules.torch.lif_torch"),
    "brevitas": known("brevitas", "brevitas.ops.autograd_ste_ops"),
    "optimum-quanto": known("optimum-quanto", "optimum.quanto.tensor.function"),
    "torchao": known("torchao", "torchao.quantization.quant_primitives", "torchao.sparsity.supermask"),
    "nncf": alone("nncf==3.4.0", "nncf.torch.functions"),
    "torchquantum": alone("torchquantum==0.1.8", "torchquantum.util.quantization.clifford_quantization"),
    "botorch": known("botorch", "botorch.utils.rounding"),
    "gpytorch": known("gpytorch", "gpytorch.functions", "gpytorch.variational"),
    "linear-operator": known("linear-operator", "linear_operator.functions"),
    "pyro-ppl": known("pyro-ppl", "pyro.ops", "pyro.distributions", "pyro.contrib.oed.eig"),
    "torch-struct": known("torch-struct", "torch_struct"),
    "diffsort": known("diffsort", "diffsort"),
    "torchdiffeq": known("torchdiffeq", "torchdiffeq"),
    "torchsde": known("torchsde", "torchsde"),
    "zuko": Package(("zuko==1.6.0",), ("zuko.utils",)),
    "timm": alone("timm==1.0.31", "timm.layers.activations_me"),
    "monai": known("monai", "monai.networks.blocks.activation", "monai.visualize.gradient_based"),
    "kornia": known("kornia", "kornia.losses.focal", "kornia.geometry.epipolar.essential"),
    "memcnn": known("memcnn", "memcnn"),
    "pytorch-wavelets": known("pytorch-wavelets", "pytorch_wavelets.dwt"),
    "e3nn": alone("e3nn==0.6.0", "e3nn.math._soft_unit_step"),
    "geomloss": Package(("geomloss==0.3.1",), ("geomloss._legacy.kernel_samples",)),
    "torch-geometric": Package(
        ("torch-geometric==2.8.1", "xxhash==4.1.0"),
        ("torch_geometric.utils.cross_entropy", "torch_geometric.nn.models.rev_gnn"),
    ),
    "speechbrain": alone(
        "speechbrain==1.1.2", "speechbrain.lobes.models.PIQ", "speechbrain.nnet.quaternion_networks.q_ops"
    ),
    "peft": alone("peft==0.21.2", "peft.tuners.c3a.utils", "peft.tuners.lora.velora"),
    "pytorch-revgrad": known("pytorch-revgrad", "pytorch_revgrad"),
    "dalib": Package(("dalib==0.2",), ("dalib.modules.grl",)),
}
