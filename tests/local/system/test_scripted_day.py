"""A modeller's day: sample, run, add replicates and sets, mend a target, calibrate, and three times ``kill -9``.

The model's own log (calls of project/held.py) counts the simulations. Simulations computed are simulations needed, and
those that a kill took: called in the killed command, and not committed by the log of the job.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from study_lab import MOPS, Runner, StudyLab, wait_for

from mops.storage.sources import verify_job
from rows import rows_of

SETS, MORE_SETS = 32, 10
REPLICATES, ALL_REPLICATES = 2, 6
ROUNDS, SETS_OF_ROUND = 3, 12
SPACE = {"beta": {"min": 0.2, "max": 0.6}, "gamma": {"min": 0.05, "max": 0.2}, "sleep": 0.002}
SLOTS = 2
SMALL = {"SLOTS": SLOTS, "CHECKPOINT_SECONDS": 0, "TASK_SECONDS": 0.05}
"""Small tasks and a commit for each, so that a kill in the middle finds groups that are committed and others."""
NO_POSTERIOR = 3

Simulation = tuple[str, int]
"""Parameters as canonical JSON, and a seed."""


@dataclass
class Day:
    """The commands of the day, and what they simulated."""

    lab: StudyLab
    taken: Counter[Simulation] = field(default_factory=Counter)
    """Simulations that a kill took after they had been called."""

    def mops(self, *arguments: object, exit_code: int = 0, verb: str = "jobs", **settings: object) -> Runner:
        """Run a command to its end."""
        ran = self.lab.start(*map(str, arguments), program=(MOPS, verb), **settings)
        assert ran.wait() == exit_code, ran.said
        return ran

    def killed(self, job: str, n_calls: int, *arguments: object, verb: str = "jobs") -> Runner:
        """Kill a command while simulations of a job run, after ``n_calls`` calls, when groups are committed."""
        ran = self.lab.start(*map(str, arguments), program=(MOPS, verb), hold=n_calls, **SMALL)
        wait_for(lambda: len(ran.calls) > n_calls, of=ran)  # the last call is held
        wait_for(lambda: self.committed(job), of=ran)
        ran.signal(signal.SIGKILL)
        assert ran.wait() == -signal.SIGKILL
        self.lab.assert_nothing_lives(ran)
        calls, jobs = simulated(ran), [path.name for path in (self.lab.storage / "jobs").iterdir()]
        committed = {simulation for one in jobs for simulation in self.committed(one)}
        assert self.committed(job)
        assert calls.keys() - committed, "the kill came too late"
        self.taken += Counter({simulation: n for simulation, n in calls.items() if simulation not in committed})
        return ran

    def needed(self, job: str) -> set[Simulation]:
        """Return all simulations of a job's study."""
        return {one for group in self._groups(job) for one in group}

    def committed(self, job: str) -> set[Simulation]:
        """Return the simulations of the groups that a job's log has as committed."""
        if not self.lab.exists(job):
            return set()
        groups = self._groups(job)
        return {one for number in self.lab.view(job).committed for one in groups[number]}

    def _groups(self, job: str) -> list[set[Simulation]]:
        rows = self.lab.job(job).params(columns=["params", "seeds"]).to_arrow().to_pylist()
        return [{(row["params"], seed) for seed in row["seeds"]} for row in rows]

    def follow_study(self, more: Iterable[dict[str, float]] = (), n_replicates: int = REPLICATES) -> None:
        """Write the study that the jobs have become, for a serial run."""
        study = json.loads((self.lab.project / "study.json").read_text())
        study["parameter_sets"] = [*study["parameter_sets"], *more]
        study["n_replicates"] = n_replicates
        fields = {name: study[name] for name in ("targets", "n_replicates")}
        self.lab.write(study["model"], study["parameter_sets"], **fields)

    def assert_is_whole_study(self, job: str) -> None:
        found = self.lab.job(job)
        assert rows_of(found) == self.lab.serial()
        assert verify_job(found.files, job) == []
        assert found.verify() == []


