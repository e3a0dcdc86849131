"""Faults of a storage are retried or become an error, with real servers and real limits."""

from __future__ import annotations

import errno
import inspect
import subprocess
import sys
from pathlib import Path

import azurite
import pytest
from azure.core import exceptions as azure_errors
from made import ID
from servers import CuttingProxy, Scripted, serving
from storages import Time
from tenacity import RetryError, stop_after_attempt

from mops.errors import StorageError, StorageUnavailable, UsageError
from mops.storage.backends.azure import azure_fault_of
from mops.storage.backends.base import BRIEF, PATIENT, Put, fault_of
from mops.storage.files import Files
from mops.storage.joblog.log import JobLog
from mops.storage.paths import JobPaths
from mops.study.ranges import Ranges
from mops.verdicts import Counts

CREATED = (201, {"ETag": '"1"', "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}, b"")

TRANSIENT_ERRNO = {
    *("EAGAIN", "EBUSY", "ESTALE", "EINTR", "ETIMEDOUT", "EPIPE", "ECONNREFUSED", "ECONNRESET", "ECONNABORTED"),
    *("EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN", "ENETUNREACH", "ENETRESET", "EWOULDBLOCK", "ESHUTDOWN"),
    *("EALREADY", "EINPROGRESS"),  # Python makes these a BlockingIOError or ConnectionError by itself
}
PERMANENT = {
    "ENOSPC": "full",
    "EDQUOT": "full",
    "EACCES": "refuses",
    "EPERM": "refuses",
    "EROFS": "read-only",
    "EMFILE": "too many open files",
    "EIO": "reports an error",
    "ENOTDIR": "have the same path",
    "ENOENT": "cannot be made",
    "EOPNOTSUPP": "hard links",
}
# Every class of azure.core.exceptions, and whether it is retried. None: it cannot come from a request.
AZURE = {
    "AzureError": False,
    "ServiceRequestError": True,
    "ServiceRequestTimeoutError": True,
    "ServiceResponseError": True,
    "ServiceResponseTimeoutError": True,
    "IncompleteReadError": True,
    "DecodeError": True,
    "HttpResponseError": False,
    "ResourceExistsError": False,
    "ResourceNotFoundError": False,
    "ClientAuthenticationError": False,
    "ResourceModifiedError": False,
    "ResourceNotModifiedError": False,
    "TooManyRedirectsError": False,
    "ODataV4Error": False,
    "StreamConsumedError": False,
    "StreamClosedError": False,
    "ResponseNotReadError": False,
    "SerializationError": None,
    "DeserializationError": None,
}


class Answer:
    """The part of a response that the errors read."""

    def __init__(self, status_code):
        self.status_code, self.reason, self.headers = status_code, "reason", {}

    def text(self):
        return "<Error/>"


def of(name, *, status=None, code=None):
    kind = getattr(azure_errors, name)
    if name == "TooManyRedirectsError":
        error = kind([])
    elif name in ("StreamConsumedError", "StreamClosedError", "ResponseNotReadError"):
        error = kind(type("Response", (), {"request": None})())
    elif issubclass(kind, azure_errors.HttpResponseError):
        error = kind(
            response=Answer(status) if status else None, **({} if name == "ODataV4Error" else {"message": "m"})
        )
    else:
        error = kind("m")
    error.error_code = code
    return error


def test_every_error_class_of_azure_core_is_classified():
    there = {
        name
        for name, kind in vars(azure_errors).items()
        if inspect.isclass(kind) and issubclass(kind, Exception) and kind.__module__ == azure_errors.__name__
    }
    assert there == set(AZURE), "azure-core has other errors: decide whether they are retried"
    for name, transient in AZURE.items():
        if transient is None:
            assert issubclass(getattr(azure_errors, name), ValueError)
        else:
            fault = azure_fault_of(of(name))
            assert fault.transient is transient, name
            assert fault.what
            assert fault.hint


def test_every_http_status_is_classified():
    faults = {status: azure_fault_of(of("HttpResponseError", status=status)) for status in range(300, 600)}
    assert {status for status, fault in faults.items() if fault.transient} == {408, 429, 500, 502, 503, 504}


def test_the_status_decides_before_the_class_of_the_error(subtests: pytest.Subtests) -> None:
    for status in [408, 429, 500, 502, 503, 504]:
        with subtests.test(str(status)):
            for name in ("ClientAuthenticationError", "ResourceNotFoundError", "ResourceModifiedError", "ODataV4Error"):
                assert azure_fault_of(of(name, status=status)).transient


def test_errors_of_azure_have_a_readable_text(subtests: pytest.Subtests) -> None:
    for status, code, what in [
        (403, "AuthenticationFailed", "refuses"),
        (403, "AuthorizationPermissionMismatch", "refuses"),
        (403, "AuthorizationFailure", "refuses"),
        (401, "InvalidAuthenticationInfo", "refuses"),
        (404, "ContainerNotFound", "the container or account does not exist"),
        (409, "ContainerBeingDeleted", "the container or account does not exist"),
        (409, "BlobImmutableDueToPolicy", "answered with an error"),
        (400, "InvalidHeaderValue", "answered with an error"),
    ]:
        with subtests.test(str((status, code, what))):
            fault = azure_fault_of(of("HttpResponseError", status=status, code=code))
            assert what in fault.what
            assert not fault.transient


def test_every_errno_is_classified():
    transient = {name for number, name in errno.errorcode.items() if fault_of(OSError(number, "x")).transient}
    assert transient <= TRANSIENT_ERRNO
    assert transient >= TRANSIENT_ERRNO - {"EWOULDBLOCK", "ESHUTDOWN", "EALREADY", "EINPROGRESS"}
    for name, what in PERMANENT.items():
        assert what in fault_of(OSError(getattr(errno, name), "x")).what


def test_errors_of_the_network_without_a_number_are_transient(subtests: pytest.Subtests) -> None:
    for error in [TimeoutError(), ConnectionError(), ConnectionResetError(), BrokenPipeError()]:
        with subtests.test(str(error)):
            assert fault_of(error).transient


@pytest.mark.parametrize(("retrying", "longest_s"), [(PATIENT, 10), (BRIEF, 2)])
def test_pauses_double_up_to_the_longest(retrying, longest_s, clock):
    def fails():
        raise TimeoutError

    with pytest.raises(RetryError):
        retrying.copy(sleep=clock.sleep, stop=stop_after_attempt(12))(fails)
    most = [min(0.1 * 2**n, longest_s) for n in range(11)]
    assert all(n / 2 <= pause <= n for n, pause in zip(most, clock.slept, strict=True))


@pytest.mark.parametrize(("retrying", "total_s"), [(PATIENT, 120), (BRIEF, 6)])
def test_no_call_is_made_after_the_total(retrying, total_s, clock, monkeypatch):
    monkeypatch.setattr("time.monotonic", lambda: clock.now_s)
    calls = []

    def fails():
        calls.append(clock.now_s)
        raise TimeoutError

    with pytest.raises(RetryError):
        retrying.copy(sleep=clock.sleep)(fails)
    assert total_s / 2 < calls[-1] < total_s


def azure_files(port, monkeypatch, retrying):
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string(port))
    return Files.open("abfs://container/prefix", retrying=retrying)


def test_transient_errors_are_retried_after_growing_pauses_and_only_by_mops(subtests: pytest.Subtests) -> None:
    for status in [408, 429, 500, 502, 503, 504]:
        with subtests.test(str(status)), pytest.MonkeyPatch.context() as monkeypatch:
            clock = Time()
            bad = (status, {}, b"")
            script = Scripted(bad, bad, bad, bad, CREATED)
            with serving(script) as port:
                files = azure_files(port, monkeypatch, clock.retrying())
                assert files.put_new("log/1", b"x") is Put.CREATED
            assert len(script.requests) == 5, "the client itself must not retry"
            assert clock.slept == sorted(clock.slept)
            assert len(clock.slept) == 4
            assert {headers["If-None-Match"] for _, _, headers in script.requests} == {"*"}


def test_a_connection_that_closes_without_an_answer_is_retried(clock, monkeypatch):
    script = Scripted(None, None, None, None, None, None, CREATED)
    with serving(script) as port:
        files = azure_files(port, monkeypatch, clock.retrying())
        assert files.put_new("log/1", b"x") is Put.CREATED
    assert len(script.requests) == 7
    # aiohttp repeats a PUT if a reused connection breaks.
    assert 3 <= len(clock.slept) <= 6


def test_a_storage_that_keeps_failing_is_unavailable(subtests: pytest.Subtests) -> None:
    for ask in [
        lambda files: files.put("a", b"x"),
        lambda files: files.get("a"),
        lambda files: files.size("a"),
        lambda files: files.list("a"),
        lambda files: files.remove(["a"]),
        lambda files: files.get_many(["a"]),
    ]:
        with subtests.test(str(ask)), pytest.MonkeyPatch.context() as monkeypatch:
            clock = Time()
            script = Scripted((503, {"x-ms-error-code": "ServerBusy"}, b""))
            with serving(script) as port:
                files = azure_files(port, monkeypatch, clock.retrying(total_s=20))
                with pytest.raises(StorageUnavailable) as caught:
                    ask(files)
            assert caught.value.where == "abfs://container/prefix/a"
            assert "overloaded" in caught.value.what
            assert "503" in caught.value.what
            assert len(script.requests) == len(clock.slept) + 1
            assert 10 <= clock.now_s <= 20


def test_a_server_that_does_not_answer_is_unavailable(clock, monkeypatch):
    files = azure_files(azurite.free_port(), monkeypatch, clock.retrying(total_s=5))
    with pytest.raises(StorageUnavailable, match="does not answer"):
        files.get("a")


@pytest.mark.parametrize(
    ("status", "code", "what"),
    [(403, "AuthenticationFailed", "refuses"), (404, "ContainerNotFound", "the container or account does not exist")],
)
def test_a_permanent_error_is_not_retried(status, code, what, clock, monkeypatch):
    script = Scripted((status, {"x-ms-error-code": code}, b""))
    with serving(script) as port:
        files = azure_files(port, monkeypatch, clock.retrying())
        for ask in (files.get, files.size, files.list, lambda path: files.put_new(path, b"")):
            with pytest.raises(StorageError, match=what) as caught:
                ask("a/b")
            assert caught.value.where == "abfs://container/prefix/a/b"
            assert caught.value.hint
    assert clock.slept == []


@pytest.mark.azurite
def test_a_missing_container_is_an_error_for_every_request(azure):
    files = Files.open("abfs://never-created/prefix")
    for ask in (files.get, files.size, files.list, lambda path: files.put(path, b"")):
        with pytest.raises(StorageError, match="the container or account does not exist"):
            ask("a")


@pytest.mark.azurite
def test_a_wrong_key_is_an_error(azure, monkeypatch):
    wrong = azurite.connection_string(azure.port).replace("AccountKey=E", "AccountKey=F")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", wrong)
    with pytest.raises(StorageError, match="refuses access"):
        Files.open(azure.url).put_new("a", b"")


def test_an_invalid_url_is_refused_without_repeating_its_secrets(subtests: pytest.Subtests) -> None:
    for url in [
        "http://host/x",
        "ftp://x",
        "file://relative/x",
        "abfs://c/x?sig=secret",
        "s3://b/x?key=secret",
        "s3://",
        "gcs://b",
        "gs://b/x?key=secret",
        "s3://key:secret@b/x",
        "s3://key:a/secret@b/x",
        "http://key:secret@host/x",
        "ftp://host/x?key=secret",
    ]:
        with subtests.test(str(url)):
            with pytest.raises(UsageError) as caught:
                Files.open(url)
            assert "secret" not in str(caught.value)


@pytest.mark.parametrize("value", [None, "", "no connection string"])
def test_missing_credentials_are_an_error_with_a_hint(value, monkeypatch):
    for name in ("CONNECTION_STRING", "ACCOUNT_NAME", "ACCOUNT_KEY", "SAS_TOKEN"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    if value is not None:
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", value)
    with pytest.raises(UsageError, match="credentials") as caught:
        Files.open("abfs://container/prefix")
    assert "AZURE_STORAGE_CONNECTION_STRING" in caught.value.hint


def test_a_file_in_the_place_of_a_folder_is_an_error(local):
    files = Files.open(local.url)
    files.put("jobs", b"a file")
    for ask in (files.put, files.put_new):
        with pytest.raises(StorageError, match="have the same path") as caught:
            ask("jobs/a/job.json", b"")
        assert caught.value.where == f"{local.url}/jobs/a/job.json"
    assert files.list("jobs/a") == []


FULL = """
import resource, sys
from mops.errors import StorageError
from mops.storage.files import Files
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
files = Files.open(sys.argv[1])
for put in (files.put, files.put_new):
    try:
        put("parts/1", b"x" * (1 << 20))
    except StorageError as error:
        print(error.what)
"""


def test_a_full_disk_is_an_error_and_leaves_no_file(local):
    done = subprocess.run([sys.executable, "-c", FULL, local.url], capture_output=True, text=True, timeout=30)
    assert done.stdout.count("the storage is full") == 2, done.stderr
    assert Files.open(local.url).list("") == []
    # Listings do not show temporary files, so check the disk too.
    assert not any(path.is_file() for path in Path(local.url).rglob("*"))


def claimed(files):
    log = JobLog(files, JobPaths("job", ID))
    log.claim("person")
    return log


@pytest.mark.azurite
def test_a_commit_whose_answer_was_lost_counts_once(azure, clock, monkeypatch):
    puts = []

    def lose(first: bytes) -> bool:
        second = first.startswith(b"PUT") and b"00000002.json" in first
        puts.extend([first] * second)
        return second and len(puts) == 1

    proxy = CuttingProxy(azure.port, lose)
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string(proxy.port))
    log = claimed(Files.open(azure.url, retrying=clock.retrying()))
    log.commit(Ranges.of([0]), [], Counts(1, 0, 0, 0))
    log.commit(Ranges.of([1]), [], Counts(1, 0, 0, 0))
    proxy.close()
    assert len(proxy.lost) == 1
    assert len(puts) == 2, "mops or aiohttp repeated it, and the storage said that the record exists"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string(azure.port))
    view = JobLog(Files.open(azure.url), JobPaths("job", ID)).read()
    assert (view.k, list(view.committed), view.counts.simulations_good) == (3, [0, 1], 2)


class LosesAnswers:
    """A backend that writes and then loses the answer."""

    def __init__(self, backend):
        self.backend, self.to_lose = backend, 0

    def __getattr__(self, name):
        return getattr(self.backend, name)

    def put_new(self, path, data):
        created = self.backend.put_new(path, data)
        if self.to_lose:
            self.to_lose -= 1
            raise TimeoutError("no answer")
        return created


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_a_commit_whose_answers_were_lost_counts_once_on_other_storages(kind, request, clock):
    opened = Files.open(request.getfixturevalue(kind).url)
    lossy = LosesAnswers(opened._backend)
    files = Files(lossy, opened.url, clock.retrying())
    log = claimed(files)
    for group, to_lose in enumerate((1, 0, 3, 2)):
        lossy.to_lose = to_lose
        log.commit(Ranges.of([group]), [], Counts())
    assert log.view.k == 5
    assert JobLog(files, JobPaths("job", ID)).read().committed == Ranges.of(range(4))
