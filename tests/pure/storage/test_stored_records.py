"""Every JSON record has the bytes that FORMAT stands for, and is read back equal; broken ones are refused."""

from __future__ import annotations

import functools
import hashlib
import importlib
import itertools
import json
import pkgutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mops
import mops.storage
from mops.errors import CorruptRecord, OtherFormat
from mops.project.bundle import Bundle
from mops.project.project import ModelSpec
from mops.storage.calibration_records import (
    Asked,
    CalibrationRecord,
    CalibrationRecords,
    Outcome,
    Scoring,
)
from mops.storage.files import Files
from mops.storage.job_options import NO_OPTIONS, JobOptions, PodOptions
from mops.storage.job_records import (
    JOB_RECORDS,
    Deletion,
    JobRecord,
    KeptOptions,
    ReuseSource,
    Source,
    create_derived,
    create_job,
    decode_finished,
    keep_finished,
    keep_options,
    keep_reference,
    load_job,
    mark_deletion,
    read_options,
    read_reference,
)
from mops.storage.joblog.log import JobLog, read_whole
from mops.storage.joblog.records import COMPACTIONS, Compaction, Merge, Part, RunRequest, decode_record
from mops.storage.json_records import FORMAT, JsonCodec
from mops.storage.params_file import encode_groups
from mops.storage.paths import JobPaths
from mops.storage.progress_record import BestLoss, FailureCause, Progress, RunnerError, SlowStep, read_live, write_live
from mops.storage.samples import read_samples, write_samples
from mops.study.ranges import Ranges
from mops.study.study_file import parse_study
from mops.verdicts import Counts

ID = "0123456789abcdef"
PATHS = JobPaths("one", ID)
POD = PodOptions("small", "urgent", 600, 60, "2Gi", dedicated=False, workers="2:4", pool="large")
LIMITS = {"sim_timeout": 5.0, "sim_memory": 1 << 30, "max_failures": "5%", "retries": 0, "child_growth": None}
RECORD = JobRecord(
    job="one",
    id=ID,
    created="2026-01-02T03:04:05+00:00",
    bundle="ab" * 32,
    spec=ModelSpec("model:run", "baseline", ("model:score", "é:x"), ("daily",)),
    n_groups=3,
    n_simulations=6,
    options=JobOptions({"MODE": "fast é", "KEY": None}, "/usr/bin/python3", POD, LIMITS),
    study="waves",
    project="/home/é",
    study_file="studies/wäves.json",
    owner="åda@example.org",
    reuse=(ReuseSource("older", "fedcba9876543210", 5),),
    round_of="fit",
)
COUNTS = Counts(4, 2, 1, 1, {"oom": 1, "error": 1})
SOURCE = Source("one", ID, losses=Ranges(((1, 2),)), outputs=Ranges(((1, 3),)))
DERIVED = JobRecord(
    "two",
    ID,
    "2026-01-03",
    "ab" * 32,
    ModelSpec("m", "b", (), None),
    3,
    6,
    NO_OPTIONS,
    study="",
    project="",
    parent="one",
    sources=(SOURCE,),
    taken_over_counts=COUNTS,
    mixed_code=("model.py", "é.py"),
)
FAMILIES: Any = {
    "daily": {"x": "number float", "é": ["list", ["struct", {"a": "timestamp fine", "b": ["list", "null"]}]]},
    "none": {},
}
LIVE = Progress(
    at=1767225845.25,
    host="hösт",
    pid=7,
    finished=COUNTS,
    rate=9.26e-05,
    memory_bytes=1 << 40,
    settings={"slots": 2, "batch_size": "auto", "storage": None, "task_seconds": 1e16},
    durable=Counts(3),
    seconds=0.1,
    peak_bytes=5,
    runner_bytes=6,
    in_flight=7,
    slots=8,
    waits_for="é",
    waits_since=1767225840.5,
    open_bytes=9,
    error=RunnerError("StorageError", "é", "here", "do this"),
    seconds_left=7.5,
    lines=('tab\t "quoted" \\ \x00\x7f\u2028', ""),
    limit_bytes=10,
    window=11,
    children="forked: é",
    sizing="é 11",
    next_commit_s=2.5,
    best=(BestLoss("t:a", "a", -1e300, "3f2a"),),
    causes=(FailureCause("oom", "é", 2),),
    job="one",
    total=12,
    ended={"good": 3, "oom": 1},
    inherited=Counts(1, targets_good=2),
    n_groups=6,
    n_groups_durable=2,
    n_groups_committed=1,
    slow=(
        SlowStep(3, "ab" * 32, None, "t:x", "vm", 1767225845.25, 60.0),
        SlowStep(4, "cd" * 32, 1, None, "vm", 1.0, 2.0, 30.5),
    ),
)
SAMPLE = Progress(
    1767225845.5,
    Counts(4, 2, 1, 1, {"oom": 1}),
    durable=Counts(3),
    rate=1e-07,
    memory_bytes=1 << 40,
    runner_bytes=5,
    in_flight=6,
    slots=7,
    open_bytes=8,
)

