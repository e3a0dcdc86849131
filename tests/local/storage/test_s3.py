"""Faults of S3: each request is made once by the client, and repeated by mops if that can help."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import s3_server
from made import ID, claimed, created
from obstore.exceptions import GenericError
from servers import CuttingProxy, Scripted, serving
from storages import S3Storage, Time
from tenacity import Retrying

from mops.errors import StorageError, StorageUnavailable, UsageError
from mops.storage.backends.base import Put
from mops.storage.files import Files
from mops.storage.joblog.log import JobLog
from mops.storage.paths import JobPaths
from mops.study.ranges import Ranges
from mops.verdicts import Counts
from programs import free_port

CREATED = (200, {"ETag": '"1"'}, b"")
EVERY_REQUEST = [
    lambda files: files.put("a", b"x"),
    lambda files: files.put_new("a", b"x"),
    lambda files: files.get("a"),
    lambda files: files.size("a"),
    lambda files: files.list("a"),
    lambda files: files.folders("a"),
    lambda files: files.remove(["a"]),
]


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Files]:
    """Open a storage at a port of this machine."""

    def opened(port: int, url: str = "s3://bucket/prefix", **options: Retrying) -> Files:
        for name, value in s3_server.environment(port).items():
            monkeypatch.setenv(name, value)
        return Files.open(url, **options)

    return opened


def error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>said</Message></Error>".encode()


def test_transient_errors_are_retried_after_growing_pauses_and_only_by_mops(
    at: Callable[..., Files], subtests: pytest.Subtests
) -> None:
    for status in [408, 429, 500, 502, 503, 504]:
        with subtests.test(str(status)):
            clock = Time()
            script = Scripted(*[(status, {}, error("SlowDown"))] * 4, CREATED)
            with serving(script) as port:
                assert at(port, retrying=clock.retrying()).put_new("log/1", b"x") is Put.CREATED
            assert len(script.requests) == 5, "the client itself must not retry"
            assert len(clock.slept) == 4
            assert clock.slept == sorted(clock.slept)
            assert {headers["if-none-match"] for _, _, headers in map(lowered, script.requests)} == {"*"}


def lowered(request: tuple[str, str, dict[str, str]]) -> tuple[str, str, dict[str, str]]:
    verb, path, headers = request
    return verb, path, {name.lower(): value for name, value in headers.items()}


def test_a_conflict_with_a_request_that_fails_later_is_retried(clock: Time, at: Callable[..., Files]) -> None:
    """S3 answers 409 to one of two creates at the same time. The client calls that "already exists"."""
    conflict, absent = (409, {}, error("ConditionalRequestConflict")), (404, {}, error("NoSuchKey"))
    script = Scripted(conflict, absent, CREATED)
    with serving(script) as port:
        assert at(port, retrying=clock.retrying()).put_new("log/1", b"x") is Put.CREATED
    assert [verb for verb, _, _ in script.requests] == ["PUT", "GET", "PUT"]


def test_a_storage_that_keeps_failing_is_unavailable(at: Callable[..., Files], subtests: pytest.Subtests) -> None:
    for ask in EVERY_REQUEST:
        with subtests.test(str(ask)):
            clock = Time()
            script = Scripted((503, {}, error("SlowDown")))
            with serving(script) as port, pytest.raises(StorageUnavailable, match=r"overloaded.*503") as caught:
                ask(at(port, retrying=clock.retrying(total_s=20)))
            assert caught.value.where == "s3://bucket/prefix/a"
            assert len(script.requests) == len(clock.slept) + 1


def test_a_server_that_does_not_answer_is_unavailable(at: Callable[..., Files], subtests: pytest.Subtests) -> None:
    for ask in EVERY_REQUEST:
        with subtests.test(str(ask)):
            clock = Time()
            with pytest.raises(StorageUnavailable, match="does not answer"):
                ask(at(free_port(), retrying=clock.retrying(total_s=5)))


def test_refused_access_is_an_error_that_is_not_retried(at: Callable[..., Files], subtests: pytest.Subtests) -> None:
    for ask in EVERY_REQUEST:
        for code in ["AccessDenied", "SignatureDoesNotMatch"]:
            with subtests.test(str((ask, code))):
                clock = Time()
                script = Scripted((403, {}, error(code)))
                with serving(script) as port, pytest.raises(StorageError, match=r"refuses access \(\w+ 403") as caught:
                    ask(at(port, retrying=clock.retrying()))
                assert "access key" in str(caught.value.hint)
                assert clock.slept == []


def test_a_deletion_that_one_object_refuses_is_refused(clock: Time, at: Callable[..., Files]) -> None:
    """S3 answers 200, and says in the text which objects it has not deleted."""
    text = "<DeleteResult><Error><Key>prefix/a</Key><Code>{}</Code><Message>m</Message></Error></DeleteResult>"
    refused = Scripted((200, {}, text.format("AccessDenied").encode()))
    with serving(refused) as port, pytest.raises(StorageError, match=r"refuses access .*AccessDenied"):
        at(port, retrying=clock.retrying()).remove(["a"])
    with serving(Scripted((200, {}, text.format("NoSuchKey").encode()))) as port:
        at(port, retrying=clock.retrying()).remove(["a"])
    assert clock.slept == []


def test_a_conflict_of_other_requests_is_retried(clock: Time, at: Callable[..., Files]) -> None:
    conflict = (409, {}, error("OperationAborted"))
    with serving(Scripted(conflict, conflict, CREATED)) as port:
        at(port, retrying=clock.retrying()).put("a", b"x")
    assert len(clock.slept) == 2


def test_a_bucket_of_another_region_is_named(clock: Time, at: Callable[..., Files]) -> None:
    script = Scripted((301, {}, error("PermanentRedirect")))
    with serving(script) as port, pytest.raises(StorageError, match="the bucket is in another region") as caught:
        at(port, retrying=clock.retrying()).get("a")
    assert "AWS_REGION" in str(caught.value.hint)


def test_an_overloaded_storage_is_no_lack_of_credentials(clock: Time, at: Callable[..., Files]) -> None:
    """The path of an object may have the words by which requests for credentials are known."""
    script = Scripted((503, {}, error("SlowDown")), CREATED)
    with serving(script) as port:
        at(port, retrying=clock.retrying()).put("latest/meta-data/credential", b"x")
    assert len(script.requests) == 2


def test_credentials_that_were_there_come_back(s3: S3Storage, clock: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    """One failed renewal must not end a runner that has run for hours."""
    files = Files.open(s3.url, retrying=clock.retrying(total_s=5))
    files.put("a", b"x")
    failed = GenericError("Error getting credentials from EC2 instance metadata")

    def without(*_: object) -> None:
        raise failed

    monkeypatch.setattr("obstore.get", without)
    with pytest.raises(StorageUnavailable, match="does not answer"):
        files.get("a")


@pytest.mark.parametrize(("name", "value"), [("AWS_ENDPOINT_URL", "s3.example.org:9000"), ("AWS_SKIP_SIGNATURE", "x")])
def test_a_wrong_variable_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError):
        Files.open("s3://bucket/prefix")


def test_a_missing_bucket_is_an_error_and_no_missing_file(s3: S3Storage) -> None:
    files = Files.open("s3://never-created/prefix")
    for ask in (files.get, files.list, files.folders, lambda path: files.put(path, b"")):
        with pytest.raises(StorageError, match="the bucket does not exist"):
            ask("a")


def test_missing_credentials_are_named(monkeypatch: pytest.MonkeyPatch, clock: Time) -> None:
    for name in s3_server.environment(1):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{free_port()}")  # that of no cloud
    with pytest.raises(StorageError, match="no usable credentials for S3") as caught:
        Files.open("s3://bucket/prefix", retrying=clock.retrying()).get("a")
    assert "AWS_ACCESS_KEY_ID" in str(caught.value.hint)


AWS_CLI = """#!/bin/sh
echo "$@" >>"$ASKED"
case "$*" in
*"--profile team")
    case "$*" in
    *"get region"*) echo eu-west-3 ;;
    *)  echo '{"Version": 1, "AccessKeyId": "of-team", "SecretAccessKey": "b", "SessionToken": "c",'
        echo "\\"Expiration\\": \\"$UNTIL\\"}" ;;
    esac ;;
