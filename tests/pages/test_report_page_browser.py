"""The report's page in a browser: it draws what it should, without an error, by keyboard and on paper too.

Needs Chromium and its driver (`apt-get install chromium chromium-driver`); skipped without them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from jax import export
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

import meshbridge
from meshbridge.analysis.origins import Origin
from meshbridge.cost.communication import Collective
from meshbridge.dialect import assembly
from meshbridge.ir.locations import SourceLocation
from meshbridge.ir.mlir import context
from meshbridge.reports import Report, report_of
from testdata.catalogue import build

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None or DRIVER is None, reason="needs chromium and chromedriver"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    options = ChromeOptions()
    options.binary_location = BROWSER or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = Chrome(options=options, service=Service(DRIVER))
    yield started
    started.quit()


@pytest.fixture(scope="module")
def llama() -> Report:
    """A training step of four layers in a loop, on a machine with a topology."""
    return meshbridge.report(build("llama_scan_fsdp").export(), machine="v5e:2x4")


HOSTILE = "</script><script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">"


def opened(browser: Chrome, tmp_path: Path, page: str) -> None:
    """Opens a page, and checks that it is shown without an error and without anything from elsewhere."""
    file = tmp_path / "page.html"
    file.write_text(page, "utf-8")
    browser.set_window_size(1200, 900)
    browser.get(file.as_uri())
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def all_of(browser: Chrome, selector: str) -> list[WebElement]:
    return browser.find_elements(By.CSS_SELECTOR, selector)


def one_of(browser: Chrome, selector: str) -> WebElement:
    return browser.find_element(By.CSS_SELECTOR, selector)


def test_rows_open_by_keyboard(browser: Chrome, tmp_path: Path, llama: Report) -> None:
    opened(browser, tmp_path, llama.to_html())
    for section in ("modules", "collectives"):
        row = next(each for each in all_of(browser, f"#{section} details") if each.get_attribute("open") is None)
        inside = row.find_elements(By.XPATH, "./*")[1]
        assert not inside.is_displayed()
        row.find_element(By.TAG_NAME, "summary").send_keys(Keys.ENTER)
        assert inside.is_displayed()
    (meant,) = row.find_elements(By.CSS_SELECTOR, ".source .meant")
    assert meant.text.strip()


def test_all_rows_open_and_close(browser: Chrome, tmp_path: Path, llama: Report) -> None:
    opened(browser, tmp_path, llama.to_html())
    rows = len(all_of(browser, "#modules details"))
    assert rows
    one_of(browser, "[data-open=modules]").click()
    assert len(all_of(browser, "#modules details[open]")) == rows
    one_of(browser, "[data-close=modules]").click()
    assert len(all_of(browser, "#modules details[open]")) == 0


def test_filter_leaves_what_has_its_words(browser: Chrome, tmp_path: Path, llama: Report) -> None:
    opened(browser, tmp_path, llama.to_html())
    rows = all_of(browser, "[data-rows] > details")
    one_of(browser, "#filter").send_keys("reduce_scatter LLAMA")
    shown = [row for row in rows if row.is_displayed()]
    assert 0 < len(shown) < len(rows)
    assert all("reduce_scatter" in row.text for row in shown)
    assert one_of(browser, "#found").text == f"{len(shown)} of {len(rows)}"


def spans(browser: Chrome) -> list[tuple[float, float]]:
    """Where the slices of the timeline begin, and how wide they are, in pixels."""
    found = browser.execute_script(
        "return [...document.querySelectorAll('.slice')].map((each) => [each.x.baseVal.value, each.width.baseVal.value])"
    )
    return [(x, width) for x, width in found]


def count(browser: Chrome) -> int:
    """The slices that are drawn, each or several as one."""
    found = browser.execute_script("return [...document.querySelectorAll('.slice')].map((each) => each.dataset.count)")
    return sum(map(int, found))


def test_timeline_draws_every_slice_and_zooms(browser: Chrome, tmp_path: Path, llama: Report) -> None:
    opened(browser, tmp_path, llama.to_html())
    assert llama.step is not None
    assert count(browser) == len(llama.step.slices)
    whole = spans(browser)
    box = one_of(browser, "#timeline")
    browser.execute_script("arguments[0].focus()", box)
    box.send_keys("++")
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert count(browser) < len(llama.step.slices)
    assert max(width for _, width in spans(browser)) > max(width for _, width in whole)
    box.send_keys("0")
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert spans(browser) == whole
    folds = [part for part in llama.step.slices if part.iterations > 1]
    shaded = [each.find_element(By.TAG_NAME, "title").get_attribute("textContent") or "" for each in all_of(browser, ".fold")]
    assert bool(folds) == bool(shaded)
    assert all("are like the first, and are not drawn" in each for each in shaded)
    widest = all_of(browser, ".slice")[whole.index(max(whole, key=lambda each: each[1]))]
    widest.click()
    assert one_of(browser, "#slice").text.startswith(
        widest.find_element(By.TAG_NAME, "title").get_attribute("textContent") or "-"
    )


def test_hundred_thousand_slices_stay_few_boxes(browser: Chrome, tmp_path: Path, llama: Report) -> None:
    """Slices narrower than a pixel share one."""
    assert llama.step is not None
    first = llama.step.slices[0]
    length = llama.step.seconds / 100_000
    many = tuple(replace(first, start=number * length, seconds=length) for number in range(100_000))
    opened(browser, tmp_path, replace(llama, step=replace(llama.step, slices=many)).to_html())
    assert count(browser) == 100_000
    assert len(spans(browser)) < 1500


def test_everything_is_open_on_paper(browser: Chrome, tmp_path: Path, llama: Report) -> None:
    opened(browser, tmp_path, llama.to_html())
    closed = len(all_of(browser, "details:not([open])"))
    assert closed
    browser.execute_script(
        "addEventListener('beforeprint', () => { window.left = document.querySelectorAll('details:not([open])').length; })"
    )
    printed = browser.execute_cdp_cmd("Page.printToPDF", {})
    assert len(printed["data"]) > 10_000
    assert browser.execute_script("return window.left") == 0
    assert len(all_of(browser, "details:not([open])")) == closed


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_both_schemes(browser: Chrome, tmp_path: Path, llama: Report, scheme: str) -> None:
    """Contrast of 4.5 to 1 between texts and what is behind them, as WCAG asks for."""
    opened(browser, tmp_path, llama.to_html())
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    contrasts = browser.execute_script(CONTRASTS)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert len(contrasts) > 20
    assert min(contrasts.values()) >= 4.5, min(contrasts.items(), key=lambda each: each[1])


CONTRASTS = """
const channel = (value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
const light = (text) => {
  const [red, green, blue] = numbers(text).map((value) => channel(value / 255));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
};
const behind = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const found = getComputedStyle(at).backgroundColor;
    if (numbers(found)[3] !== 0) return found;
  }
  throw new Error("nothing is behind it");
};
const found = {};
document.querySelectorAll("details").forEach((each) => { each.open = true; });
for (const element of document.querySelectorAll("body *:not(script, style, svg *)")) {
  const text = [...element.childNodes].filter((node) => node.nodeType === 3).map((node) => node.textContent.trim()).join("");
  const key = `${element.tagName} ${element.className} ${text.slice(0, 20)}`;
  if (text) found[key] = [light(getComputedStyle(element).color), light(behind(element))];
}
for (const cell of document.querySelectorAll(".picture g")) {
  const [box, text] = [cell.querySelector("rect"), cell.querySelector("text")].map((each) => getComputedStyle(each).fill);
  found[`cell ${cell.textContent}`] = [light(box), light(text)];
}
for (const key of Object.keys(found)) {
  const [low, high] = found[key].sort((a, b) => a - b);
  found[key] = (high + 0.05) / (low + 0.05);
}
return found;
"""


def test_narrow_screens_scroll_downwards_only(browser: Chrome, tmp_path: Path, llama: Report) -> None:
    opened(browser, tmp_path, llama.to_html())
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    )
    browser.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    width = browser.execute_script("return document.documentElement.scrollWidth")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert width <= 400


def test_a_program_without_collectives(browser: Chrome, tmp_path: Path) -> None:
    text = "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> { return %a : tensor<2xf32> }"
    opened(browser, tmp_path, report_of(assembly.read(text, "silent.mlir", context()), None).to_html())
    assert "The program communicates nothing." in one_of(browser, "main").text


def test_hostile_names_run_nothing(browser: Chrome, tmp_path: Path, exported: export.Exported) -> None:
    report = meshbridge.report(exported, machine="v5e:2x4")
    assert report.step is not None
    location = SourceLocation(HOSTILE, 3, 1, HOSTILE)
    collective = Collective(
        HOSTILE, ("data",), 2, 9.0, 1, location, HOSTILE, HOSTILE, (Origin((HOSTILE,), "forward", location, ""),)
    )
    slices = (replace(report.step.slices[0], name=f"op.{HOSTILE}"),)
    arguments = tuple(replace(each, name=HOSTILE) for each in report.arguments)
    hostile = replace(
        report, collectives=(collective,), arguments=arguments, unpredicted=HOSTILE, step=replace(report.step, slices=slices)
    )
    opened(browser, tmp_path, hostile.to_html(HOSTILE))
    assert not all_of(browser, "img")
    assert browser.title == f"{HOSTILE}: what it communicates"
    assert one_of(browser, "h1").text == HOSTILE
    assert HOSTILE in (one_of(browser, ".slice title").get_attribute("textContent") or "")