Stored = tuple[str, object, object]
"""A record's path, what was written there, and what was read from there."""
Case = Callable[[Files], Stored]


def job(files: Files) -> Stored:
    sets = [{"params": {"x": n}, "seed": n} for n in range(3)]
    groups = parse_study({"model": "model:run", "parameter_sets": sets}, where="study.json").groups
    create_job(files, RECORD, Bundle(RECORD.bundle, b"a zip", ()), '{"a": "é"}', encode_groups(groups, files.spool()))
    return PATHS.record, RECORD, load_job(files, "one")


def derived(files: Files) -> Stored:
    job(files)
    create_derived(files, DERIVED, PATHS)
    return JobPaths("two", ID).record, DERIVED, load_job(files, "two")


def options(files: Files) -> Stored:
    now = replace(RECORD.options, python=None, pod=PodOptions())
    keep_options(files, RECORD, KeptOptions(0, RECORD.options), now)
    return PATHS.options(1), KeptOptions(1, now), read_options(files, RECORD)


def deletion(files: Files) -> Stored:
    mark_deletion(files, PATHS, Deletion("é", "2026"))
    return PATHS.deleted, None, None


def reference(files: Files) -> Stored:
    keep_reference(files, PATHS, FAMILIES)
    return PATHS.schema, FAMILIES, read_reference(files, PATHS)


def log_of(files: Files) -> JobLog:
    nonces, times = itertools.count(1), itertools.count(1767225845.0, 0.125)
    return JobLog(files, PATHS, host="hé", clock=lambda: next(times), nonce=lambda: f"n{next(nonces)}")


def log(files: Files) -> JobLog:
    """Write a record of each kind."""
    made = log_of(files)
    made.claim("auto", asked=RunRequest(0, "ab", ID))
    part = Part(f"{PATHS.root}/outputs/%C3%A9/1-1.parquet", 10, 1 << 33, "cd" * 32)
    losses = Part(f"{PATHS.root}/losses/1-1.parquet", 0, 4, "ef")
    made.commit(Ranges(((0, 1), (2, 3))), [part, losses], COUNTS, FAMILIES)
    made.commit(Ranges(((1, 2),)), [], Counts())
    made.cancel("é")
    made.end("cancelled", COUNTS)
    log_of(files).claim("person")
    return made


def record_of_log(k: int) -> Case:
    def case(files: Files) -> Stored:
        log(files)
        read = read_whole(files, PATHS)
        commits = {commit.k: commit for commit in read.commits}
        known = {2: (Ranges(((0, 1), (2, 3))), COUNTS, FAMILIES), 3: (Ranges(((1, 2),)), Counts(), {})}
        if k in commits:
            one = commits[k]
            return PATHS.log_record(k), known[k], (one.ranges, one.counts, one.families)
        (mark,) = [mark for mark in read.view.marks if mark.k == k]
        return PATHS.log_record(k), mark, mark

    return case


def finished(files: Files) -> Stored:
    made = log_of(files)
    made.claim("person")
    made.end("partial", COUNTS)
    assert made.view.end is not None
    keep_finished(files, PATHS, made.view.end)
    return PATHS.finished, made.view.end, decode_finished(files.get(PATHS.finished), PATHS)


def live(files: Files) -> Stored:
    write_live(files, PATHS, 1, LIVE)
    return PATHS.live(1), LIVE, read_live(files, PATHS, 1)


def samples(files: Files) -> Stored:
    other = replace(SAMPLE, at=1.0, finished=Counts(4))
    write_samples(files, PATHS, 1, 2, [SAMPLE, other])
    return PATHS.events(1, 2), [(1, SAMPLE), (1, other)], read_samples(files, PATHS)


