"""The page in a real browser: hovered, tapped, sorted, in the dark, on a phone, printed."""

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
from PIL import Image
from support import made_cause, made_tables
from support.axe import axe_script
from support.browser import CHROMIUM, Browser
from support.made_bands import with_bands
from support.made_runs import ATTACK, run_folder
from support.read_latex import read_latex
from support.read_page import page_of_folders

from normprobe.report.readable import ReadableTable
from normprobe.report.table_text import latex
from normprobe.runs.run_folder import RunFolder

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
    places = pd.DataFrame(
        {
            "layer": [1, 1],
            "query": "all text",
            "left": [0.0, 0.5],
            "top": 0.0,
            "right": [0.5, 1.0],
            "bottom": 1.0,
            "attention": [0.2, 0.6],
        }
    )
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
        run_folder(
            folder / "attention",
            "attention",
            record={"options": {"prompt": "Where is the cup?"}},
            attention=made_tables.attention(),
            heatmaps=places,
        ),
    ]
    RunFolder.open(runs[-1]).write_image("image", Image.new("RGB", (60, 40), "red"))
    (folder / "page.html").write_text(page_of_folders(*runs), encoding="utf-8")
    return folder / "page.html"


def lines(browser: Browser, place: str) -> list[str]:
    return browser.evaluate(
        f"[...document.querySelectorAll('{place} .chart path')].map(p => p.dataset.series)"
    )


def first_point(browser: Browser) -> float:
    """Height of the visual line of the curves at layer 0, in pixels from the top."""
    path = browser.evaluate(
        "document.querySelector('.curves path[data-series=visual]').getAttribute('d')"
    )
    return float(re.match(r"M[\d.]+,([\d.]+)", path).group(1))


def text(browser: Browser, selector: str) -> str:
    return browser.evaluate(f"document.querySelector('{selector}').textContent")


def hidden(browser: Browser, selector: str) -> bool:
    return browser.evaluate(f"document.querySelector('{selector}').hidden")


def test_it_opens_without_a_complaint_and_runs_nothing_foreign(
    browser: Browser, file: Path
) -> None:
    browser.open(file)
    assert browser.complaints() == []
    assert browser.evaluate("document.title") == f"normprobe: {ATTACK}"
    assert lines(browser, "#run-1 .curves") == ["visual", "text", "special", "structural"]


def page_of_layers(folder: Path, table: pd.DataFrame) -> Path:
    run = run_folder(folder / "run", "layers", layers=table)
    (folder / "page.html").write_text(page_of_folders(run), encoding="utf-8")
    return folder / "page.html"


def height(browser: Browser, kind: str) -> float:
    box = f"document.querySelector('.panels polygon.{kind}').getBBox()"
    return float(browser.evaluate(f"{box}.height"))


def test_a_band_is_an_outline_an_interval_is_filled_and_both_are_named(
    browser: Browser, tmp_path: Path
) -> None:
    table = with_bands(made_tables.layers(), ["norm_mean", "angle_mean"])
    browser.open(page_of_layers(tmp_path, table))
    look = "getComputedStyle(document.querySelector('.panels polygon.{}')).{}"
    assert browser.evaluate(look.format("band", "fill")) == "none"
    assert browser.evaluate(look.format("band", "strokeDasharray")) != "none"
    assert browser.evaluate(look.format("interval", "fill")) != "none"
    assert browser.evaluate(look.format("interval", "stroke")) == "none"
    assert height(browser, "band") > height(browser, "interval") > 0
    named = [
        "5-95 % of tokens",
        "95 % interval of each layer",
        "95 % band of all layers together",
    ]
    assert text(browser, ".panels .around") == "".join(named)
    browser.mouse("mouseMoved", *browser.centre(".panels .chart"))
    row = table[(table["group"] == "visual") & (table["layer"] == 3)].iloc[0]
    said = re.search(r"visual \S+ \[(.*?)\], all layers \[(.*?)\]", text(browser, ".panels .tip"))
    ends = [float(end) for part in said.groups() for end in part.split(", ")]
    names = ("ci_low", "ci_high", "band_low", "band_high")
    assert ends == pytest.approx([row[f"norm_mean_{name}"] for name in names], rel=1e-3)


