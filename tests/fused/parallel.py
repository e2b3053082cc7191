"""What each of several processes does that train a patched model; apart, since they import it by name."""

from __future__ import annotations

import gc
import time
from typing import Any

import torch
from torch import Tensor, nn

from gradwright.fused import patch
from tests.fused.lookalikes import LanguageModel, scattered

SECONDS = 300
"""After which processes that wait for each other are ended."""


def run(size: int, file: str, inside: bool) -> None:
    """Compare in several processes."""
    context: Any = torch.multiprocessing.spawn(compare, (size, file, inside), nprocs=size, join=False)
    end = time.monotonic() + SECONDS
    while not context.join(timeout=5):
        if time.monotonic() > end:
            for process in context.processes:
                process.kill()
            raise TimeoutError(f"the processes were not done after {SECONDS} s")


def compare(rank: int, size: int, file: str, inside: bool) -> None:
    """Compare the gradients of a model and a patched one; ``inside`` patches after wrapping."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=size)
    try:
        plain, patched = (_grads(rank, patching) for patching in (None, "inside" if inside else "before"))
    finally:
        torch.distributed.destroy_process_group()
    for mine, other in zip(plain, patched):
        torch.testing.assert_close(other, mine)


def _grads(rank: int, patching: str | None) -> list[Tensor]:
    """Return the gradients after two steps of each process on data of its own, which are the mean of theirs."""
    torch.manual_seed(1)
    model = scattered(LanguageModel())
    model.lm_head.weight = model.embedding.weight
    model.dropout.p = 0.0
    if patching == "before":
        assert [layer.name for layer in patch(model, loss=True).layers] == ["", "norm"]
    wrapped = nn.parallel.DistributedDataParallel(model)
    if patching == "inside":
        assert [layer.name for layer in patch(wrapped, loss=True).layers] == ["module", "module.norm"]
    tokens = torch.arange(24).reshape(2, 12) % 19 + rank
    for _ in range(2):
        out: Any = wrapped(tokens, labels=tokens)
        assert (out.logits is None) == (patching is not None)
        out.loss.backward()
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    del wrapped
    gc.collect()  # PyTorch may hang where the group goes before the module
    return grads