def compaction(files: Files) -> Stored:
    made = log_of(files)
    made.claim("person")
    made.end("partial", COUNTS)
    part = Part(PATHS.compacted("losses", None, "0a", 1), 10, 1 << 33, "cd" * 32)
    removed = (f"{PATHS.root}/losses/1-1.parquet", f"{PATHS.root}/losses/1-2.parquet")
    merge = Merge(removed=removed, part=part, ranges=Ranges(((0, 1), (2, 3))))
    record = Compaction(time=1767225845.0, host="hé", merges=(merge,))
    files.put(PATHS.compaction, COMPACTIONS.encode(record))
    return PATHS.compaction, record, read_whole(files, PATHS).compaction


def records(files: Files) -> CalibrationRecords:
    return CalibrationRecords(files, "fit")


def calibration(files: Files) -> Stored:
    spec = ModelSpec("model:run", "baseline", ("model:fit",), None)
    record = CalibrationRecord("fit", "2026-11-25", "tpe", 3, {"x": {"min": 0}}, spec, 2)
    records(files).begin(record)
    return "calibrations/fit/calibration.json", record, records(files).calibration()


def asked(files: Files) -> Stored:
    sets = ({"x": 0.1, "n": 2**60, "on": True, "kind": "é"}, {"x": 1.0, "n": 1, "on": False, "kind": ""})
    record = Asked(1, "fit-r1", sets, {"points": [[0.1], [1 / 3]]}, {"61ab": 1})
    records(files).ask(record)
    return "calibrations/fit/rounds/00000001-asked.json", record, records(files).asked(1)


def told(files: Files) -> Stored:
    asked(files)
    outcomes = (Outcome({"fit": 1e-07}), Outcome({}, "oom"))
    records(files).tell(Asked(1, "fit-r1", ({}, {}), {}), "ab", outcomes)
    return "calibrations/fit/rounds/00000001-told.json", outcomes, records(files).rounds()[0].outcomes


def scoring(files: Files) -> Stored:
    record = Scoring({"fit": 0.5, "é": 1.0}, 1e-07, 100.0, ("fit",))
    records(files).keep_scoring(record)
    return "calibrations/fit/scoring/00000001.json", record, records(files).scoring()


CASES: dict[str, Case] = {
    "job.json": job,
    "job.json of a derived job": derived,
    "options": options,
    "deleted.json": deletion,
    "schema.json": reference,
    **{f"log record {k}": record_of_log(k) for k in range(1, 7)},
    "finished.json": finished,
    "live": live,
    "samples": samples,
    "compacted.json": compaction,
    "calibration.json": calibration,
    "asked": asked,
    "told": told,
    "scoring": scoring,
}


# One line for each case. Storages hold these bytes.
LINES = Path(__file__).with_name("stored_records.jsonl").read_bytes().removesuffix(b"\n").split(b"\n")
GOLDEN = dict(zip(CASES, LINES, strict=True))
PATH = {
    "job.json": PATHS.record,
    "job.json of a derived job": PATHS.record,
    "options": PATHS.options(1),
    "schema.json": PATHS.schema,
    "compacted.json": PATHS.compaction,
    "finished.json": PATHS.finished,
    "live": PATHS.live(1),
    "samples": PATHS.events(1, 1),
    "calibration.json": "calibrations/fit/calibration.json",
    "asked": "calibrations/fit/rounds/00000001-asked.json",
    "scoring": "calibrations/fit/scoring/00000001.json",
}
DECIDING: dict[str, Callable[[Files], object]] = {
    "job.json": lambda files: load_job(files, "one"),
    "job.json of a derived job": lambda files: load_job(files, "one"),
    "options": lambda files: read_options(files, RECORD),
    "schema.json": lambda files: read_reference(files, PATHS),
    "compacted.json": lambda files: COMPACTIONS.read(files, PATHS.compaction),
    "calibration.json": lambda files: records(files).calibration(),
    "asked": lambda files: records(files).asked(1),
    "scoring": lambda files: records(files).scoring(),
}
ADVISORY: dict[str, Callable[[Files], object]] = {
    "finished.json": lambda files: decode_finished(files.get(PATHS.finished), PATHS),
    "live": lambda files: read_live(files, PATHS, 1),
    "samples": lambda files: read_samples(files, PATHS),
}
for n in range(1, 7):
    PATH[f"log record {n}"] = PATHS.log_record(n)
    DECIDING[f"log record {n}"] = lambda files, k=n: decode_record(files.get(PATHS.log_record(k)), k, "here")