def test_doses_lie_on_a_log_axis_and_are_hollow_off_the_map(
    browser: Browser, tmp_path: Path
) -> None:
    run = run_folder(tmp_path / "run", "cause", cause=made_cause.cause())
    (tmp_path / "page.html").write_text(page_of_folders(run), encoding="utf-8")
    browser.open(tmp_path / "page.html")
    chart = ".panels .panel:nth-child(2) .chart"
    texts = f"[...document.querySelectorAll('{chart} text')]"
    tick = f"+{texts}.filter(t => t.textContent === '{{:g}}').at(-1).getAttribute('x')"
    at = [browser.evaluate(tick.format(dose)) for dose in (0.125, 0.25, 1, 8)]
    assert (at[1] - at[0]) * 3 == pytest.approx(at[2] - at[0])
    assert at[2] - at[0] == pytest.approx(at[3] - at[2])
    hollow = browser.evaluate(f"document.querySelectorAll('{chart} .dot.hollow').length")
    assert hollow == 2  # doses 0.125 and 0.25 of the visual tokens
    assert "95 % interval of each dose" in text(browser, ".panels .around")
    browser.mouse("mouseMoved", *browser.centre(chart))
    assert text(browser, ".panels .panel:nth-child(2) .tip").startswith("dose 1")


def test_what_a_table_lacks_is_not_named(browser: Browser, tmp_path: Path) -> None:
    table = with_bands(made_tables.layers(), ["norm_mean", "angle_mean"])
    table.loc[:, table.columns.str.contains("_band_")] = float("nan")  # as of one image
    browser.open(page_of_layers(tmp_path, table))
    assert "interval" in text(browser, ".panels .around")
    assert "band" not in text(browser, ".panels .around")
    assert not browser.evaluate("document.querySelectorAll('polygon.band').length")


def test_a_band_of_few_images_does_not_press_the_lines_flat(
    browser: Browser, tmp_path: Path
) -> None:
    table = with_bands(made_tables.layers(), ["norm_mean"])
    browser.open(page_of_layers(tmp_path, table))
    before = height(browser, "interval")
    table = table.assign(norm_mean_band_low=1e-6, norm_mean_band_high=1e6)
    (tmp_path / "wide").mkdir()
    browser.open(page_of_layers(tmp_path / "wide", table))
    assert height(browser, "interval") > before / 5
    # What leaves the chart is cut off.
    inside = "getComputedStyle(document.querySelector('.panels svg svg'))"
    assert browser.evaluate(f"{inside}.overflow") == "hidden"


def test_the_policy_refuses_other_scripts(browser: Browser, file: Path, tmp_path: Path) -> None:
    """Should escaping ever fail: this page has an element that nobody escaped."""
    opened = file.read_text().replace(
        "<main>", "<main><img src=x onerror=\"document.title='gone'\">"
    )
    (tmp_path / "page.html").write_text(opened + "<script>document.title='gone'</script>")
    browser.open(tmp_path / "page.html")
    assert browser.evaluate("document.title") == f"normprobe: {ATTACK}"
    assert any("Content Security Policy" in text for text in browser.complaints())


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1400, 900)])
def test_the_first_screen_has_the_model_the_sentence_and_the_figure(
    width: int, height: int, browser: Browser, file: Path
) -> None:
    browser.open(file, width=width, height=height)
    assert "57 x" in text(browser, "header .verdict b")
    for place in ("h1", "header .verdict", "header .panel .chart"):
        end = browser.evaluate(f"document.querySelector('{place}').getBoundingClientRect().bottom")
        assert 0 < end <= height, place


def test_an_interval_in_a_sentence_is_as_dark_as_other_small_print(
    browser: Browser, file: Path
) -> None:
    browser.open(file)
    browser.evaluate(
        "document.body.append(Object.assign(document.createElement('span'), "
        "{className: 'interval'})); 0"
    )
    assert browser.evaluate("getComputedStyle(document.body.lastChild).opacity") == "1"


def test_a_long_reason_blows_up_no_row(browser: Browser, tmp_path: Path) -> None:
    rows = pd.DataFrame({"sample": ["a", "b"], "reason": ["short", "the picture is broken " * 40]})
    page = page_of_folders(run_folder(tmp_path / "run", "other", skipped=rows))
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    browser.open(tmp_path / "page.html", width=390)
    cell = "document.querySelector('tbody tr:last-child .long div')"
    height = "document.querySelector('tbody tr:last-child').getBoundingClientRect().height"
    assert browser.evaluate(height) < 90
    assert browser.evaluate(f"{cell}.scrollHeight") > 200
    browser.evaluate(f"{cell}.focus()")  # all of it is there to be read
    assert browser.evaluate(height) > 200


