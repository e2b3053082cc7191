"""Files that are complete whenever they are there, whoever else writes at the same time."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any


def put_json(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON file; it is there as a whole or not at all."""
    text = json.dumps(document, indent=1)
    put(path, lambda file: file.write_text(text, encoding="utf-8"))


def put(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under another name, and give it its own when it is complete."""
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}.part")
    try:
        write(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
