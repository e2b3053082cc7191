"""The usual gradient for less memory and time: gradients that are formed, chunked or read from the output.

``gw.fused.softplus(x)``, say, keeps its output alone. Every function is listed by ``gradwright show fused``, and is
proved beside what it replaces; ``docs/fused.md`` says what each costs.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from gradwright.errors import did_you_mean as _did_you_mean
from gradwright.fused.crossentropy import linear_cross_entropy as linear_cross_entropy
from gradwright.fused.distillation import linear_distillation as linear_distillation
from gradwright.fused.head_modules import LinearCrossEntropyLoss as LinearCrossEntropyLoss
from gradwright.fused.log_probs import linear_log_probs as linear_log_probs
from gradwright.fused.norm_modules import LayerNorm as LayerNorm
from gradwright.fused.norm_modules import RMSNorm as RMSNorm
from gradwright.fused.norms import layer_norm as layer_norm
from gradwright.fused.norms import rms_norm as rms_norm
from gradwright.fused.outputs import softplus as softplus
from gradwright.fused.selective import TopK as TopK
from gradwright.fused.selective import entropy_from_logits as entropy_from_logits
from gradwright.fused.selective import selective_log_softmax as selective_log_softmax
from gradwright.fused.selective import topk_log_softmax as topk_log_softmax

if not _TYPE_CHECKING:  # so that type checkers still tell what there is

    def __getattr__(name: str) -> object:
        guess = "" if name.startswith("_") else _did_you_mean(name, [each for each in globals() if each[0] != "_"])
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{guess}", name=name)