def test_the_mouse_reads_the_same_layer_in_both_panels(browser: Browser, file: Path) -> None:
    browser.open(file)
    x, y = browser.centre(".panels .chart")
    assert hidden(browser, ".panels .tip")
    browser.mouse("mouseMoved", x, y)
    tips = browser.evaluate(
        "[...document.querySelector('.panels').querySelectorAll('.tip')].map(t => t.textContent)"
    )
    layer = int(re.match(r"layer (\d+)", tips[0]).group(1))
    assert layer in range(13, 18)
    rows = made_tables.layers(31).set_index(["group", "layer"])
    for tip, column in zip(tips, ("norm_mean", "angle_mean"), strict=True):
        assert tip.startswith(f"layer {layer}")
        for group in ("visual", "text"):
            shown = float(re.search(rf"{group} ([\d.]+)", tip).group(1))
            assert shown == pytest.approx(rows.loc[(group, layer), column], rel=1e-3)
    browser.mouse("mouseMoved", 1, 1)
    assert hidden(browser, ".panels .tip")


def test_a_tap_reads_a_value_that_stays(browser: Browser, file: Path) -> None:
    browser.open(file, width=390, height=844)
    browser.tap(".panels .chart", across=0.99)
    assert not hidden(browser, ".panels .tip")
    assert text(browser, ".panels .tip b") == "layer 31"
    browser.tap(".panels .chart", across=0.55)  # no room beside it: not over what is read
    covered = browser.evaluate(
        "((tip, dot) => tip.left < dot.right && tip.right > dot.left && tip.top < dot.bottom)("
        "...['.panels .tip', '.panels circle.dot'].map("
        "name => document.querySelector(name).getBoundingClientRect()))"
    )
    assert not covered
    browser.tap(".dots .chart")
    assert "mean" in text(browser, ".dots .tip")
    browser.tap(".grid .chart", across=0.9)
    assert text(browser, ".grid .tip") == "1.500 x even attention"


@pytest.mark.parametrize(
    ("place", "keys", "told"),
    [
        (".curves", ["ArrowRight"] * 3, "layer 2"),
        (".curves", ["End", "ArrowLeft"], "layer 30"),
        (".dots", ["ArrowDown", "ArrowDown"], "vision encoder (d = 192), special"),
        (".grid", ["ArrowRight", "ArrowRight"], "1.500 x even attention"),
    ],
)
def test_the_keyboard_reads_values(
    place: str, keys: list[str], told: str, browser: Browser, file: Path
) -> None:
    browser.open(file)
    browser.evaluate(f"document.querySelector('{place} .chart').focus()")
    for key in keys:
        browser.press(key)
    assert text(browser, f"{place} .tip").startswith(told)
    browser.press("Escape")
    assert hidden(browser, f"{place} .tip")


def test_a_click_hides_a_group_and_brings_it_back(browser: Browser, file: Path) -> None:
    browser.open(file)
    key = ".curves .keys button:nth-child(2)"
    browser.click(key)
    assert lines(browser, "#run-1 .curves") == ["visual", "special", "structural"]
    assert browser.evaluate(f"document.querySelector('{key}').ariaPressed") == "false"
    browser.click(key)
    assert "text" in lines(browser, "#run-1 .curves")


def test_the_scale_and_the_quantity_change(browser: Browser, file: Path) -> None:
    browser.open(file)
    assert text(browser, ".curves .scale") == "log scale"
    logarithmic = first_point(browser)
    browser.click(".curves .scale")
    assert text(browser, ".curves .scale") == "linear scale"
    assert abs(first_point(browser) - logarithmic) > 5
    browser.evaluate(
        "(s => { s.selectedIndex = 1; s.dispatchEvent(new Event('change')); })"
        "(document.querySelector('.curves select'))"
    )
    label = browser.evaluate("document.querySelector('.curves .chart').ariaLabel")
    assert label.startswith("cosine between layer input and output")
    drawn = browser.evaluate("[...document.querySelectorAll('path')].map(p => p.getAttribute('d'))")
    assert not any("NaN" in path or "Infinity" in path for path in drawn)


