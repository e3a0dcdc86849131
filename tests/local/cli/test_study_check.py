"""`mops study check` runs a simulation three times and reports differences, durations and failures."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mops.study.ids_and_seeds import param_id, replicate_seed

from .command_lab import CommandLab, Ran

MODEL = """
import ctypes, os, random, time
from pathlib import Path
import numpy as np

unseeded_generator = np.random.default_rng()
fixed_generator = np.random.default_rng(1)
AT_IMPORT = time.time_ns()
seen = []

def seeded(params, seed):
    print("a model prints")
    rng = np.random.default_rng(seed)
    drawn = [random.random(), np.random.standard_normal(), float("nan")]
    return {"daily": {"y": rng.random(3), "drawn": drawn, "text": ["a", None, "c"]}, "total": {"n": [3]}}

def unseeded(params, seed):
    return {"daily": {"day": [0, 1, 2], "y": np.append(1.0, unseeded_generator.random(2))}}

def fixed(params, seed):
    return {"y": fixed_generator.random()}

def ignores_the_seed(params, seed):
    return {"y": np.random.default_rng(1).random()}

def rare_event(params, seed):
    return {"n": int(seed % int(os.environ["RARE"]) == 0)}

def no_rows(params, seed):
    return {"day": []}

def counts(params, seed):
    seen.append(seed)
    return {"daily": {"n": [len(seen)]}}

def remembers_others(params, seed):
    if (params["x"], seed) not in seen:
        seen.append((params["x"], seed))
    return {"daily": {"n": [len(seen)]}}

def of_the_import(params, seed):
    return {"daily": {"when": [AT_IMPORT]}}

def grows(params, seed):
    seen.append(seed)
    return {"daily": {"n": list(range(len(seen)))}}

def counts_in_a_file(params, seed):
    Path("out").mkdir(exist_ok=True)
    count = Path("out/count.txt")
    n = int(count.read_text()) if count.exists() else 0
    count.write_text(str(n + 1))
    return {"n": n}

def makes_a_folder(params, seed):
    Path("out").mkdir()
    return {"n": 1}

def fails_later(params, seed):
    seen.append(seed)
    if len(seen) == 2:
        raise RuntimeError("the file is there already")
    return {"n": 1}

def fails(params, seed):
    print("just before")
    raise ValueError("beta is missing")

def fails_elsewhere(params, seed):
    if params["x"] == 2:
        raise ValueError("x is 2")
    return {"n": params["x"]}

def crashes(params, seed):
    ctypes.string_at(0)

def hangs(params, seed):
    time.sleep(600)

def noted(params, seed):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(f"{os.getpid()} {params['x']} {seed}\\n")
    return {"n": 1}

def draws(params, replicates):
    return {"loss": random.random() + np.random.random(), "n": len(replicates)}

def draws_unseeded(params, replicates):
    return unseeded_generator.random()

def cannot_score(params, replicates):
    return replicates[0]["nothing"]
