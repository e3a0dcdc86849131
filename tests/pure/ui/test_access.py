"""Who may read and change what: each threat of docs/internals/ui.md is a line here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mops.ui.access import (
    NO_TOKEN,
    READ_ONLY,
    WRONG_HOST,
    WRONG_ORIGIN,
    Access,
    Answer,
    Request,
    without_token,
)

ACCESS = Access(8750, read_only=False, token="right")
HERE = "127.0.0.1:8750"
OURS = f"http://{HERE}"
VISIT = Request("GET", "/", HERE, "", "", "right")
FORM = replace(VISIT, method="POST", path="/jobs/waves/cancel", origin=OURS)


def test_a_request_is_served_only_with_token_host_and_origin(subtests: pytest.Subtests) -> None:
    for request_, decision in [
        (VISIT, Answer.SERVE),
        (replace(VISIT, host="localhost:8750"), Answer.SERVE),
        (replace(VISIT, cookie="", token="right"), Answer.ENTER),
        (replace(VISIT, token="right"), Answer.ENTER),
        (replace(VISIT, cookie=""), NO_TOKEN),
        (replace(VISIT, cookie="", token="wrong"), NO_TOKEN),
        (replace(VISIT, cookie="wrong"), NO_TOKEN),
        (replace(VISIT, cookie="réght"), NO_TOKEN),
        (replace(VISIT, host="evil.example:8750"), WRONG_HOST),  # a name that an attacker points to 127.0.0.1
        (replace(VISIT, host="127.0.0.1"), WRONG_HOST),
        (replace(VISIT, host=""), WRONG_HOST),
        (replace(VISIT, host="evil.example", path="/static/page.css"), WRONG_HOST),
        (replace(VISIT, cookie="", path="/static/page.css"), Answer.SERVE),
        (FORM, Answer.SERVE),
        (replace(FORM, origin="http://evil.example"), WRONG_ORIGIN),
        (replace(FORM, origin="http://127.0.0.1:9000"), WRONG_ORIGIN),  # another program of this machine
        (replace(FORM, origin="http://127.0.0.1:8750.evil.example"), WRONG_ORIGIN),
        (replace(FORM, origin=f"https://{HERE}"), WRONG_ORIGIN),
        (replace(FORM, origin="http://["), WRONG_ORIGIN),
        (replace(FORM, host="LOCALHOST:8750", origin="http://localhost:8750"), Answer.SERVE),
        (replace(FORM, origin="null"), WRONG_ORIGIN),
        (replace(FORM, origin=""), WRONG_ORIGIN),
        (replace(FORM, cookie=""), NO_TOKEN),
        (replace(FORM, cookie="", token="right"), NO_TOKEN),
        (replace(FORM, path="/static/page.css", origin="http://evil.example"), WRONG_ORIGIN),
    ]:
        with subtests.test(request_=request_, decision=decision):
            assert ACCESS.decide(request_) is decision


def test_a_read_only_page_refuses_every_change() -> None:
    access = replace(ACCESS, read_only=True)
    assert access.decide(FORM) is READ_ONLY
    assert access.decide(replace(FORM, method="DELETE")) is READ_ONLY
    assert access.decide(VISIT) is Answer.SERVE


def test_behind_a_login_everyone_may_read_and_nobody_may_change() -> None:
    access = Access(8750, read_only=True, behind_login=True)
    visit = replace(VISIT, host="jobs.example.org", cookie="")
    assert access.decide(visit) is Answer.SERVE
    assert access.decide(replace(visit, method="POST", origin="https://jobs.example.org")) is READ_ONLY


def test_each_start_has_another_token_and_the_token_of_forms_does_not_reveal_it() -> None:
    first, second = Access(1, read_only=False), Access(1, read_only=False)
    assert first.token != second.token
    assert len(first.token) >= 32
    assert first.is_form_token(first.form_token)
    assert not first.is_form_token(second.form_token)
    assert not first.is_form_token("")
    assert first.token not in first.form_token


def test_scripts_and_other_sites_do_not_get_the_cookie() -> None:
    assert "HttpOnly" in ACCESS.cookie
    assert "SameSite=Strict" in ACCESS.cookie


def test_two_pages_on_one_machine_have_cookies_of_different_names() -> None:
    assert replace(ACCESS, port=1).cookie_name != ACCESS.cookie_name


def test_entering_continues_on_this_server_without_the_token() -> None:
    assert without_token("/jobs/waves", {"token": "right", "page": "2"}) == ("/jobs/waves", {"page": "2"})
    assert without_token("//evil.example/x", {"token": "right"}) == ("/evil.example/x", {})