def test_a_table_sorts_by_number_and_back(browser: Browser, file: Path) -> None:
    browser.open(file)
    table = "#run-2 table"
    place = browser.evaluate(
        f"[...document.querySelectorAll('{table} th')].findIndex("
        "head => head.textContent === 'norm mean')"
    )
    head = f"{table} th:nth-child({place + 1})"

    def column() -> list[float]:
        return [
            float(cell)
            for cell in browser.evaluate(
                f"[...document.querySelectorAll('{table} td:nth-child({place + 1})')]"
                ".map(cell => cell.textContent)"
            )
        ]

    before = column()
    assert before != sorted(before)
    for order, expected in (
        ("ascending", sorted(before)),
        ("descending", sorted(before, reverse=True)),
        (None, before),
    ):
        browser.click(f"{head} button")
        assert column() == expected
        assert browser.evaluate(f"document.querySelector('{head}').ariaSort") == order


def test_a_table_is_copied(browser: Browser, file: Path) -> None:
    browser.open(file)
    browser.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    table = "#run-3 h3:last-of-type + .table"
    buttons = f"{table} .tools button"
    browser.click(f"{buttons}:nth-of-type(1)")
    csv = browser.evaluate("window.copied").splitlines()
    assert csv[0] == "table,end,rank,token id,token,special,norm"
    browser.click(f"{buttons}:nth-of-type(2)")
    markdown = browser.evaluate("window.copied").splitlines()
    assert markdown[0] == "| table | end | rank | token id | token | special | norm |"
    assert markdown[1] == "| --- | --- | --- | --- | --- | --- | --- |"
    assert len(markdown) == len(csv) + 1
    assert text(browser, f"{buttons}:nth-of-type(2)") == "Copied"
    browser.click(f"{buttons}:nth-of-type(3)")
    read = read_latex(browser.evaluate("window.copied"))
    shown = [
        browser.evaluate(f"[...document.querySelectorAll('{row} > *')].map(c => c.textContent)")
        for row in (
            f"{table} thead tr",
            *(f"{table} tbody tr:nth-child({n + 1})" for n in range(len(csv) - 1)),
        )
    ]
    heads = [(name,) for name in shown[0]]
    own = latex(ReadableTable(heads, shown[1:], [letter == "r" for letter in read.columns]))
    assert read.columns == "llrrllr"
    assert read.rows == read_latex(own).rows  # the same signs, where LaTeX needs other ones
    assert (read.caption, read.label) == ("Loudest and quietest rows", "Loudest-and-quietest-rows")


def test_a_figure_is_saved_as_it_looks(browser: Browser, file: Path) -> None:
    browser.open(file)
    browser.evaluate(
        "URL.createObjectURL = (blob) => { window.saved = blob.text(); return '#'; };"
        "HTMLAnchorElement.prototype.click = function () { window.name = this.download; }; 0"
    )
    browser.click(".panels .tools button[aria-label='save as SVG']")
    assert browser.evaluate("window.name") == "L2-norm.svg"
    svg = ElementTree.fromstring(browser.evaluate("window.saved"))
    assert float(svg.get("width")) > 100
    strokes = {
        path.get("data-series"): path.get("style")
        for path in svg.iter("{http://www.w3.org/2000/svg}path")
    }
    assert set(strokes) == {"visual", "text"}
    assert "var(" not in strokes["visual"]
    assert re.search(r"stroke:(?!none)", strokes["visual"])


#: Text that is cut off: wider than the window, outside of its picture, or wider than its element
#: where that does not scroll.
CUT_OFF = """
[...document.querySelectorAll("body *")].filter((element) => {
  if (!element.checkVisibility() || !element.textContent.trim()) return false;
  if (element.closest("script, .frame, nav")) return false;
  const box = element.getBoundingClientRect();
  const svg = element.tagName === "text" && element.closest("svg").getBoundingClientRect();
  if (svg && (box.left < svg.left - 1 || box.right > svg.right + 1 || box.bottom > svg.bottom + 1))
    return true;
  if (box.left < -1 || box.right > innerWidth + 1) return true;
  return element instanceof HTMLElement && element.clientWidth && getComputedStyle(element)
    .display !== "inline" && element.scrollWidth > element.clientWidth + 1;
}).map((element) => `${element.tagName} ${element.className} ${element.textContent.slice(0, 40)}`)
"""