"""


@pytest.fixture
def check(lab: CommandLab) -> Any:
    lab.write("model.py", MODEL)

    def check(model: str, *arguments: object, fields: dict[str, Any] | None = None, **variables: str) -> Ran:
        lab.write_study(model=f"model:{model}", **(fields or {}))
        return lab.run("study", "check", lab.study, *arguments, **variables)

    return check


def test_a_seeded_model_is_reproducible(check: Any, lab: CommandLab) -> None:
    ran = check("seeded", fields={"targets": ["model:draws"]})
    assert (ran.code, "warning" in ran.err) == (0, False), ran.err
    assert re.search(r"^reproducible +yes$", ran.out, re.MULTILINE)
    assert re.search(
        r"^one simulation +\d.* in a fresh process, \d.* again in the same process$", ran.out, re.MULTILINE
    )
    assert re.search(r"^output daily +3 rows, \d+ B as Arrow$", ran.out, re.MULTILINE)
    assert re.search(r"^target model:draws +n = 2$", ran.out, re.MULTILINE)
    assert "a model prints" not in ran.out + ran.err
    assert lab.stored() == []


# The model, when its results differ, the first difference, and the hint.
VARYING = {
    "unseeded": ("again in the same process", r"output 'daily', column 'y', row 1: 0\.\d+ the .*, 0\.\d+ the", "seed"),
    "of_the_import": ("in another process", r"output 'daily', column 'when', row 0: \d+ the .*, \d+ the", "seed"),
    "remembers_others": ("after another simulation", r"output 'daily', column 'n', row 0: 1 the .*, 2 the s", "keeps"),
    "grows": ("again in the same process", r"output 'daily', rows: 1 the first time, 2 the second", "keeps"),
}


@pytest.mark.parametrize("model", VARYING)
def test_a_model_that_is_not_reproducible_gives_a_warning_with_its_cause(check: Any, model: str) -> None:
    when, differs, advice = VARYING[model]
    ran = check(model, fields={"n_replicates": 1})
    assert ran.code == 0
    warning, first, *_, hint = ran.err.splitlines()[1:]
    assert warning == f"warning: the model is not reproducible: the same simulation differs when it runs {when}"
    assert re.match("  " + differs, first), first
    assert hint.startswith("hint: fresh processes " + {"seed": "differ too", "keeps": "agree"}[advice])
    assert advice in hint
    assert re.search(r"^reproducible +no$", ran.out, re.MULTILINE)


def test_check_names_files_that_the_model_reads_after_it_wrote_them(check: Any) -> None:
    """Regression: a counter in a file continued from one simulation to the next, and from one job to the next."""
    ran = check("counts_in_a_file")
    assert ran.code == 0
    assert "warning: the model reads files that it wrote before: out/count.txt" in ran.err
    assert "hint: in a job each simulation starts in a folder with the project's files only" in ran.err
    assert re.search(r"^reproducible +yes$", ran.out, re.MULTILINE)


def test_a_model_that_only_writes_files_gives_no_warning(check: Any) -> None:
    """The model fails if its folder exists, but in a job each simulation has a new working folder."""
    ran = check("makes_a_folder", "--json", fields={"n_replicates": 1})
    assert (ran.code, "warning" in ran.err) == (0, False), ran.err
    assert (ran.json["trial"]["reproducible"], ran.json["trial"]["reads_written"]) == (True, [])


def test_a_simulation_that_fails_in_its_second_run_is_a_failure_and_not_reproducible(check: Any) -> None:
    ran = check("fails_later")
    assert ran.code == 1
    assert "  the simulation: good the first time, error (RuntimeError: the file is there already) the sec" in ran.err
    assert "error: the trial failed: the simulation with seed " in ran.err


def test_json_contains_the_cause_and_each_difference(check: Any) -> None:
    trial = check("counts", "--json").json["trial"]
    assert trial["reproducible"] is False
    assert trial["varying"] == {
        "when": "again in the same process",
        "cause": "kept",
        "differences": [{"what": "output 'daily', column 'n', row 0", "first": "1", "second": "2"}],
    }


def test_in_a_study_of_one_simulation_the_run_in_between_has_another_seed(check: Any) -> None:
    ran = check("remembers_others", fields={"parameter_sets": [{"x": 1}], "n_replicates": 1})
    assert "differs when it runs after another simulation" in ran.err


def test_a_target_that_scores_the_same_tables_differently_is_named(check: Any) -> None:
    """Each target gets the same tables twice, so this works even if the model is not reproducible."""
    ran = check("unseeded", fields={"targets": ["model:draws", "model:draws_unseeded"]})
    assert ran.code == 0
    assert "warning: a target is not reproducible: it scores the same tables differently" in ran.err
    assert re.search(
        r"^  target 'model:draws_unseeded', loss 'loss': 0\.\d+ the first time, 0\.\d+ t", ran.err, re.MULTILINE
    )
    assert "target 'model:draws'," not in ran.err


def test_a_failed_simulation_is_reported_as_a_job_would_record_it(check: Any, lab: CommandLab) -> None:
    ran = check("fails", "--json")
    assert ran.code == 1
    trial = ran.json["trial"]
    (failure,) = trial["failures"]
    assert (failure["reason"], failure["message"]) == ("error", "ValueError: beta is missing")
    assert "raise ValueError" in failure["traceback"]
    assert (trial["reproducible"], trial["warm_seconds"], trial["outputs"]) == (None, None, [])
    seed = trial["seed"]
    said, *trace = ran.err.splitlines()[1:]
    assert said == f"error: the trial failed: the simulation with seed {seed}: error: ValueError: beta is missing"
    assert trace[0] == "Traceback (most recent call last):"
    assert "in fails" in trace[1]
    assert trace[-2:] == ["its last output: just before", '  at: the first parameter set, {"x":1}']
    assert lab.stored() == []


@pytest.mark.parametrize(
    ("model", "said", "head"),
    [
        ("crashes", "crashed: ended with SIGSEGV", "Fatal Python error"),
        ("hangs", "timeout: ran for more than 1 s", "where it was when mops stopped it"),
    ],
)
def test_a_crash_and_a_hang_have_their_verdicts_and_lines(check: Any, model: str, said: str, head: str) -> None:
    ran = check(model, MODELOPS_JOB_SIM_TIMEOUT="1")
    assert ran.code == 1
    assert said in ran.err
    assert f"in {model}" in ran.err
    assert "warning" not in ran.err
    assert ran.err.count(head) == 1
    assert ("Fatal Python error" in ran.err) == (model == "crashes")


def test_a_failed_target_fails_the_trial(check: Any) -> None:
    ran = check("seeded", fields={"targets": ["model:cannot_score"]})
    assert ran.code == 1
    assert "error: the trial failed: target model:cannot_score: error: KeyError: 'nothing'" in ran.err
    assert ran.err.count("the trial failed") == 1


def test_a_failure_of_the_simulation_in_between_is_a_warning(check: Any) -> None:
    ran = check("fails_elsewhere")
    assert ran.code == 0
    assert "warning: the other simulation of the trial failed: error: ValueError: x is 2" in ran.err
    assert re.search(r"^reproducible +yes$", ran.out, re.MULTILINE)


def test_outputs_that_the_study_does_not_keep_do_not_count(check: Any) -> None:
    ran = check("seeded", "--json", fields={"outputs": ["total"]})
    assert [output["name"] for output in ran.json["trial"]["outputs"]] == ["total"]


def test_an_unknown_output_is_refused_before_any_job(check: Any) -> None:
    ran = check("seeded", fields={"outputs": ["dayly"]})
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[1:] == [
        "error: the model has no output 'dayly'; it has: daily, total",
        "  at: $.outputs",
        "hint: name outputs that the model returns, or remove 'outputs' to keep all",
    ]


def test_the_simulation_runs_in_two_processes_and_another_replicate_in_a_third(check: Any, lab: CommandLab) -> None:
    notes = lab.root / "notes"
    assert check("noted", "--env", f"NOTES={notes}").code == 0
    (a, *first), (b, *again), (c, *other), (d, *after), (e, *second) = map(str.split, notes.read_text().splitlines())
    assert (a == b, c == d, len({a, c, e})) == (True, True, 3)
    assert first == again == after
    assert (first[0], other[0], second[0]) == ("1", "2", "1")
    assert second[1] != first[1]


EQUAL = (
    "replicates are equal in fresh processes although their seeds differ: "
    "the outputs of this set do not depend on the seed"
)


# The model, whether it is reproducible, and the process of each simulation.
@pytest.mark.parametrize(
    ("model", "reproducible", "tasks_per_child"),
    [
        ("fixed", "no", "0"),
        ("fixed", "yes", "1"),  # regression: the check recommended this, and said nothing of the equal replicates
    ],
)
def test_replicates_that_are_equal_although_their_seeds_differ_are_a_warning(
    check: Any, model: str, reproducible: str, tasks_per_child: str
) -> None:
    ran = check(model, fields={"n_replicates": 3}, MODELOPS_JOB_TASKS_PER_CHILD=tasks_per_child)
    assert ran.code == 0
    *_, warning, hint = ran.err.splitlines()
    assert warning == f"warning: the first 3 {EQUAL}"
    assert hint.startswith("hint: pass the seed to the model's generator, numpy.random.default_rng(seed)")
    assert "TASKS_PER_CHILD" not in ran.err
    assert re.search(rf"^reproducible +{reproducible}$", ran.out, re.MULTILINE)


def test_a_model_without_random_numbers_needs_one_replicate(check: Any) -> None:
    ran = check("ignores_the_seed", fields={"n_replicates": 1})
    assert (ran.code, "warning" in ran.err) == (0, False), ran.err
    two = check("ignores_the_seed", "--json")
    assert f"warning: the first 2 {EQUAL}" in two.err
    assert two.json["trial"]["equal_replicates"] == 2


def test_replicates_that_are_equal_by_chance_are_no_warning(check: Any) -> None:
    set_id = param_id({"x": 1})
    each = [(n, [replicate_seed(set_id, i) % n == 0 for i in range(3)]) for n in range(2, 100)]
    rare = next(n for n, (first, second, third) in each if first == second != third)
    for model, n in (("rare_event", 3), ("no_rows", 2)):
        ran = check(model, "--env", f"RARE={rare}", fields={"n_replicates": n})
        assert (ran.code, "warning" in ran.err) == (0, False), ran.err


def test_no_run_only_imports_the_model(check: Any, lab: CommandLab) -> None:
    notes = lab.root / "notes"
    ran = check("noted", "--no-run", "--json", "--env", f"NOTES={notes}")
    assert (ran.code, ran.json["trial"]) == (0, None)
    assert not notes.exists()
    assert check("nothing", "--no-run").code == 2