def simulated(*runners: Runner) -> Counter[Simulation]:
    """Count the calls of the model."""
    return Counter((params, seed) for runner in runners for params, seed, _ in runner.calls)


def sets_in(path: Path) -> list[dict[str, float]]:
    """Return the parameter sets of a CSV file, with the types that mops reads."""
    names, *rows = (line.split(",") for line in path.read_text().splitlines())
    return [dict(zip(names, map(json.loads, row), strict=True)) for row in rows]


@pytest.mark.timeout(300)
def test_a_day_computes_each_simulation_once_and_again_only_what_a_kill_took(lab: StudyLab) -> None:
    day = Day(lab)
    space, study, more = lab.folder / "space.json", lab.project / "study.json", lab.folder / "more.csv"
    space.write_text(json.dumps(SPACE))
    options = ("--model", "held:simulate", "--target", "scores:order", "--replicates", REPLICATES)
    day.mops("sample", space, "--to", study, "-n", SETS, *options, verb="study")

    # Run 32 sets, with a kill in the middle.
    day.killed("day", 35, "submit", study, "--name", "day")
    committed = day.committed("day")
    resumed = day.mops("resume", "day", **SMALL)
    assert simulated(resumed) == Counter(day.needed("day") - committed)
    assert len(day.needed("day")) == SETS * REPLICATES
    day.follow_study()
    day.assert_is_whole_study("day")

    # Extend to 6 replicates, with a kill in the middle.
    day.killed("longer", 65, "extend", "day", "--replicates", ALL_REPLICATES, "--name", "longer")
    committed = day.committed("longer")
    resumed = day.mops("resume", "longer", **SMALL)
    assert simulated(resumed) == Counter(day.needed("longer") - committed - day.needed("day"))
    assert len(day.needed("longer")) == SETS * ALL_REPLICATES

    # Add 10 sets.
    day.mops("sample", space, "--to", more, "-n", MORE_SETS, "--method", "lhs", "--seed", 7, verb="study")
    wider = day.mops("extend", "longer", "--sets", more, "--name", "wider", SLOTS=SLOTS)
    assert simulated(wider) == Counter(day.needed("wider") - day.needed("longer"))
    assert len(day.needed("wider")) == (SETS + MORE_SETS) * ALL_REPLICATES
    day.follow_study(sets_in(more), ALL_REPLICATES)

    # Mend a target.
    target = lab.project / "scores.py"
    target.write_text(target.read_text().replace("place * peak", "place * peak + 1"))
    mended = day.mops("rescore", "wider", "--name", "mended")
    assert simulated(mended) == Counter()
    assert rows_of(lab.job("mended")).losses != rows_of(lab.job("wider")).losses
    day.assert_is_whole_study("mended")

    # Calibrate three rounds, with a kill in the middle of the second.
    size = (
        "--seed",
        3,
        "-n",
        SETS_OF_ROUND,
        "--rounds",
        ROUNDS,
        "--ess",
        1e6,
        "--temperature",
        100,
        "--replicates",
        REPLICATES,
    )
    calibrate = ("calibrate", space, "--study", study, "--name", "fit", *size, "--to", lab.folder / "fit")
    day.killed("fit-r2", SETS_OF_ROUND * REPLICATES + 14, *calibrate, verb="study")
    committed = day.committed("fit-r2")
    last = day.mops(*calibrate, "--take-over", verb="study", exit_code=NO_POSTERIOR, SLOTS=SLOTS)
    assert simulated(last) == Counter((day.needed("fit-r2") | day.needed("fit-r3")) - committed)

    # Simulations computed are simulations needed, and those that the kills took.
    rounds = [f"fit-r{k}" for k in range(1, ROUNDS + 1)]
    needed = {simulation for job in ("wider", *rounds) for simulation in day.needed(job)}
    assert len(needed) == (SETS + MORE_SETS) * ALL_REPLICATES + ROUNDS * SETS_OF_ROUND * REPLICATES
    assert simulated(*lab.runners) == Counter(needed) + day.taken