@pytest.mark.parametrize("width", [390, 768, 1400])
def test_no_text_is_cut_off(width: int, browser: Browser, file: Path) -> None:
    browser.open(file, width=width)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(CUT_OFF) == []
    small = browser.evaluate(
        "Math.min(...[...document.querySelectorAll('.chart text, td, p, button')]"
        ".map(e => parseFloat(getComputedStyle(e).fontSize) *"
        " (e.closest('svg') ? e.closest('svg').getBoundingClientRect().width"
        " / e.closest('svg').viewBox.baseVal.width : 1)))"
    )
    assert small >= 11


def test_a_table_that_scrolls_says_so(browser: Browser, file: Path) -> None:
    browser.open(file, width=390)
    wide = browser.evaluate(
        "[...document.querySelectorAll('.table')].map(t => [t.querySelector('.hint').textContent,"
        " t.querySelector('.frame').scrollWidth > t.querySelector('.frame').clientWidth + 1])"
    )
    assert any(scrolls for _, scrolls in wide)
    assert all(bool(hint) == scrolls for hint, scrolls in wide)


def test_the_contents_stay_and_follow(browser: Browser, file: Path) -> None:
    browser.open(file, width=1400)
    current = "[...document.querySelectorAll('nav a[aria-current]')].map(a => a.hash)"
    browser.evaluate("document.querySelector('#run-2').scrollIntoView()")
    browser.evaluate("new Promise((done) => setTimeout(done, 200))")
    assert browser.evaluate(current) == ["#run-2"]
    assert browser.evaluate("document.querySelector('nav').getBoundingClientRect().top") == 0


def luminance(browser: Browser, selector: str, name: str) -> float:
    style = f"getComputedStyle(document.querySelector('{selector}')).{name}"
    red, green, blue = map(int, re.findall(r"\d+", browser.evaluate(style))[:3])
    return (0.21 * red + 0.72 * green + 0.07 * blue) / 255


def test_dark_is_dark_and_paper_is_white(browser: Browser, file: Path) -> None:
    browser.open(file, dark=True)
    assert luminance(browser, "html body", "backgroundColor") < 0.15
    for words in ("h1", ".verdict", ".note", "td", "nav a"):
        assert luminance(browser, words, "color") > 0.5
    assert luminance(browser, ".chart text", "fill") > 0.5
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.send("Emulation.setEmulatedMedia", media="print", features=dark)
    assert luminance(browser, "html body", "backgroundColor") == pytest.approx(1)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1400])
def test_nothing_keeps_people_from_using_it(
    width: int, dark: bool, browser: Browser, file: Path
) -> None:
    script = axe_script()
    browser.open(file, width=width, dark=dark)
    browser.evaluate(f"{script}; 0")
    found = browser.evaluate(
        "axe.run().then(({violations}) => violations.flatMap(v => v.nodes.map("
        "n => `${v.impact}: ${v.id} ${n.html} ${n.failureSummary}`)))"
    )
    assert [text for text in found if text.startswith(("serious", "critical"))] == []


def test_paper_has_no_switches_and_no_heading_without_its_text(
    browser: Browser, file: Path, tmp_path: Path
) -> None:
    browser.open(file)
    browser.send("Emulation.setEmulatedMedia", media="print")
    for absent in ("nav", ".tools", ".files", ".tip"):
        shown = f"getComputedStyle(document.querySelector('{absent}')).display"
        assert browser.evaluate(shown) == "none"
    assert browser.evaluate("document.querySelector('select').checkVisibility()")
    browser.send("Emulation.setEmulatedMedia", media="")
    margin, heading_and_two_lines = 40, 60  # points
    for height in range(6, 18):  # of paper, in inches: headings come to lie everywhere on it
        browser.print(tmp_path / "page.pdf", height)
        pdf = (tmp_path / "page.pdf").read_bytes()
        # The outline says how far above the bottom each heading begins.
        found = re.findall(rb"/Title \(.*?\)\n/Dest \[\d+ 0 R /XYZ \S+ (\S+) ", pdf)
        assert len(found) >= 10
        assert min(map(float, found)) > margin + heading_and_two_lines, height
