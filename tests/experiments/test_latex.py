"""What a report in LaTeX looks like in print: every sign shown."""

from __future__ import annotations

import pytest

from fedbm.results.escaping import tex


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("Sørensen, Łódź, Å, ő, ß", "S\\o{}rensen, \\L{}\\'{o}d\\'{z}, \\r{A}, \\H{o}, \\ss{}"),
        ("cafe\N{COMBINING ACUTE ACCENT}", "caf\\'{e}"),  # as some file systems keep a name
        ("90 °C", "90 $^\\circ$C"),
        (
            "λ_dis, 'λ_dis', w/o L_sem, λ_1, x_dis, A_b_c, AB_c",
            "$\\lambda_{\\mathrm{dis}}$, \\texttt{$\\lambda$\\_dis}, w/o $L_{\\mathrm{sem}}$, "
            "$\\lambda$\\_1, x\\_dis, A\\_b\\_c, AB\\_c",
        ),
    ],
)
def test_letters_of_other_languages_and_indices(text: str, written: str) -> None:
    assert tex(text) == written
