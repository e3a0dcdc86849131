"""The report in a real browser: figures, filter, themes, small screens, paper, notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

import axe
from mops.jobs.job import Job
from mops.report.render import Report

from .report_lab import Opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@contextmanager
def shown(browser: Browser, path: Path) -> Iterator[Opened]:
    """Show a report, which takes a second of CPU time, for all tests of this file that leave it as it was."""
    context = browser.new_context()
    page, errors = context.new_page(), []
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield Opened(page, path)
    context.close()
    assert errors == []


@pytest.fixture(scope="module")
def shown_partial(browser: Browser, partial_page: Path) -> Iterator[Opened]:
    with shown(browser, partial_page) as opened:
        yield opened


@pytest.fixture
def opened(shown_partial: Opened) -> Iterator[Opened]:
    yield shown_partial
    shown_partial.page.set_viewport_size({"width": 1280, "height": 720})
    shown_partial.page.emulate_media(media="null", color_scheme="null")


@pytest.fixture(scope="module")
def odd_opened(browser: Browser, odd_page: Path) -> Iterator[Opened]:
    with shown(browser, odd_page) as opened:
        yield opened


def test_the_sections_fold(opened: Opened) -> None:
    page = opened.page
    page.set_viewport_size({"width": 400, "height": 800})
    page.get_by_text("28 of 28").wait_for()
    section = page.locator("#losses")
    section.locator("summary").first.click()
    assert not section.locator("figure").first.is_visible()
    page.get_by_role("navigation").get_by_role("link", name="Losses").click()
    section.locator("figure").first.wait_for(state="visible")


def background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_figures_are_drawn_at_any_width_and_nothing_is_loaded(opened: Opened, subtests: pytest.Subtests) -> None:
    assert opened.page.locator("figure").count() > 8
    for width in (400, 768, 1280):
        with subtests.test(width=width):
            opened.page.set_viewport_size({"width": width, "height": 800})
            assert opened.overflow() <= 0, "the page scrolls sideways"
            assert opened.empty_figures() == []
    assert opened.foreign == []


def test_a_drag_along_an_axis_filters_lines_and_table(opened: Opened) -> None:
    page = opened.page
    page.set_viewport_size({"width": 400, "height": 900})
    page.reload()
    page.locator("[data-count]").get_by_text("28 of 28").wait_for()
    rows = page.locator("table[data-shown] tbody tr:visible")
    assert rows.count() == 20
    figure = page.locator("figure[data-filter]")
    figure.scroll_into_view_if_needed()
    axis = figure.locator(".mark-rule line").first.bounding_box()
    assert axis is not None
    x = axis["x"]
    page.mouse.move(x - 12, axis["y"] - 6)
    page.mouse.down()
    page.mouse.move(x + 12, axis["y"] + axis["height"] / 2, steps=4)
    page.mouse.up()
    page.wait_for_function("!document.querySelector('[data-count]').textContent.startsWith('28')")
    kept = int(opened.text("[data-count]").partition(" ")[0])
    assert 10 <= kept <= 18
    assert figure.locator(".mark-line path").count() == kept
    assert rows.count() == kept
    page.get_by_role("button", name="Show all").click()
    page.locator("[data-count]").get_by_text("28 of 28").wait_for()


def test_typed_numbers_filter_too_and_the_caption_of_the_table_says_what_is_left(opened: Opened) -> None:
    """A keyboard, and a phone without room for a drag, can filter."""
    page = opened.page
    assert opened.text("[data-caption]") == "The best 20 of 28 parameter sets."
    page.get_by_text("Filter by numbers").click()
    page.get_by_label("least beta").fill("0.3")
    page.get_by_label("greatest beta").fill("0.5")
    page.locator("[data-count]").get_by_text("8 of 28", exact=False).wait_for()  # beta is (i + 0.5) / 40
    page.get_by_text("The best 8 of the 8 parameter sets that the filter keeps.").wait_for()
    page.get_by_label("least beta").fill("")
    page.get_by_label("greatest beta").fill("")
    page.locator("[data-count]").get_by_text("28 of 28").wait_for()
    page.get_by_label("least beta").fill("0.6")
    page.get_by_label("greatest beta").fill("0.5")
    page.get_by_text("The filter keeps no parameter set.").wait_for()
    page.get_by_role("button", name="Show all").click()
    page.get_by_text("The best 20 of 28 parameter sets.").wait_for()


def test_an_axis_with_one_value_filters_too(odd_opened: Opened) -> None:
    page = odd_opened.page
    page.get_by_text("Filter by numbers").click()
    least = page.get_by_label("least weighted sum of losses", exact=True)
    for value, kept in (("0", 28), ("3", 28), ("3.5", 0)):
        least.fill(value)
        page.get_by_text(f"{kept} of 28 parameter sets shown", exact=True).wait_for()


def test_a_long_name_does_not_widen_the_page(odd_opened: Opened) -> None:
    assert "peak (summary)" in odd_opened.page.locator("#outputs").inner_text(), "a histogram"
    for width in (400, 1280):
        odd_opened.page.set_viewport_size({"width": width, "height": 800})
        assert odd_opened.overflow() <= 0
        assert odd_opened.empty_figures() == []


def test_the_page_follows_the_theme_of_the_system_until_the_reader_chooses(page: Page, partial_page: Path) -> None:
    Opened(page, partial_page)
    page.emulate_media(color_scheme="light")
    light = background(page)
    page.emulate_media(color_scheme="dark")
    assert background(page) != light
    line = "getComputedStyle(document.querySelector('figure svg text')).fill"
    dark_text = page.evaluate(line)
    page.get_by_role("button", name="Light theme").click()
    assert background(page) == light
    assert page.evaluate(line) != dark_text


def test_a_narrow_table_keeps_the_rank_and_a_parameter_in_view(opened: Opened) -> None:
    page = opened.page
    page.set_viewport_size({"width": 400, "height": 800})
    table = page.locator(".ranking")
    assert not table.locator(".meters, .set-id").first.is_visible()
    head = table.locator("th")
    parameter = head.filter(has_text="beta").first
    assert parameter.bounding_box()["x"] + parameter.bounding_box()["width"] <= 400
    before = head.first.bounding_box()
    table.evaluate("table => { table.parentElement.scrollLeft = 80 }")
    assert head.first.bounding_box() == before, "the rank does not scroll away"


def test_a_table_on_paper_fits_into_its_card(opened: Opened) -> None:
    page = opened.page
    page.set_viewport_size({"width": 688, "height": 1000})  # A4 without its margins
    page.emulate_media(media="print")
    assert page.locator(".shadow").evaluate("card => card.scrollWidth - card.clientWidth") <= 0


def test_paper_is_white_and_has_no_controls(opened: Opened) -> None:
    page = opened.page
    page.emulate_media(media="print", color_scheme="dark")
    assert background(page) == "rgb(255, 255, 255)"
    assert not page.get_by_role("button").first.is_visible()
    assert not page.locator("nav").is_visible()
    assert page.pdf(format="A4")[:5] == b"%PDF-"


def test_the_data_of_a_figure_can_be_saved(opened: Opened) -> None:
    with opened.page.expect_download() as download:
        opened.page.get_by_role("link", name="Data (CSV)").first.click()
    assert download.value.path().read_text().startswith('"')


def test_a_notebook_shows_the_report_in_a_frame(page: Page, partial: Job, partial_page: Path) -> None:
    report = Report(partial.name, partial_page.read_text())
    page.set_content(f"<!DOCTYPE html><title>n</title>{report._repr_html_()}")
    frame = page.frame_locator("iframe")
    assert frame.locator("h1").inner_text() == "waves"
    assert frame.locator("figure").count() > 8


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 400)])
def test_the_page_has_no_serious_fault_of_accessibility(
    opened: Opened, scheme: Literal["light", "dark"], width: int
) -> None:
    opened.page.set_viewport_size({"width": width, "height": 900})
    opened.page.emulate_media(color_scheme=scheme)
    try:
        assert axe.faults(opened.page) == []
    except axe.NoAxeError as missing:
        pytest.skip(str(missing))
