"""``gradwright explain``: the documentation of a contract or the meaning of an intent, or the list of all."""

from __future__ import annotations

import sys

from gradwright import torch_compat as torch_compat  # first: it says clearly when torch is missing
from gradwright.checking.contracts import QUESTIONS, all_contracts
from gradwright.checking.intent import MEANINGS
from gradwright.errors import unknown_name


def run_explain(name: str | None) -> int:
    """Print the documentation of one contract or intent, or every contract under the question it answers."""
    contracts = all_contracts()
    if name is None:
        print(_overview())
        return 0
    if name in MEANINGS:
        print(f"{name}\nAn intent, declared with `# gradwright: {name}` above a rule: the rule is {MEANINGS[name]}.")
        return 0
    contract = contracts.get(name.replace("_", "-"))
    if contract is None:
        print(unknown_name("explain", name, [*contracts, *MEANINGS], "gradwright explain"), file=sys.stderr)
        return 2
    print(contract.id)
    print(f"Answers: {contract.asks} Examined at the level {contract.level} and above.")
    print()
    print(contract.documentation.strip())
    return 0


def _overview() -> str:
    contracts = all_contracts().values()
    width = max((len(contract.id) for contract in contracts), default=0)
    blocks = []
    for question in QUESTIONS:
        asked = [contract for contract in contracts if contract.asks == question]
        if asked:
            rows = [f"  {contract.id:<{width}}  {contract.summary}" for contract in asked]
            blocks.append("\n".join([question[0].upper() + question[1:], *rows]))
    width = max(map(len, MEANINGS))
    blocks.append("\n".join(["What a rule means to be", *(f"  {w:<{width}}  {text}" for w, text in MEANINGS.items())]))
    blocks.append("`gradwright explain ID` prints the documentation of one.")
    return "\n\n".join(blocks)
