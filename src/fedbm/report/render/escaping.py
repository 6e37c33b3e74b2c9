"""Any text → LaTeX that pdflatex sets as it is, in ASCII; or Markdown that shows it as it is."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from itertools import pairwise

MATHS = {"±": "pm", "×": "times", "·": "cdot", "→": "to", "≤": "le", "≥": "ge", "≠": "ne", "≈": "approx", "µ": "mu"}
PROSE = {"–": "--", "—": "---", "…": "\\dots{}", "’": "'", "‘": "`", "“": "``", "”": "''", '"': "''"}
LONG = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "\N{NO-BREAK SPACE}": "~"}
LETTERS = {"ß": "ss", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "ı": "i"}
SIGNS = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{sign: f"${sign}$" for sign in "<>|"},
    **{sign: f"{{{sign}}}" for sign in "[*"},  # after \\ they would be its options
    **{sign: f"$\\{name}$" for sign, name in MATHS.items()},
    **PROSE,
    **LONG,
    **{letter: f"\\{name}{{}}" for letter, name in LETTERS.items()},
    "−": "$-$",
    "°": "$^\\circ$",
}
TYPED = SIGNS | {"'": "\\textquotesingle{}", "`": "\\textasciigrave{}", '"': "{\\char34}"}  # straight, as on a keyboard
LIGATURES = ("--", "''", "``", "?`", "!`", ",,")  # of two signs LaTeX would make one
CODE = re.compile(  # 'fedbm features RUN', --resume, --data-dir DIR, --budget 2m
    r"(?<![^\s(])(?:'([^'\n]+)'(?!\w)|(--[a-z][\w-]*(?: (?:[A-Z]{2,}|\d+[a-z]*)\b)?))"
)
MARKUP = re.compile(r"[\\|*`]|\[(?=[^]]*\][(\[])|(?<!\w)_|_(?!\w)|<(?=[\w/!?])")
GREEK = "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΥΦΨΩ"  # the others look like Latin letters, and LaTeX has no name for them
ACCENTS = {"\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0308": '"', "\u0327": "c", "\u030c": "v"}
ACCENTS |= {"\u0304": "=", "\u0306": "u", "\u0307": ".", "\u030a": "r", "\u030b": "H"}
INDEXED = re.compile(r"(?:\$(\\[a-zA-Z]+)\$|\b([A-Z]))\\_([a-z]+)(?![a-zA-Z0-9]|\\_)")  # λ_dis, L_sem, sign by sign


def md(text: str) -> str:
    r"""What would begin emphasis, code, a link, a tag or a cell is escaped; "λ_dis", "p < 0.1" and "x[y]" do not.

    >>> print(md("a|b *c* _d_ λ_dis <b> p < 0.1 [e](f) `g` fedbm[text]"))
    a\|b \*c\* \_d\_ λ_dis &lt;b> p < 0.1 \[e](f) \`g\` fedbm[text]
    """
    return MARKUP.sub(lambda found: "&lt;" if found[0] == "<" else f"\\{found[0]}", text)


def tex(text: str) -> str:
    r"""What LaTeX has no sign for is shown by its number, since pdflatex would stop at it.

    >>> print(tex("τ, λ_dis & Σ ≥ 50 %, café 猫"))
    $\tau$, $\lambda_{\mathrm{dis}}$ \& $\Sigma$ $\ge$ 50 \%, caf\'{e} {[}U+732B]

    What stands in straight quotes, and a flag, is code.

    >>> print(tex("the paper's; 'fedbm data' takes --to"))
    the paper's; \texttt{fedbm data} takes \texttt{-{}-to}
    """
    prose, *found = CODE.split(text)
    pieces = [_prose(prose)]
    for quoted, flag, prose in zip(found[::3], found[1::3], found[2::3], strict=True):
        pieces += [code(quoted or flag), _prose(prose)]
    return "".join(pieces)


def _prose(text: str) -> str:
    """With indices where one letter has one."""
    return INDEXED.sub(lambda found: f"${found[1] or found[2]}_{{\\mathrm{{{found[3]}}}}}$", _written(text, SIGNS))


def code(text: str) -> str:
    r"""What is to be typed, in signs that can be copied.

    >>> print(code("fedbm run --data 'my scans'"))
    \texttt{fedbm run -{}-data \textquotesingle{}my scans\textquotesingle{}}
    """
    return f"\\texttt{{{_written(text, TYPED)}}}"


def _written(text: str, signs: Mapping[str, str]) -> str:
    """Two signs of which LaTeX would make one are kept apart, where the first is written as itself."""
    pieces = []
    for sign, following in pairwise(f"{unicodedata.normalize('NFC', text)} "):
        written = _sign(sign, signs)
        pieces.append(written + "{}" * (written == sign and sign + following in LIGATURES))
    return "".join(pieces)


def _sign(sign: str, signs: Mapping[str, str]) -> str:
    if sign in signs:
        return signs[sign]
    if sign.isascii():
        return sign if sign.isprintable() else " "
    if sign in GREEK:
        name = unicodedata.name(sign).split()[-1].replace("LAMDA", "LAMBDA")
        return f"$\\{name.lower() if sign.islower() else name.capitalize()}$"
    letter, mark = (parts := unicodedata.normalize("NFD", sign))[:1], parts[1:]
    if letter.isascii() and mark in ACCENTS:
        return f"\\{ACCENTS[mark]}{{{letter}}}"
    return f"{{[}}U+{ord(sign):04X}]"
