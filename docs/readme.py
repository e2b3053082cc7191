"""Keep the console output in README.md real: run its own example and put what is printed where it belongs.

``python docs/readme.py`` rewrites the outputs; a test compares them, numbers apart, so that they never grow stale.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"
FILE = re.compile(r"```python\n(# (\w+\.py)\n.*?)```", re.DOTALL)
CONSOLE = re.compile(r"```console\n\$ ([^\n]+)\n(.*?)```", re.DOTALL)
MODULES = {"gradwright": ["-m", "gradwright"], "pytest": ["-m", "pytest", "-p", "no:cacheprovider"]}
"""How the commands of the README are run with the Python that runs this."""
KEPT = ("PATH", "HOME", "TMPDIR", "PYTHONPATH", "SYSTEMROOT", "TEMP", "TMP")
"""What the commands see of this process's environment. The rest may change what they print (pytest writes a longer
summary where ``CI`` is set), and the README shows what a person sees at a terminal."""


def main() -> None:
    """Rewrite every console output of the README."""
    text = README.read_text(encoding="utf-8")
    outputs = real_outputs(text)
    README.write_text(CONSOLE.sub(lambda m: f"```console\n$ {m[1]}\n{outputs[m[1]]}\n```", text), encoding="utf-8")


def shown_outputs(text: str) -> dict[str, str]:
    """Return the output that the README shows for each command."""
    return {match[1]: match[2].strip("\n") for match in CONSOLE.finditer(text)}


def real_outputs(text: str) -> dict[str, str]:
    """Write the files that the README shows into a folder and run its commands there."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for match in FILE.finditer(text):
            (folder / match[2]).write_text(match[1], encoding="utf-8")
        return {command: run(command, folder) for command in shown_outputs(text)}


def run(command: str, folder: Path) -> str:
    """Run one command in ``folder`` and return what it prints, without the folder's own path."""
    program, *arguments = command.split()
    environment = {key: os.environ[key] for key in KEPT if key in os.environ}
    result = subprocess.run(
        [sys.executable, *MODULES[program], *arguments],
        cwd=folder,
        env={**environment, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    if result.returncode not in (0, 1):  # findings and failing tests are what the README shows; anything else is not
        raise RuntimeError(f"`{command}` ended with status {result.returncode}:\n{result.stdout}{result.stderr}")
    # A program that is watched owns standard output; the report is on the other stream.
    printed = result.stdout + (result.stderr if "watch" in arguments else "")
    lines = printed.replace(f"{folder}{os.sep}", "").splitlines()
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def essence(output: str) -> list[str]:
    """Return the words of an output without what changes from run to run: numbers, padding, and where lines break."""
    words = re.sub(r"0x[0-9a-f]+|[-+]?\d+(\.\d+)?(e[-+]?\d+)?s?", "#", output)
    return re.sub(r"[─=_-]{3,}", " ", words).split()


if __name__ == "__main__":
    main()
