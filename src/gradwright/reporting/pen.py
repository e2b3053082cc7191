"""Writing on a console: marks, indented paragraphs and scripts, in whatever encoding the console has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from rich.box import Box
from rich.console import Console
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from gradwright.typing import Verdict

STYLES: Mapping[Verdict, str] = {
    "pass": "green",
    "fail": "bold red",
    "suspect": "bold yellow",
    "unresolved": "magenta",
    "unsupported": "cyan",
    "skipped": "dim",
}
MARKS: Mapping[Verdict, str] = {
    "pass": "✓",
    "fail": "✗",
    "suspect": "!",
    "unresolved": "?",
    "unsupported": "–",
    "skipped": "·",
}
ASCII_MARKS: Mapping[Verdict, str] = {
    "pass": "+",
    "fail": "X",
    "suspect": "!",
    "unresolved": "?",
    "unsupported": "-",
    "skipped": ".",
}
"""One character each, told apart without colour."""

# A rule below the head and nothing else: reads well as plain text, and stays when a table is copied.
PLAIN_BOX = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
UNICODE_BOX = Box("    \n    \n ── \n    \n    \n    \n    \n    \n")


CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What a terminal would obey: a name or a message of the checked code must not colour, erase or turn what is read."""


class Pen:
    """Writes on a rich console; what the console's encoding cannot show is written in ASCII instead."""

    def __init__(self, console: Console, encoding: str | None = None) -> None:
        self.console = console
        self.encoding = encoding or console.encoding
        special = "".join(MARKS.values()) + "±─"
        self.unicode = _encodable(special, self.encoding)
        self.marks = MARKS if self.unicode else ASCII_MARKS
        self.plus_minus = "±" if self.unicode else "+/-"

    def text(self, *parts: str | tuple[str, str]) -> Text:
        """Join pieces, each plain or with a style, into one text; nothing in them is taken for markup."""
        built = Text()
        for part in parts:
            words, style = (part, "") if isinstance(part, str) else part
            built.append(self._clean(words), style)
        return built

    def mark(self, verdict: Verdict) -> tuple[str, str]:
        """Return the styled mark of a verdict."""
        return self.marks[verdict], STYLES[verdict]

    def line(self, *parts: str | tuple[str, str], indent: int = 0) -> None:
        """Write one paragraph, wrapped and indented."""
        self.console.print(Padding(self.text(*parts), (0, 0, 0, indent), expand=False))

    def blank(self) -> None:
        """Write an empty line."""
        self.console.print()

    def heading(self, words: str) -> None:
        """Write an empty line and a heading."""
        self.blank()
        self.line((words, "bold"))

    def script(self, code: str, title: str) -> None:
        """Write a script that can be copied, marks included, and run: it is neither indented nor wrapped."""
        ruler = f"# {title} ".ljust(72, "-")
        source = self._clean(f"{ruler}\n{code.strip()}\n# {'-' * 70}")
        highlighted = Syntax("", "python", theme="ansi_dark", background_color="default").highlight(source)
        highlighted.rstrip()
        self.console.print(highlighted, soft_wrap=True)

    def command(self, label: str, words: str, indent: int = 2) -> None:
        """Write a command on one line, however long, so that it can be copied."""
        self.console.print(self.text(" " * indent, (label, "bold"), words), soft_wrap=True)

    def source(self, lines: Sequence[tuple[int, str]], marked: int, indent: int = 2) -> None:
        """Write lines of source with their numbers and a mark on one of them; what does not fit is cut off."""
        width = len(str(max(number for number, _ in lines)))
        for number, words in lines:
            line = self.text((f"{'>' if number == marked else ' '} {number:>{width}} | ", "dim"), words)
            line.truncate(max(self.console.width - indent, width + 8), overflow="ellipsis" if self.unicode else "crop")
            self.console.print(Padding(line, (0, 0, 0, indent), expand=False), no_wrap=True)

    def flow(self, items: Iterable[Text], width: int) -> Text:
        """Set items side by side in lines of at most ``width`` columns, never breaking one in two."""
        lines: list[Text] = []
        for item in items:
            if lines and lines[-1].cell_len + 2 + item.cell_len <= width:
                lines[-1].append("  ").append_text(item)
            else:
                lines.append(item.copy())
        return Text("\n").join(lines)

    def grid(self, rows: Sequence[Sequence[Text]], indent: int = 2) -> None:
        """Write rows in aligned columns; only the last column wraps."""
        grid = Table.grid(padding=(0, 2, 0, 0))
        for number in range(len(rows[0]) if rows else 0):
            last = number == len(rows[0]) - 1
            grid.add_column(overflow="fold", no_wrap=not last, max_width=None if last else 40)
        for row in rows:
            grid.add_row(*row)
        self.console.print(Padding(grid, (0, 0, 0, indent), expand=False))

    def table(self) -> Table:
        """Return an empty table in a box that reads well as plain text."""
        box = UNICODE_BOX if self.unicode else PLAIN_BOX
        return Table(box=box, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold")

    def _clean(self, words: str) -> str:
        words = CONTROLS.sub(lambda match: repr(match[0])[1:-1], words)
        if not self.unicode:
            words = words.replace("±", "+/-").replace("×", "x")
        return words.encode(self.encoding, "backslashreplace").decode(self.encoding)


def _encodable(words: str, encoding: str) -> bool:
    try:
        words.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
