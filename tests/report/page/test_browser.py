"""The page in a real browser: hovered, clicked, on a phone, printed."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import made_tables
from support.browser import CHROMIUM, Browser
from support.made_runs import ATTACK, run_folder
from support.read_page import page_of_folders

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    tokens = made_tables.tokens("text")
    tokens.loc[0, "token"] = ATTACK
    runs = [
        run_folder(
            folder / "layers", "layers", record={"model": ATTACK}, layers=made_tables.layers(31)
        ),
        run_folder(folder / "interface", "interface", interface=made_tables.interface()),
        run_folder(
            folder / "embeddings",
            "embeddings",
            embeddings=made_tables.embeddings("text"),
            tokens=tokens,
        ),
    ]
    (folder / "page.html").write_text(page_of_folders(*runs), encoding="utf-8")
    return folder / "page.html"


def lines(browser: Browser) -> list[str]:
    return browser.evaluate(
        "[...document.querySelectorAll('.chart path')].map(p => p.dataset.series)"
    )


def first_point(browser: Browser) -> float:
    """Height of the visual line at layer 0, in pixels from the top."""
    path = browser.evaluate("document.querySelector('path[data-series=visual]').getAttribute('d')")
    return float(re.match(r"M[\d.]+,([\d.]+)", path).group(1))


def test_it_opens_without_a_complaint_and_runs_nothing_foreign(
    browser: Browser, file: Path
) -> None:
    browser.open(file)
    assert browser.complaints() == []
    assert browser.evaluate("document.title") == "3 normprobe runs"
    assert lines(browser) == ["visual", "text", "special", "structural"]


def test_the_policy_refuses_other_scripts(browser: Browser, file: Path, tmp_path: Path) -> None:
    """Should escaping ever fail: this page has an element that nobody escaped."""
    opened = file.read_text().replace(
        "<main>", "<main><img src=x onerror=\"document.title='gone'\">"
    )
    (tmp_path / "page.html").write_text(opened + "<script>document.title='gone'</script>")
    browser.open(tmp_path / "page.html")
    assert browser.evaluate("document.title") == "3 normprobe runs"
    assert any("Content Security Policy" in text for text in browser.complaints())


def test_the_mouse_reads_values(browser: Browser, file: Path) -> None:
    browser.open(file)
    x, y = browser.centre(".chart")
    assert browser.evaluate("document.querySelector('.tip').hidden")
    browser.mouse("mouseMoved", x, y)
    tip = browser.evaluate("document.querySelector('.tip').textContent")
    layer = int(re.match(r"layer (\d+)", tip).group(1))
    assert layer in (15, 16)
    rows = made_tables.layers(31).set_index(["group", "layer"])
    for group in ("visual", "text"):
        shown = float(re.search(rf"{group} ([\d.]+)", tip).group(1))
        assert shown == pytest.approx(rows.loc[(group, layer), "norm_mean"], rel=1e-3)
    browser.mouse("mouseMoved", 1, 1)
    assert browser.evaluate("document.querySelector('.tip').hidden")


def test_the_keyboard_reads_values(browser: Browser, file: Path) -> None:
    browser.open(file)
    browser.evaluate("document.querySelector('.chart').focus()")
    for _ in range(3):
        browser.press("ArrowRight")
    assert browser.evaluate("document.querySelector('.tip b').textContent") == "layer 2"


def test_a_click_hides_a_group_and_brings_it_back(browser: Browser, file: Path) -> None:
    browser.open(file)
    key = ".controls .controls button:nth-child(2)"
    browser.click(key)
    assert lines(browser) == ["visual", "special", "structural"]
    assert browser.evaluate(f"document.querySelector('{key}').ariaPressed") == "false"
    browser.click(key)
    assert "text" in lines(browser)


def test_the_scale_and_the_quantity_change(browser: Browser, file: Path) -> None:
    browser.open(file)
    assert browser.evaluate("document.querySelector('.scale').textContent") == "log scale"
    logarithmic = first_point(browser)
    browser.click(".scale")
    assert browser.evaluate("document.querySelector('.scale').textContent") == "linear scale"
    assert abs(first_point(browser) - logarithmic) > 5
    browser.evaluate(
        "(s => { s.selectedIndex = 1; s.dispatchEvent(new Event('change')); })"
        "(document.querySelector('.controls select'))"
    )
    label = browser.evaluate("document.querySelector('.chart').ariaLabel")
    assert label.startswith("cosine between layer input and output")
    assert not re.search(
        r"[MLN]a?N", browser.evaluate("document.querySelector('path').getAttribute('d')")
    )


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_nothing_is_wider_than_the_window(width: int, browser: Browser, file: Path) -> None:
    browser.open(file, width=width)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    small = browser.evaluate(
        "Math.min(...[...document.querySelectorAll('.chart text, td, p, button')]"
        ".map(e => parseFloat(getComputedStyle(e).fontSize) *"
        " (e.closest('svg') ? e.closest('svg').getBoundingClientRect().width"
        " / e.closest('svg').viewBox.baseVal.width : 1)))"
    )
    assert small >= 11


def test_a_screen_alone_has_switches(browser: Browser, file: Path, tmp_path: Path) -> None:
    browser.open(file)
    browser.send("Emulation.setEmulatedMedia", media="print")
    for hidden in ("nav", ".scale", "select", ".files"):
        assert (
            browser.evaluate(f"getComputedStyle(document.querySelector('{hidden}')).display")
            == "none"
        )
    assert (
        browser.evaluate("getComputedStyle(document.querySelector('.quantity')).display") == "block"
    )
    browser.send("Emulation.setEmulatedMedia", media="")
    browser.print(tmp_path / "page.pdf")
    pdf = (tmp_path / "page.pdf").read_bytes()
    assert len(re.findall(rb"/Type /Page\b", pdf)) >= 3  # a run begins a page
