"""A probe beyond the declared dtype: does a function that was given real inputs take complex ones, and rightly so?"""

from __future__ import annotations

import torch

from gradwright.checking.audit import audit
from gradwright.checking.case import Case
from gradwright.checking.differences import signed
from gradwright.checking.intent import deviates
from gradwright.checking.variant_trial import Fault, joint_projection_is_wrong, try_rule
from gradwright.checking.variants import try_vary
from gradwright.errors import GradwrightError

REMEDY = "multiply by the conjugate (grad_output * derivative.conj()), or let forward reject complex input"


def complex_remark(case: Case) -> str | None:
    """Return what to say when forward accepts complex inputs and backward gives a wrong gradient for them.

    It is never an accusation: nobody said that complex numbers are meant.
    """
    if deviates(case) or any(item.tensor.is_complex() for item in case.inputs):
        return None
    generator = case.generator("complex probe")
    changed = {}
    for k, item in enumerate(case.inputs):
        if not item.tensor.numel() or case.domain.is_bounded(item.name):
            return None
        real = case.base[k].to(torch.float64)
        imaginary = signed(case.n[k], generator) * real.abs().clamp(min=0.1).clamp(max=1.0)
        changed[item.argument, item.leaf] = torch.complex(real, imaginary).reshape(item.tensor.shape)
    remark = "accepts complex input, but its gradient is wrong there"
    try:
        variant = try_vary(case, changed)
        if variant is None or not audit(variant).usable or not joint_projection_is_wrong(variant):
            return None
        fault = try_rule(variant) if case.level == "full" else None
    except (GradwrightError, RuntimeError, TypeError, NotImplementedError):
        return None
    if case.level != "full":
        return f"{remark}: {REMEDY}"
    if not isinstance(fault, Fault) or fault.kind != "value":
        return None
    return f"{remark}: {fault.finding.message.rstrip('.')}; {REMEDY}"
