"""`mops study sample` with the real command: its files run as studies, and its errors are short."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mops.study.study_file import parse_study

from .command_lab import CommandLab

SPACE = {
    "x": {"min": 0.5, "max": 2, "points": 3},
    "kind": {"values": ["a", "1", "True", "b,c", "nan"]},
    "on": {"values": [True, False]},
    "n": {"min": 1, "max": 3, "type": "int"},
    "fixed": 7,
}


@pytest.fixture
def space(lab: CommandLab) -> Path:
    return lab.write("space.json", json.dumps(SPACE))


def sets_of(path: Path, **fields: Any) -> list[dict[str, Any]]:
    study = {"model": "m:f", "parameter_sets": path.name} if path.suffix != ".json" else json.loads(path.read_text())
    groups = parse_study(study | fields, where=str(path), folder=path.parent).groups
    return [group.params for group in groups.groups(range(len(groups)))]


def test_every_file_format_contains_the_same_sets(lab: CommandLab, space: Path) -> None:
    """Text that looks like a number stays text in CSV."""
    sample = ("study", "sample", space, "--method", "lhs", "-n", 50, "--seed", 3, "--to")
    for name, more in (("s.json", ["--model", "model:run"]), ("s.parquet", [])):
        out = lab.project / name
        ran = lab.run(*sample, out, *more)
        assert (ran.code, ran.out) == (0, f"{out}\n"), ran.err
    out = lab.project / "s.csv"
    ran = lab.run(*sample, out, "--json")
    about = {"method": "lhs", "seed": 3, "space": SPACE}
    assert (ran.json, ran.err) == ({"path": str(out), "sets": 50, "parameters": list(SPACE)} | about, "")
    first = sets_of(lab.project / "s.json")
    assert len(first) == 50
    assert first == sets_of(lab.project / "s.parquet") == sets_of(lab.project / "s.csv")
    assert {each["kind"] for each in first} == {"a", "1", "True", "b,c", "nan"}
    stored = json.loads(pq.read_schema(lab.project / "s.parquet").metadata[b"mops.sampling"])
    assert stored == about | {"n": 50}


def test_a_sampled_study_runs(lab: CommandLab, space: Path) -> None:
    out = lab.project / "sampled.json"
    arguments = ["--model", "model:run", "--target", "model:score", "--replicates", 2, "--to", out]
    ran = lab.run("study", "sample", space, "-n", 8, *arguments)
    assert (ran.code, ran.err) == (0, "8 sets of 5 parameters by sobol, seed 0\n")
    study = json.loads(out.read_text())
    assert study["sampling_method"] == "sobol"
    assert study["metadata"]["sampling"]["n"] == 8
    ran = lab.run("jobs", "submit", out, "--name", "sampled", "--json")
    assert (ran.code, ran.json["n_groups"], ran.json["n_simulations"]) == (0, 8, 16), ran.err


def test_a_study_is_sampled_again_and_keeps_its_other_fields(lab: CommandLab, space: Path) -> None:
    lab.write_study(metadata={"author": "x"}, outputs=["daily"], n_replicates=4)
    ran = lab.run("study", "sample", space, "--method", "grid", "--study", lab.study, "--to", lab.study, "--overwrite")
    assert ran.code == 0, ran.err
    study = json.loads(lab.study.read_text())
    assert len(study["parameter_sets"]) == 3 * 5 * 2 * 3
    assert (study["model"], study["outputs"], study["n_replicates"]) == ("model:run", ["daily"], 4)
    assert study["metadata"]["author"] == "x"


NAMES = "end it with .json, .parquet or .csv"
# Arguments after the space, and the full error; {} is the file to write.
NO_FOLDER = "the file cannot be written: No such file or directory"
OTHER = "name another file with --to"
WRONG: dict[str, tuple[list[object], str]] = {
    "no number": (["--to", "s.csv"], "'sobol' needs the number of sets\n  at: -n\nhint: add -n, like -n 1024"),
    "a grid's number": (
        ["-n", 3, "--method", "grid", "--to", "s.csv"],
        "a grid's size follows from the space\n  at: -n\nhint: leave -n out; use 'points'",
    ),
    "no ending": (["-n", 3, "--to", "s"], f"'s' has no known ending\n  at: s\nhint: {NAMES}"),
    "a study without a model": (
        ["-n", 3, "--to", "s.json"],
        "the study has no model\n  at: s.json\nhint: add --model or --study",
    ),
    "sets with a model": (
        ["-n", 3, "--to", "s.csv", "--model", "model:run"],
        "a .csv file holds only the sets\n  at: s.csv\nhint: write a .json file, or omit the study's fields",
    ),
    "a wrong model": (
        ["-n", 3, "--to", "s.json", "--model", "model run"],
        (
            "the study is not valid\n  $.model: 'model run' is not a module; write 'package.module', 'module:name' or "
            "'path/file.py:name', relative to the project root\n  at: s.json"
        ),
    ),
    "a folder that does not exist": (
        ["-n", 4, "--to", "nowhere/s.csv"],
        f"{NO_FOLDER}\n  at: nowhere/s.csv\nhint: create the folder, or {OTHER}",
    ),
    "a file in place of a folder": (
        ["-n", 4, "--to", "project/space.json/s.csv"],
        f"the file cannot be written: Not a directory\n  at: project/space.json/s.csv\nhint: {OTHER}",
    ),
}


def test_invalid_arguments(lab: CommandLab, space: Path, subtests: pytest.Subtests) -> None:
    before = sorted(lab.root.rglob("*"))
    for name, (arguments, said) in WRONG.items():
        with subtests.test(name):
            ran = lab.run("study", "sample", space, *arguments)
            assert (ran.code, ran.out, ran.err) == (2, "", f"error: {said}\n")
            assert sorted(lab.root.rglob("*")) == before


def test_a_space_file_that_is_missing_or_not_json(lab: CommandLab) -> None:
    ran = lab.run("study", "sample", "space.json", "-n", 3, "--to", "s.csv")
    hint = "name a space file, like space.json"
    assert ran.err == f"error: this space file does not exist\n  at: space.json\nhint: {hint}\n"
    space = lab.write("space.json", '{"a": 1, "a": 2}')
    ran = lab.run("study", "sample", space, "-n", 3, "--to", "s.csv")
    assert (
        ran.err
        == f"error: the space file is not strict JSON\n  $: the key 'a' appears twice; keep one\n  at: {space}\n"
    )


def test_files_are_replaced_only_on_request(lab: CommandLab, space: Path) -> None:
    out = lab.write("s.csv", "mine")
    ran = lab.run("study", "sample", space, "-n", 4, "--to", out)
    assert (ran.code, ran.err) == (
        2,
        f"error: this file already exists\n  at: {out}\nhint: add --overwrite to replace it\n",
    )
    assert out.read_text() == "mine"
    assert lab.run("study", "sample", space, "-n", 4, "--to", out, "--overwrite").code == 0
    assert len(sets_of(out)) == 4


def test_samples_near_the_best_sets_of_a_job(lab: CommandLab) -> None:
    """The loss of the lab's model is x times the number of replicates."""
    space = lab.write("wide.json", json.dumps({"x": {"min": 0, "max": 100}, "y": {"values": ["a", "b"]}}))
    sets = [{"x": 10.0 * i + 1, "y": "ab"[i % 2]} for i in range(10)]
    study = lab.write_study(parameter_sets=sets, targets=["model:score"])
    assert lab.submit("--name", "waves").code == 0
    out = lab.project / "next.json"
    arguments = ["study", "sample", space, "--around", "waves", "--best", 3, "-n", 16, "--study", study, "--to", out]
    ran = lab.run(*arguments)
    assert ran.code == 0, ran.err
    assert 'near the best 3 sets of job waves: {"x": {"min": 0, "max": 26.0}, "y": {"values": ["a", "b"]}}' in ran.err
    drawn = sets_of(out)
    assert len(drawn) == 16
    assert all(0 <= each["x"] <= 26 for each in drawn)
    assert max(each["x"] for each in drawn) > 20
    about = json.loads(out.read_text())["metadata"]["sampling"]
    assert about["around"]["job"] == "waves"
    assert about["around"]["space"]["x"] == {"min": 0, "max": 26.0}
    one = lab.run(*arguments, "--overwrite", "--weight", "score=-1", "--json")
    assert one.json["space"]["x"] == {"min": 66.0, "max": 96.0}, "the largest losses, with a negative weight"
    for weight, said in (
        ("score2=1", "no loss has the label 'score2'"),
        ("score=nan", "the weight of 'score' is nan"),
        ("score=-inf", "the weight of 'score' is -inf"),
    ):
        for command in (
            (*arguments, "--overwrite"),
            ("jobs", "results", "waves", "--best", 1),
            ("jobs", "report", "waves", "--to", "r.html"),
        ):
            wrong = lab.run(*command, "--weight", weight)
            assert wrong.code == 2
            assert said in wrong.err


def test_a_job_without_losses_has_no_surroundings(lab: CommandLab, space: Path) -> None:
    assert lab.submit("--name", "plain").code == 0
    ran = lab.run("study", "sample", space, "--around", "plain", "-n", 16, "--to", lab.project / "s.csv")
    assert ran.code == 2
    assert "job 'plain' has no parameter set with losses" in ran.err
    ran = lab.run("study", "sample", space, "--around", "nowhere", "-n", 16, "--to", lab.project / "s.csv")
    assert ran.code == 2
    assert "nowhere" in ran.err


def test_an_option_for_the_best_sets_needs_their_job(lab: CommandLab) -> None:
    """It was ignored."""
    space = lab.write("space.json", '{"x": {"min": 0, "max": 1}}')
    for option in (["--best", 3], ["--weight", "near=2"]):
        ran = lab.run("study", "sample", space, "-n", 4, "--to", lab.project / "sets.csv", *option)
        assert (ran.code, ran.out) == (2, "")
        assert f"only a sample near the best sets has {option[0]}" in ran.err
        assert not (lab.project / "sets.csv").exists()
