"""``mops ui`` in a real browser, with jobs that really run, and requests that it must refuse."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import httpx
import pytest

import axe
from job_folders import folder_of
from mops.jobs.job import open_job
from waiting import until

from .command_lab import CommandLab, Process

if TYPE_CHECKING:
    from playwright.sync_api import Page

PATIENCE_MS = 90_000.0
GATED = """
import os, time

def run(params, seed):
    while os.path.exists(os.environ["MOPS_TEST_GATE"] + str(params["x"])):
        time.sleep(0.02)
    print("the model <b>prints</b>", params["x"])
    if params["x"] == 4:
        raise ValueError("four <i>is</i> too many")
    return {"out": {"y": [params["x"]]}}
"""
SETS = (1, 2, 3, 4)


@pytest.fixture
def gated(lab: CommandLab) -> Iterator[CommandLab]:
    """A study of four sets. Set X waits while the file ``gateX`` exists; set 4 fails."""
    gates = [lab.root / f"gate{x}" for x in SETS[1:]]
    for gate in gates:
        gate.touch()
    lab.environment |= {
        "MOPS_TEST_GATE": str(lab.root / "gate"),
        "MODELOPS_JOB_SLOTS": "2",
        "MODELOPS_JOB_CHECKPOINT_SECONDS": "1",
    }
    lab.write("model.py", GATED)
    lab.write_study(parameter_sets=[{"x": x} for x in SETS], n_replicates=1)
    yield lab
    for gate in gates:  # also a detached runner ends then
        gate.unlink(missing_ok=True)


def open_gates(lab: CommandLab, *sets: int) -> None:
    for x in sets:
        (lab.root / f"gate{x}").unlink()


@contextmanager
def served(lab: CommandLab, *options: object, **variables: str) -> Iterator[str]:
    """Serve the page; yield the URL that the command prints."""
    with lab.start("ui", "--no-open", "--port", 0, *options, **variables) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.fixture
def running(gated: CommandLab) -> Iterator[Process]:
    """A job named ``job`` with one committed set."""
    with gated.start("jobs", "submit", gated.study, "--name", "job") as process:
        record = gated.storage / "jobs" / "job" / "job.json"
        until(lambda: record.is_file() and open_job("job", str(gated.storage)).status().groups >= 1)
        yield process
        process.kill()


def address(url: str, path: str) -> str:
    return url.partition("/?")[0] + path


def enter(page: Page, url: str) -> None:
    """Open the URL with the token, and wait until the page without it has followed."""
    page.goto(url)
    page.get_by_role("heading", name="Jobs").wait_for(timeout=PATIENCE_MS)


def shows(page: Page, part: str, text: str) -> None:
    """Wait until a part of the page has a text."""
    page.locator(f"[data-part={part}]", has_text=re.compile(text)).wait_for(timeout=PATIENCE_MS)


def leave(page: Page) -> None:
    """Close the connection before the server ends, which the browser would report as an error."""
    page.goto("about:blank")


def test_a_killed_runner_is_shown_as_interrupted_and_resumed_from_the_page(
    gated: CommandLab, running: Process, page: Page
) -> None:
    """Progress moves without a reload."""
    with served(gated) as url:
        enter(page, url)
        page.get_by_role("link", name="job", exact=True).click()
        assert "token" not in page.url
        shows(page, "state", "running")
        shows(page, "head", "1 good")
        os.kill(running.pid, signal.SIGKILL)
        shows(page, "state", "interrupted")
        page.get_by_role("link", name="Resume").click()
        page.get_by_role("button", name="Resume the job").click(timeout=PATIENCE_MS)
        shows(page, "head", "Attempt 2")
        page.evaluate("window.sameDocument = true")
        open_gates(gated, 2, 3, 4)
        shows(page, "state", "partial")
        shows(page, "head", "3 good.*1 failed")
        shows(page, "failures", "four <i>is</i> too many")
        shows(page, "log", "the model <b>prints</b> 3")
        shows(page, "actions", "Retry failures")
        assert page.evaluate("window.sameDocument") is True
        page.get_by_role("link", name="Retry failures").click()
        page.get_by_role("button", name="Retry in a new job").click(timeout=PATIENCE_MS)
        shows(page, "head", "takes over results of job")
        shows(page, "state", "partial")
        leave(page)


def test_a_cancel_is_confirmed_and_visible_before_the_runner_has_stopped(
    gated: CommandLab, running: Process, page: Page
) -> None:
    os.kill(running.pid, signal.SIGSTOP)
    try:
        with served(gated) as url:
            enter(page, url)
            page.goto(address(url, "/jobs/job"))
            page.get_by_role("link", name="Cancel").click()
            button = page.get_by_role("button", name="Cancel the job")
            button.wait_for(timeout=PATIENCE_MS)
            assert "cancel requested" not in gated.run("jobs", "status", "job").out
            button.click()
            shows(page, "head", "Cancel requested")
            assert page.get_by_role("link", name="Cancel").count() == 0
            assert "cancel requested" in gated.run("jobs", "status", "job").out
            os.kill(running.pid, signal.SIGCONT)
            shows(page, "state", "cancelled")
            shows(page, "actions", "Resume")
            leave(page)
    finally:
        with suppress(ProcessLookupError):
            os.kill(running.pid, signal.SIGCONT)
    running.wait()


# What the page refuses


@pytest.fixture(scope="module")
def finished_url(finished: tuple[CommandLab, str]) -> Iterator[str]:
    """A page of a storage with the finished job ``done``."""
    with served(finished[0]) as url:
        yield url


@pytest.fixture
def client(finished_url: str) -> Iterator[httpx.Client]:
    """A client that has the cookie."""
    with httpx.Client(base_url=address(finished_url, ""), trust_env=False, timeout=60) as opened:
        assert opened.get(finished_url).status_code == 200
        yield opened


def form(client: httpx.Client, path: str = "/jobs/done/cancel") -> dict[str, str]:
    """Return the hidden fields of a confirmation."""
    fields = dict(re.findall(r'name="(\w+)" value="([\w-]+)"', client.get(path).text))
    assert set(fields) == {"form_token"}
    return fields


def test_the_first_visit_moves_the_token_into_a_cookie(finished_url: str) -> None:
    answer = httpx.get(finished_url, trust_env=False)
    assert answer.headers["set-cookie"].endswith("; HttpOnly; SameSite=Strict; Path=/")
    assert 'content="0; url=/"' in answer.text


def test_without_the_right_token_a_page_says_how_to_get_the_url(finished_url: str) -> None:
    for path in ("/", "/?token=wrong", "/jobs/done", "/jobs/done/parts", "/parts"):
        answer = httpx.get(address(finished_url, path), trust_env=False)
        assert answer.status_code == 403
        assert "Open the whole URL that mops ui printed" in answer.text
        assert "set-cookie" not in answer.headers


def test_another_host_name_is_refused(client: httpx.Client) -> None:
    for host in ("evil.example", "["):
        assert client.get("/", headers={"Host": host}).status_code == 403


def test_a_form_of_another_site_is_refused(client: httpx.Client) -> None:
    for origin in ("http://evil.example", "http://[", "null", ""):
        answer = client.post("/jobs/done/cancel", data=form(client), headers={"Origin": origin})
        assert answer.status_code == 403
        assert "Another site sent this form" in answer.text


def test_a_form_without_its_token_is_refused(client: httpx.Client, finished_url: str) -> None:
    origin = {"Origin": address(finished_url, "")}
    assert client.post("/jobs/done/cancel", data={"form_token": "wrong"}, headers=origin).status_code == 403
    assert client.post("/jobs/done/cancel", data=form(client) | {"more": "x" * 5000}, headers=origin).status_code == 413


def test_a_cancel_of_a_job_that_has_ended_says_so(client: httpx.Client, finished_url: str) -> None:
    answer = client.post("/jobs/done/cancel", data=form(client), headers={"Origin": address(finished_url, "")})
    assert answer.status_code == 400
    assert "was complete already" in answer.text


@pytest.fixture
def partial_lab(lab: CommandLab) -> CommandLab:
    """The job ``job``, which has failures."""
    lab.write_study(parameter_sets=[{"x": -1}, {"x": 2}])
    ran = lab.submit("--name", "job")
    assert "jobs/job/job.json" in lab.stored(), ran.err
    return lab


def test_a_double_click_on_retry_makes_one_job_without_more_libraries(partial_lab: CommandLab, page: Page) -> None:
    partial_lab.write("sitecustomize.py", "import sys\nsys.modules['python_multipart'] = None\n")
    with served(partial_lab, PYTHONPATH=str(partial_lab.project)) as url:
        enter(page, url)
        page.goto(address(url, "/jobs/job/retry"))
        page.get_by_role("button", name="Retry in a new job").dblclick()
        shows(page, "head", "takes over results of job")
        shows(page, "state", "partial")
        assert len(list((partial_lab.storage / "jobs").iterdir())) == 2
        leave(page)


def test_a_damaged_file_of_the_parameters_hides_only_the_failures(partial_lab: CommandLab) -> None:
    (path,) = (partial_lab.storage / "jobs" / "job").rglob("params.parquet")
    path.write_bytes(b"damaged")
    with served(partial_lab) as url, httpx.Client(trust_env=False, timeout=60) as client:
        client.get(url)
        answer = client.get(address(url, "/jobs/job"))
        assert answer.status_code == 200
        assert "2 good" in answer.text
        assert re.search("cannot be read|is damaged", answer.text)


def test_damaged_pages_of_the_failures_are_named_with_what_to_do(partial_lab: CommandLab) -> None:
    """Pages that Arrow could not read were once shown as a defect of mops."""
    (path,) = (folder_of(partial_lab.storage, "job") / "failures").glob("*.parquet")
    content = path.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    path.write_bytes(content[:4] + bytes(byte ^ 0x5A for byte in content[4:footer]) + content[footer:])
    with served(partial_lab) as url, httpx.Client(trust_env=False, timeout=60) as client:
        client.get(url)
        for page, code in (("/jobs/job", 200), ("/jobs/job/report", 502)):
            answer = client.get(address(url, page))
            assert answer.status_code == code
            assert ("2 good" in answer.text) == (code == 200)
            assert "a committed part of job &#39;job&#39; is damaged" in answer.text
            assert "mops jobs verify job" in answer.text


def test_new_and_deleted_jobs_appear_in_open_pages_without_a_reload(lab: CommandLab, page: Page) -> None:
    with served(lab) as url:
        enter(page, url)
        shows(page, "jobs", "This storage has no jobs yet")
        assert lab.submit("--name", "waves").code == 0
        shows(page, "jobs", "waves")
        page.goto(address(url, "/?name=other"))
        shows(page, "jobs", "No job matches")
        page.goto(address(url, "/?name=WAV"))
        shows(page, "jobs", "succeeded")
        page.get_by_role("link", name="waves").click()
        shows(page, "state", "succeeded")
        assert lab.run("jobs", "delete", "waves", "--yes").code == 0
        shows(page, "error", "does not exist")
        assert page.locator("[data-part=state]").inner_text() == ""
        lab.write_study(parameter_sets=[{"x": -1}, {"x": 2}])
        lab.submit("--name", "waves")
        shows(page, "state", "partial")
        assert page.locator("[data-part=error]").inner_text() == ""
        leave(page)


def test_a_page_that_nobody_sees_asks_for_nothing_and_asks_again_when_it_is_seen(finished_url: str, page: Page) -> None:
    page.add_init_script("window.setTimeout = ((later) => (run, ms) => later(run, ms / 20))(window.setTimeout);")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/parts" in request.url else None)
    asks = partial(page.expect_request, lambda request: "/parts" in request.url)

    def show(hidden: str) -> None:
        page.evaluate(f"Object.defineProperty(document, 'hidden', {{ value: {hidden}, configurable: true }})")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    with asks():
        enter(page, finished_url)
    show("true")
    page.wait_for_timeout(300)
    n_asked = len(asked)
    page.wait_for_timeout(500)
    assert len(asked) == n_asked
    with asks():
        show("false")
    leave(page)


def test_the_parts_of_a_job_that_has_not_changed_are_not_sent_again(client: httpx.Client) -> None:
    for path in ("/jobs/done/parts", "/parts"):
        first = client.get(path)
        assert first.status_code == 200
        again = client.get(path, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_a_name_that_no_job_can_have_is_refused(client: httpx.Client) -> None:
    connection = HTTPConnection(client.base_url.host, client.base_url.port)  # httpx would resolve the dots
    cookie = "; ".join(f"{key}={value}" for key, value in client.cookies.items())
    with closing(connection):
        for name in ("..", "..%2f..%2fetc", "%2e%2e%2fdone", "..%5cdone", "a%00b", ".hidden", "x" * 64):
            for verb in ("", "/parts", "/cancel"):
                connection.request("GET", f"/jobs/{name}{verb}", headers={"Cookie": cookie})
                answer = connection.getresponse()
                answer.read()
                assert answer.status == 404, (name, verb)


def test_an_unknown_job_gets_a_page_with_similar_names(client: httpx.Client) -> None:
    answer = client.get("/jobs/dome")
    assert answer.status_code == 404
    assert "use the name of an existing job: done" in answer.text


def test_a_wrong_query_gets_a_page_that_says_so(client: httpx.Client) -> None:
    for path in ("/?page=0", "/?page=x", "/?page=²", "/?state=wild"):
        assert client.get(path).status_code == 400, path


def test_every_answer_allows_only_scripts_and_styles_of_the_page(client: httpx.Client) -> None:
    for path in ("/", "/jobs/done", "/static/page.js", "/jobs/none", "/nowhere"):
        policy = client.get(path).headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy


def test_a_read_only_page_has_no_buttons_and_refuses_changes(finished: tuple[CommandLab, str]) -> None:
    with served(finished[0], "--read-only") as url, httpx.Client(trust_env=False, timeout=60) as client:
        client.get(url)
        assert "read-only" in client.get(address(url, "/")).text
        answer = client.post(address(url, "/jobs/done/cancel"), headers={"Origin": address(url, "")})
        assert answer.status_code == 403


def test_behind_a_login_the_page_needs_no_token_and_only_reads(finished: tuple[CommandLab, str]) -> None:
    lab = finished[0]
    with served(lab, "--read-only", "--behind-login") as url, httpx.Client(trust_env=False, timeout=60) as client:
        assert "token" not in url
        for here in (url.replace("[::]", host) for host in ("[::1]", "127.0.0.1")):
            assert "done" in client.get(here, headers={"Host": "jobs.example.org"}).text
        assert client.post(f"{here}jobs/done/cancel").status_code == 403
    refused = lab.run("ui", "--behind-login", "--no-open")
    assert refused.code == 2
    assert "hint: add --read-only" in refused.err


def test_the_report_of_a_job_opens_from_its_page(finished_url: str, page: Page) -> None:
    enter(page, finished_url)
    page.get_by_role("link", name="done").click()
    with page.expect_response("**/report", timeout=PATIENCE_MS) as report:
        page.get_by_role("link", name="Report").click()
    assert "sandbox" in report.value.headers["content-security-policy"]
    assert report.value.headers["cross-origin-opener-policy"] == "unsafe-none"
    page.get_by_role("button", name="Dark theme").wait_for(timeout=PATIENCE_MS)  # its script has run
    assert page.url.endswith("/jobs/done/report")
    assert "mops-ui" not in page.evaluate("(() => { try { return document.cookie } catch { return '' } })()")


def test_a_part_that_comes_while_the_pointer_is_down_waits_for_the_click(finished_url: str, page: Page) -> None:
    """The link was replaced between the two halves of a click, and nothing happened."""
    enter(page, finished_url)
    link = page.get_by_role("link", name="done")
    link.hover()
    page.mouse.down()
    page.evaluate("show('jobs', document.querySelector('[data-part=jobs]').innerHTML)")
    page.mouse.up()
    page.wait_for_url("**/jobs/done", timeout=PATIENCE_MS)


def test_no_page_has_a_serious_fault_of_accessibility_or_scrolls_sideways(finished_url: str, page: Page) -> None:
    enter(page, finished_url)
    views: list[tuple[Literal["light", "dark"], int]] = [("light", 1200), ("dark", 400)]
    for path in ("/", "/jobs/done", "/compare?a=done&b=done", "/jobs/done/retry"):
        page.goto(address(finished_url, path))
        for scheme, width in views:
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
            try:
                assert axe.faults(page) == [], (path, scheme, width)
            except axe.NoAxeError as missing:
                pytest.skip(str(missing))


def test_two_jobs_are_compared(client: httpx.Client, finished: tuple[CommandLab, str]) -> None:
    assert "Compare two jobs" in client.get("/compare").text
    assert '<option value="done"></option>' in client.get("/compare").text, "the names of the jobs are offered"
    assert 'href="/compare?a=done"' in client.get("/jobs/done").text
    assert "Both jobs have the same results." in client.get("/compare?a=done&b=done").text
    answer = client.get("/compare?a=done&b=../done")
    assert answer.status_code == 400
    assert "no job can be named" in answer.text


# The command


def test_a_port_in_use_is_an_error_with_a_hint(finished: tuple[CommandLab, str], finished_url: str) -> None:
    port = finished_url.partition("/?")[0].rpartition(":")[2]
    ran = finished[0].run("ui", "--no-open", "--port", port)
    assert ran.code == 2
    assert f"port {port} is in use" in ran.err
    assert "--port 0" in ran.err


def test_ctrl_c_ends_the_command_while_a_page_is_open(
    finished: tuple[CommandLab, str], browser_page: Callable[[], Page]
) -> None:
    with finished[0].start("ui", "--no-open", "--port", 0) as process:
        assert process.stdout is not None
        opened = browser_page()
        enter(opened, process.stdout.readline().strip())
        shows(opened, "jobs", "done")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert err.splitlines()[-1] == "stopped; the jobs continue"


def test_a_read_that_hangs_stops_neither_other_pages_nor_the_end(lab: CommandLab) -> None:
    assert lab.submit("--name", "done").code == 0
    record = lab.storage / "jobs" / "hang" / "job.json"
    record.parent.mkdir()
    os.mkfifo(record)
    with lab.start("ui", "--no-open", "--port", 0) as process, httpx.Client(trust_env=False, timeout=60) as client:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        client.get(url)
        with ThreadPoolExecutor(1) as other:
            hanging = other.submit(client.get, address(url, "/jobs/hang"))
            with closing_fd(until(lambda: opened_for_writing(record))):
                assert client.get(address(url, "/jobs/done")).status_code == 200
                process.send_signal(signal.SIGINT)
                process.wait(60)
            assert hanging.exception(60) is not None or hanging.result().status_code != 200
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert err.splitlines()[-1] == "stopped; the jobs continue"


def opened_for_writing(fifo: Path) -> int | None:
    """Open a pipe that has a reader."""
    try:
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


@contextmanager
def closing_fd(fd: int | None) -> Iterator[None]:
    assert fd is not None
    try:
        yield
    finally:
        os.close(fd)


@pytest.fixture
def browser_page(browser: object) -> Iterator[Callable[[], Page]]:
    """Open a page whose console is not checked: the end of the server is an error for the browser."""
    opened: list[Page] = []

    def new() -> Page:
        opened.append(browser.new_page())  # type: ignore[attr-defined]
        return opened[-1]

    yield new
    for one in opened:
        one.close()


def test_missing_libraries_are_named_with_the_command_that_installs_them(lab: CommandLab) -> None:
    lab.write("sitecustomize.py", "import sys\nsys.modules['uvicorn'] = None\n")
    ran = lab.run("ui", "--no-open", PYTHONPATH=str(lab.project))
    assert ran.code == 2
    assert "the web page needs uvicorn, which this environment lacks" in ran.err
    assert "pip install 'mops-runner[ui]'" in ran.err
