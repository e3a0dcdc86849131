"""Which data a bundle declares for outputs."""

from __future__ import annotations

import io
import zipfile

import pytest

from mops.errors import UsageError
from mops.project.mops_toml import read_observed

DECLARED = '[[observed]]\noutput = "daily"\nx = "day"\ny = "cases"\nfile = "data/cases.csv"\n'


def bundle(toml: str | None, **files: str | bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in ({} if toml is None else {"mops.toml": toml}).items():
            archive.writestr(name, text)
        for name, text in files.items():
            archive.writestr(f"data/{name}.csv", text)
    return out.getvalue()


def test_the_columns_of_the_file_are_the_data() -> None:
    (found,) = read_observed(bundle(DECLARED, cases="day,cases,note\n1,3,a\n2,5,b\n"))
    assert (found.output, found.x, found.y) == ("daily", "day", "cases")
    assert found.table.select(["day", "cases"]).to_pydict() == {"day": [1, 2], "cases": [3, 5]}


def test_a_project_need_not_declare_data(subtests: pytest.Subtests) -> None:
    for toml in [None, "", '[data]\npaths = ["/x"]\n']:
        with subtests.test(str(toml)):
            assert read_observed(bundle(toml)) == []


def test_a_wrong_declaration_is_named(subtests: pytest.Subtests) -> None:
    for toml, files, what in [
        ('observed = "x"\n', {}, "not a list of tables"),
        ('[[observed]]\noutput = "daily"\n', {}, "wrong keys"),
        (f"{DECLARED}more = 1\n", {}, "wrong keys"),
        (DECLARED, {}, "the project has no file 'data/cases.csv'"),
        (DECLARED, {"cases": ""}, "cannot be read as CSV"),
        (DECLARED, {"cases": "day,n\n1,2\n"}, "the data have no column 'cases'"),
        (DECLARED, {"cases": "day,cases,day\n1,2,3\n"}, "the data have 2 columns 'day'"),
        (DECLARED, {"cases": "day,f\xe4lle\n1,2\n".encode("latin-1")}, "the names of the columns are not UTF-8"),
        (DECLARED, {"cases": "day,cases\nMonday,2\n"}, "the column 'day' of the data has the type string"),
        (DECLARED, {"cases": "day,cases\n1,few\n"}, "the column 'cases' of the data has the type string"),
    ]:
        with subtests.test(str((toml, files, what))), pytest.raises(UsageError, match=what):
            read_observed(bundle(toml, **files))
