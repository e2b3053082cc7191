"""What the tests of wrapping share."""

from __future__ import annotations

import warnings

import torch

with warnings.catch_warnings():
    # The first jvp of a process makes torch compile scripts, of which torch itself warns (torch 2.13).
    warnings.simplefilter("ignore")
    torch.func.jvp(torch.sin, (torch.zeros(1),), (torch.ones(1),))
