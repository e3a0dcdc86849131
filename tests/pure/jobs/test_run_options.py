"""What submit, resume and retry accept in Python."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import mops
from mops.calibration.options import CalibrateOptions, Method, Plan
from mops.errors import UsageError
from mops.jobs.launch import Launch, RunOptions
from mops.options import options_of
from mops.settings import Settings
from mops.storage.job_options import JobOptions, PodOptions
from mops.storage.samples import SAMPLES
from mops.task import FAILURES, LOSSES


def test_a_study_that_is_no_path_is_refused_with_what_is_accepted(tmp_path: Path) -> None:
    """It raised a bare TypeError."""
    study: Any = [{"x": 1}]
    with pytest.raises(UsageError, match=r"study is a list, not a path(.|\n)*mops\.submit\('study\.json'\)"):
        mops.submit(study, storage=tmp_path)


def test_a_folder_that_is_no_path_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for argument in ["storage", "project"]:
        with subtests.test(argument=argument):
            (tmp_path / "study.json").write_text('{"model": "model:run", "parameter_sets": [{"x": 1}]}')
            folders: Any = {"storage": tmp_path / "storage"} | {argument: {"a": 1}}
            with pytest.raises(UsageError, match=f"{argument} is a dict, not a path"):
                mops.submit(tmp_path / "study.json", **folders)


def test_an_unknown_option_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    misspelt: Any = {"setings": None}
    with pytest.raises(TypeError, match="unexpected keyword argument: setings"):
        mops.submit(tmp_path / "no such study.json", **misspelt)


def test_a_launch_uses_and_keeps_the_limits_of_its_job_and_of_its_study() -> None:
    """Regression: resume, retry, extend and rescore in a new shell lost the limits of the submit."""
    job = JobOptions({}, None, PodOptions(), {"sim_timeout": 5.0, "retries": 0})
    again = Launch.of({"settings": Settings(retries=2), "local": True}, kept=job)
    assert (again.settings.sim_timeout, again.settings.retries) == (5, 2)
    assert again.options.limits == {"sim_timeout": 5.0, "retries": 2}
    study = again.with_limits({"sim_timeout": 60.0, "sim_memory": 1 << 30})
    assert study.options.limits == {"sim_timeout": 5.0, "sim_memory": 1 << 30, "retries": 2}
    assert study.settings.sim_memory == 1 << 30


def test_the_shared_options_are_in_the_signature(subtests: pytest.Subtests) -> None:
    """Notebooks complete the names that they find there."""
    for function in [mops.submit, mops.resume, mops.retry]:
        with subtests.test(function=function):
            parameters = inspect.signature(function).parameters
            assert set(RunOptions.__annotations__) < set(parameters)
            assert all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in parameters.values())


def test_the_docstring_describes_each_parameter(subtests: pytest.Subtests) -> None:
    for function in [mops.submit, mops.calibrate]:
        with subtests.test(function=function):
            described = inspect.getdoc(function) or ""
            names = [*inspect.signature(function).parameters]
            assert [name for name in names if not re.search(rf"^(\w+, )*{name}\b", described, re.MULTILINE)] == []


WIDER = {"method": Method | str, "objectives": Sequence[str], "python": str | Path}
"""Of these options, Python accepts other types than the record."""


def test_the_keywords_of_python_are_the_options_of_the_command_line(subtests: pytest.Subtests) -> None:
    """The fields of ``options`` make both. Only for editors and mypy, the keywords stand in a class of their own."""
    for keywords, options in [(CalibrateOptions, Plan), (RunOptions, JobOptions)]:
        with subtests.test(keywords=keywords, options=options):
            ours, theirs = get_type_hints(options), get_type_hints(keywords)
            for name, *_ in options_of(options):
                assert WIDER.get(name, ours[name]) | None == theirs[name] | None, name


def test_the_docstring_of_a_table_has_its_columns_and_types(subtests: pytest.Subtests) -> None:
    for method, schema in [("losses", LOSSES), ("failures", FAILURES), ("samples", SAMPLES)]:
        with subtests.test(method=method, schema=schema):
            text = inspect.getdoc(getattr(mops.Job, method)) or ""
            for field in schema:
                word = {"double": "float64"}.get(str(field.type), str(field.type).split("[")[0].split("<")[0])
                named = re.search(rf"``{field.name}``(?:, ``\w+``)*\s+\((\w+)", text)
                assert named, f"{method} does not document {field.name}"
                assert named[1] == word
