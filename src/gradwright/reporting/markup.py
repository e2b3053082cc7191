"""HTML and SVG elements from Python values: everything that is not already markup is escaped."""

from __future__ import annotations

import html
import re

# What cannot be seen or encoded: control characters (not tab and line break), lone halves of pairs, and those that turn
# the direction of writing, by which a name can be made to look like another.
UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]")

SHAPES = ("circle", "line", "path", "rect")
"""Elements of SVG, which may be closed at once when they are empty; of HTML that is true of none that is made here."""


class Markup(str):
    """Text that is markup already and is not escaped again."""


def element(name: str, *content: str, **attributes: str | float | bool | None) -> Markup:
    """Return an element; an attribute that is None or False is left out.

    Attribute names are written for Python: ``cls`` for ``class``, ``for_`` for ``for``, ``data_tip`` for ``data-tip``.
    """
    opening = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    if name in SHAPES and not content:
        return Markup(f"<{name}{opening}/>")
    return Markup(f"<{name}{opening}>{join(*content)}</{name}>")


def join(*content: str) -> Markup:
    """Put pieces one after the other, escaping those that are plain text."""
    return Markup("".join(piece if isinstance(piece, Markup) else _escaped(piece) for piece in content))


def prose(text: str) -> Markup:
    """Escape a message and set what it has between backticks as code."""
    return Markup(re.sub(r"`([^`\n]+)`", r"<code>\1</code>", _escaped(text)))


def _escaped(text: str) -> str:
    return html.escape(UNSEEN.sub(_spelled, text))


def _spelled(found: re.Match[str]) -> str:
    """Write a character that cannot be shown as Python does."""
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _attribute(key: str, value: str | float | bool) -> str:
    if value is False:
        return ""
    name = "class" if key == "cls" else key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f' {name}="{_escaped(text)}"'
