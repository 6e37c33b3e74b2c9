"""Any text → LaTeX that pdflatex sets as it is, in ASCII."""

from __future__ import annotations

import unicodedata

MATHS = {"±": "pm", "×": "times", "·": "cdot", "→": "to", "≤": "le", "≥": "ge", "≠": "ne", "≈": "approx", "µ": "mu"}
PROSE = {"–": "--", "—": "---", "…": "\\dots{}", "’": "'", "‘": "`", "“": "``", "”": "''", '"': "''"}
LONG = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "\N{NO-BREAK SPACE}": "~"}
SIGNS = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{sign: f"${sign}$" for sign in "<>|"},
    **{sign: f"{{{sign}}}" for sign in "[*"},  # after \\ they would be its options
    **{sign: f"$\\{name}$" for sign, name in MATHS.items()},
    **PROSE,
    **LONG,
    "−": "$-$",
}
GREEK = "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΥΦΨΩ"  # the others look like Latin letters, and LaTeX has no name for them
ACCENTS = {"\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0308": '"', "\u0327": "c", "\u030c": "v"}


def tex(text: str) -> str:
    r"""What LaTeX has no sign for is shown by its number, since pdflatex would stop at it.

    >>> print(tex("τ, λ_dis & Σ ≥ 50 %, café 猫"))
    $\tau$, $\lambda$\_dis \& $\Sigma$ $\ge$ 50 \%, caf\'{e} {[}U+732B]
    """
    return "".join(map(_sign, text))


def _sign(sign: str) -> str:
    if sign in SIGNS:
        return SIGNS[sign]
    if sign.isascii():
        return sign if sign.isprintable() else " "
    if sign in GREEK:
        name = unicodedata.name(sign).split()[-1].replace("LAMDA", "LAMBDA")
        return f"$\\{name.lower() if sign.islower() else name.capitalize()}$"
    letter, mark = (parts := unicodedata.normalize("NFD", sign))[:1], parts[1:]
    if letter.isascii() and mark in ACCENTS:
        return f"\\{ACCENTS[mark]}{{{letter}}}"
    return f"{{[}}U+{ord(sign):04X}]"