NOT_REQUIRED = {
    *("mops", "parent", "sources", "taken_over_counts", "study_file", "reuse", "mixed_code", "families", "asked"),
    *("kept_seeds", "objectives", "owner", "round_of"),
}
# Of stored_records.jsonl, for each format. If records change, raise FORMAT and add a line here; never change a line.
DIGESTS = {2: "136944d66783b8591fb105e9b25b38f31ca0830ae791b1924d5f483639a681cc"}


def empty() -> Files:
    return Files.open(f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def files() -> Files:
    return empty()


def test_a_record_has_the_bytes_that_it_always_had_and_comes_back_equal(subtests: pytest.Subtests) -> None:
    for case in CASES:
        with subtests.test(case):
            files = empty()
            path, written, read = CASES[case](files)
            assert files.get(path) == GOLDEN[case].replace(b"VERSION", mops.__version__.encode())
            assert read == written


def test_a_round_that_an_earlier_mops_ended_has_no_digest(files: Files) -> None:
    path, outcomes, _ = told(files)
    record = json.loads(files.get(path))
    del record["bundle"]
    files.put(path, json.dumps(record).encode())
    (found,) = records(files).rounds()
    assert (found.bundle, found.outcomes) == ("", outcomes)


def test_a_record_that_lacks_a_field_is_refused_with_its_place_and_the_field(subtests: pytest.Subtests) -> None:
    for case in DECIDING:
        with subtests.test(case):
            files = empty()
            record = json.loads(GOLDEN[case])
            required = record.keys() - NOT_REQUIRED
            assert "format" in required
            for name in required:
                files.put(PATH[case], json.dumps({key: record[key] for key in record if key != name}).encode())
                with pytest.raises(CorruptRecord, match=name) as raised:
                    DECIDING[case](files)
                assert raised.value.where in (f"{files.url}/{PATH[case]}", "here")


def test_records_do_not_change_without_a_new_format() -> None:
    """Two versions of mops read records of the same format, so both must read the same from it."""
    digest = hashlib.sha256(b"\n".join(LINES)).hexdigest()
    assert DIGESTS.get(FORMAT) == digest, "stored records have changed: raise FORMAT in storage/json_records.py"
    assert all(json.loads(line)["format"] == FORMAT for line in LINES)


def fields_in(schema: Any) -> Iterator[str]:
    """Yield the names of all fields of dataclasses in a schema of pydantic."""
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from fields_in(inner)
    if isinstance(schema, dict) and schema.get("type") == "dataclass-field":
        yield schema["name"]


def test_the_lines_have_every_field_of_every_kind_of_record() -> None:
    """Otherwise a change of the missing field would not change a line."""
    modules = [
        importlib.import_module(one.name) for one in pkgutil.walk_packages(mops.storage.__path__, "mops.storage.")
    ]
    codecs = [each for module in modules for each in vars(module).values() if isinstance(each, JsonCodec)]
    names = {name for codec in codecs for name in fields_in(codec._adapter.core_schema)}
    assert len(names) > 100
    whole = b"\n".join(LINES)
    assert [name for name in names if f'"{name}":'.encode() not in whole] == []


HINTS = {
    FORMAT + 1: "install mops-runner 9.1.0 or newer",
    FORMAT - 1: "use the mops that wrote it: mops-runner 9.1.0",
}


def test_a_record_of_another_format_is_refused_with_the_version_to_use(subtests: pytest.Subtests) -> None:
    """Regression: a record of an older format was called damaged, or read without the fields that it lacks."""
    for case, (number, hint) in itertools.product(DECIDING, HINTS.items()):
        with subtests.test(f"{case}: {number}"):
            files = empty()
            said = f"^this record has format {number}, and this mops reads {FORMAT}"
            files.put(PATH[case], json.dumps(json.loads(GOLDEN[case]) | {"format": number, "mops": "9.1.0"}).encode())
            with pytest.raises(OtherFormat, match=said) as raised:
                DECIDING[case](files)
            assert raised.value.hint == hint
            assert raised.value.where in (f"{files.url}/{PATH[case]}", "here")
            files.put(PATH[case], json.dumps({"format": number}).encode())
            with pytest.raises(OtherFormat, match=said):
                DECIDING[case](files)


def test_what_a_newer_mops_adds_to_a_record_is_passed_over(subtests: pytest.Subtests) -> None:
    for case in DECIDING:
        with subtests.test(case):
            files = empty()
            files.put(PATH[case], GOLDEN[case])
            before = DECIDING[case](files)
            files.put(PATH[case], json.dumps(json.loads(GOLDEN[case]) | {"more": [1]}).encode())
            assert DECIDING[case](files) == before


WRONG = {
    "job.json": [
        {"spec": {}},
        {"spec": {"model": "a", "scenario": "b", "targets": None, "outputs": None}},
        {"spec": {"model": "a", "scenario": "b", "targets": "ab", "outputs": None}},
        {"n_groups": "3"},
        {"n_groups": True},
        {"options": {"env": {}, "python": None}},
        {"options": {"env": {"a": 1}, "python": None, "pod": {}}},
    ],
    "schema.json": [
        {"outputs": wrong} for wrong in ("text", {"out": "number"}, {"out": ["number"]}, {"out": {"x": "y"}})
    ],
    "log record 3": [
        *({"ranges": wrong} for wrong in (None, 3, [3], [[1]], [[1, 2, 3]], ["ab"], [["1", "2"]], [[1.5, 2.5]])),
        *({"ranges": wrong} for wrong in ([[2, 1]], [[1, 1]], [[None, 1]])),
        {"counts": {"simulations_good": 1, "other": 0}},
        {"families": {"out": {"x": ["list", "nothing"]}}},
    ],
}


def test_a_field_of_another_type_is_refused_by_its_name(subtests: pytest.Subtests) -> None:
    for case, change in [(case, change) for case, some in WRONG.items() for change in some]:
        with subtests.test(f"{case}: {change}"):
            files = empty()
            files.put(PATH[case], json.dumps(json.loads(GOLDEN[case]) | change).encode())
            (name,) = change
            with pytest.raises(CorruptRecord, match=rf"\b{name}\b"):
                DECIDING[case](files)


def test_a_record_that_nothing_could_read_is_not_written(files: Files) -> None:
    """The options may come from any caller of mops.submit."""
    wrong = replace(RECORD.options, pod=PodOptions(deadline_s="600"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="deadline_s"):
        keep_options(files, RECORD, KeptOptions(0, RECORD.options), wrong)
    assert read_options(files, RECORD) == KeptOptions(0, RECORD.options)


def test_an_advisory_record_with_a_wrong_value_is_written_and_left_out(files: Files) -> None:
    write_live(files, PATHS, 1, replace(LIVE, memory_bytes=1.5, host=None))  # type: ignore[arg-type]
    assert read_live(files, PATHS, 1) is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(10**18, 10**400) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where values are within a JSON value, as keys and indices."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield (*above, key)
        yield from places(each, (*above, key))


@st.composite
def broken(draw: st.DrawFn, case: str) -> bytes:
    """Draw bytes near those of a record: cut, with other bytes in them, or with another value in some place."""
    whole = GOLDEN[case]
    at = draw(st.integers(0, len(whole)))
    match draw(st.sampled_from(("cut", "bytes", "value", "value", "none"))):
        case "cut":
            return whole[:at]
        case "bytes":
            return whole[:at] + draw(st.binary(max_size=4)) + whole[at + draw(st.integers(0, 4)) :]
        case "value":
            record = json.loads(whole)
            *above, last = draw(st.sampled_from(list(places(record))))
            holder = functools.reduce(lambda value, key: value[key], above, record)
            holder[last] = draw(VALUES)
            return json.dumps(record).encode()
    return json.dumps(draw(VALUES)).encode()


@pytest.mark.parametrize("case", DECIDING)
@given(data=st.data())
def test_a_broken_record_is_read_or_refused_and_nothing_else(case: str, data: st.DataObject) -> None:
    files = Files.open("memory://broken")
    files.put(PATH[case], data.draw(broken(case)))
    with suppress(CorruptRecord, OtherFormat):
        DECIDING[case](files)


@pytest.mark.parametrize("case", ADVISORY)
@given(data=st.data())
def test_a_broken_advisory_record_raises_nothing(case: str, data: st.DataObject) -> None:
    files = Files.open("memory://broken")
    files.put(PATH[case], data.draw(broken(case)))
    ADVISORY[case](files)


def test_limits_are_stored_with_their_types() -> None:
    stored = JOB_RECORDS.decode(JOB_RECORDS.encode(RECORD), "job.json").options.limits
    assert [(name, repr(value)) for name, value in stored.items()] == [(n, repr(v)) for n, v in LIMITS.items()]