*)  echo "aws: [ERROR]: The config profile could not be found" >&2; exit 253 ;;
esac
"""


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a program that answers as version 2 of the AWS CLI, which no package registry has; return its log."""
    program, asked = tmp_path / "bin" / "aws", tmp_path / "asked"
    program.parent.mkdir()
    program.write_text(AWS_CLI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("ASKED", str(asked))
    monkeypatch.setenv("UNTIL", "2126-01-01T00:00:00+00:00")
    return asked


def of_profile(monkeypatch: pytest.MonkeyPatch, port: int, name: str, **options: Retrying) -> Files:
    for variable in s3_server.environment(port):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_PROFILE", name)
    return Files.open("s3://bucket/prefix", **options)


@pytest.mark.parametrize(("until", "n_asked"), [("2126-01-01T00:00:00Z", 1), ("2026-01-01T00:00:00+00:00", 3)])
def test_a_profile_has_its_credentials_from_the_aws_cli_until_they_expire(
    aws: Path, monkeypatch: pytest.MonkeyPatch, until: str, n_asked: int
) -> None:
    monkeypatch.setenv("UNTIL", until)
    script = Scripted(CREATED, CREATED, CREATED)
    with serving(script) as port:
        files = of_profile(monkeypatch, port, "team")
        for name in "abc":
            files.put(name, b"x")
    signed = [headers["authorization"] for _, _, headers in map(lowered, script.requests)]
    assert all("Credential=of-team/" in one and "/eu-west-3/s3/" in one for one in signed)
    assert {headers["x-amz-security-token"] for _, _, headers in map(lowered, script.requests)} == {"c"}
    assert aws.read_text().count("export-credentials") == n_asked


def test_a_failed_renewal_of_the_credentials_of_a_profile_is_retried(
    aws: Path, monkeypatch: pytest.MonkeyPatch, clock: Time
) -> None:
    """One failed renewal must not end a runner that has run for hours."""
    monkeypatch.setenv("UNTIL", "2026-01-01T00:00:00Z")
    with serving(Scripted(CREATED)) as port:
        files = of_profile(monkeypatch, port, "team", retrying=clock.retrying(total_s=5))
        files.put("a", b"x")
        (aws.parent / "bin" / "aws").write_text("#!/bin/sh\necho 'the SSO session has expired' >&2\nexit 255\n")
        with pytest.raises(StorageUnavailable, match="the SSO session has expired"):
            files.put("b", b"x")


@pytest.mark.parametrize("said", ["exec sleep 60", "echo usage:"])
def test_a_cli_that_gives_no_credentials_is_named(aws: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setattr("mops.storage.backends.buckets._CLI_SECONDS", 0.5)
    (aws.parent / "bin" / "aws").write_text(f"#!/bin/sh\n{said}\n")
    with pytest.raises(UsageError, match="the AWS CLI gives no"):
        of_profile(monkeypatch, free_port(), "team")


def test_a_profile_without_credentials_is_refused_with_what_the_cli_says(
    aws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=r"of the profile 'taem' \(.*could not be found\)") as caught:
        of_profile(monkeypatch, free_port(), "taem")
    assert "aws sso login --profile taem" in str(caught.value.hint)


def test_keys_in_the_environment_count_before_a_profile(
    at: Callable[..., Files], aws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "taem")
    at(free_port())
    assert not aws.exists()


def test_a_profile_without_the_cli_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="need the AWS CLI, version 2"):
        of_profile(monkeypatch, free_port(), "team")


def test_a_commit_whose_answer_was_lost_counts_once(s3: S3Storage, clock: Time, at: Callable[..., Files]) -> None:
    puts: list[bytes] = []

    def lose(first: bytes) -> bool:
        second = first.startswith(b"PUT") and b"00000002.json" in first
        puts.extend([first] * second)
        return second and len(puts) == 1

    proxy = CuttingProxy(s3.port, lose)
    files = at(proxy.port, s3.url, retrying=clock.retrying())
    created(files)
    log = claimed(files)
    log.commit(Ranges.of([0]), [], Counts(1, 0, 0, 0))
    log.commit(Ranges.of([1]), [], Counts(1, 0, 0, 0))
    proxy.close()
    assert len(proxy.lost) == 1
    assert len(puts) == 2
    view = JobLog(at(s3.port, s3.url), JobPaths("job", ID)).read()
    assert (view.k, list(view.committed), view.counts.simulations_good) == (3, [0, 1], 2)


def test_a_large_part_is_created_once_by_one_request(s3: S3Storage, at: Callable[..., Files]) -> None:
    """Only a single request can be conditional everywhere: the client would send large data in parts."""
    seen: list[bytes] = []
    proxy = CuttingProxy(s3.port, lambda first: bool(seen.append(first)))
    files = at(proxy.port, s3.url)
    data = bytes(range(256)) * (40 << 12)
    assert files.put_new("big", data) is Put.CREATED
    assert [line.split()[0] for line in seen] == [b"PUT"]
    assert files.put_new("big", b"small") is Put.OTHER
    assert files.put_new("big", data) is Put.SAME
    assert files.get("big") == data
    proxy.close()
