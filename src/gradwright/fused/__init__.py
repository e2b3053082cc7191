"""The usual gradient for less memory and time: gradients that are formed, chunked or read from the output.

``gw.fused.softplus(x)``, say, keeps its output alone. Every function is listed by ``gradwright show fused``, and is
proved beside what it replaces; ``docs/fused.md`` says what each costs.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from gradwright.errors import did_you_mean as _did_you_mean
from gradwright.fused.activated_linear import gelu_linear as gelu_linear
from gradwright.fused.activated_linear import mish_linear as mish_linear
from gradwright.fused.activated_linear import silu_linear as silu_linear
from gradwright.fused.activation_modules import CELU as CELU
from gradwright.fused.activation_modules import ELU as ELU
from gradwright.fused.activation_modules import SELU as SELU
from gradwright.fused.activation_modules import GELULinear as GELULinear
from gradwright.fused.activation_modules import Hardtanh as Hardtanh
from gradwright.fused.activation_modules import LeakyReLU as LeakyReLU
from gradwright.fused.activation_modules import MishLinear as MishLinear
from gradwright.fused.activation_modules import ReLU6 as ReLU6
from gradwright.fused.activation_modules import SiLULinear as SiLULinear
from gradwright.fused.activation_modules import Softplus as Softplus
from gradwright.fused.crossentropy import linear_cross_entropy as linear_cross_entropy
from gradwright.fused.cumulative import cumprod as cumprod
from gradwright.fused.cumulative import cumsum as cumsum
from gradwright.fused.cumulative import logcumsumexp as logcumsumexp
from gradwright.fused.cumulative import running_max as running_max
from gradwright.fused.distillation import linear_distillation as linear_distillation
from gradwright.fused.entmax import entmax as entmax
from gradwright.fused.entmax import entmax15 as entmax15
from gradwright.fused.entmax import sparsemax as sparsemax
from gradwright.fused.entmax_losses import entmax15_loss as entmax15_loss
from gradwright.fused.entmax_losses import sparsemax_loss as sparsemax_loss
from gradwright.fused.entmax_modules import Entmax as Entmax
from gradwright.fused.entmax_modules import Entmax15 as Entmax15
from gradwright.fused.entmax_modules import Sparsemax as Sparsemax
from gradwright.fused.head_modules import LinearCrossEntropyLoss as LinearCrossEntropyLoss
from gradwright.fused.kinked import hardtanh as hardtanh
from gradwright.fused.kinked import leaky_relu as leaky_relu
from gradwright.fused.kinked import relu6 as relu6
from gradwright.fused.log_probs import linear_log_probs as linear_log_probs
from gradwright.fused.model import PatchedModel as PatchedModel
from gradwright.fused.model import patch as patch
from gradwright.fused.model import unpatch as unpatch
from gradwright.fused.norm_modules import LayerNorm as LayerNorm
from gradwright.fused.norm_modules import RMSNorm as RMSNorm
from gradwright.fused.norms import layer_norm as layer_norm
from gradwright.fused.norms import rms_norm as rms_norm
from gradwright.fused.outputs import celu as celu
from gradwright.fused.outputs import elu as elu
from gradwright.fused.outputs import selu as selu
from gradwright.fused.outputs import softplus as softplus
from gradwright.fused.recurrence import linear_recurrence as linear_recurrence
from gradwright.fused.selective import TopK as TopK
from gradwright.fused.selective import entropy_from_logits as entropy_from_logits
from gradwright.fused.selective import selective_log_softmax as selective_log_softmax
from gradwright.fused.selective import topk_log_softmax as topk_log_softmax

if not _TYPE_CHECKING:  # so that type checkers still tell what there is
    # Without the modules, which are not for users: `help` and the guesses go by it.
    __all__ = sorted(name for name, value in globals().items() if callable(value) and name[0] != "_")

    def __getattr__(name: str) -> object:
        guess = "" if name.startswith("_") else _did_you_mean(name, __all__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{guess}", name=name)
