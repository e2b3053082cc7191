"""Text as user code can put it into a report, with what ends something, or means something, in every format."""

NASTY = (
    "]]><script>&amp;'\"`|` \\| **b** [x](y) {{ 1 }}\x00\x1b[31m\x85\ufffe\ud800"
    "\r\n::error::injected%0A,file=a:b\n\n# heading\n```\n</details>\u202eÄ😀"
)
