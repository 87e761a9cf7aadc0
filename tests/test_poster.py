"""The poster, opened in a real browser: it fits, it can be read, it is true, and so is its picture.

Without a browser these tests fail, and say what to install.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import Page, page, pixels
from fanout import doctor
from fanout.converting import REPORT
from poster import PAGE, PICTURE, SIZE, page_hash, told_hash
from world import ROOT, SCRIPTS, World

pytestmark = pytest.mark.browser

TEXT = PAGE.read_text(encoding="utf-8")
SCHEMES = ("light", "dark")
# WCAG 2.2 AA for text that is not large; here for all text.
CONTRAST = 4.5
SMALLEST = 14.5
WIDER = "<style>text, p, h1, h2, span { letter-spacing: 0.05em }</style>"
original = pytest.mark.skipif(
    (ROOT / REPORT).exists(),
    reason="its agents and its picture are those of the original",
)
# Every piece of text: its words, rows on the screen, size and colour.
TEXTS = """
(() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  while (walker.nextNode()) {
    const node = walker.currentNode, range = document.createRange();
    if (!node.data.trim()) continue;
    range.selectNodeContents(node);
    const style = getComputedStyle(node.parentElement);
    const colour = node.parentElement.closest('svg') ? style.fill : style.color;
    const rows = [...range.getClientRects()].filter(r => r.width > 0.5)
      .map(r => [r.left, r.top, r.right, r.bottom]);
    found.push({text: node.data.trim(), rows, size: parseFloat(style.fontSize), colour});
  }
  return found;
})()
"""
BOXES = """
[...document.querySelectorAll('body, body *')].map(e => {
  const r = e.getBoundingClientRect(), size = parseFloat(getComputedStyle(e).fontSize);
  const wide = e.scrollWidth > e.clientWidth + 1;
  const high = e.scrollHeight > e.clientHeight + 0.2 * size;
  return {name: e.tagName + ' ' + e.textContent.trim().slice(0, 30),
          box: [r.left, r.top, r.right, r.bottom],
          tight: !(e instanceof SVGElement) && e.clientWidth > 0 && (wide || high)};
})
"""
Box = tuple[float, float, float, float]


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with page() as opened:
        yield opened


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> str:
    return request.param


def overflowing(browser: Page, size: int = SIZE) -> list[str]:
    """What does not fit into its place."""
    root = "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
    wrong = [] if browser.ask(root) == [size, size] else ["the page scrolls"]
    for found in browser.ask(BOXES):
        left, top, right, bottom = found["box"]
        if left < -0.5 or top < -0.5 or right > size + 0.5 or bottom > size + 0.5:
            wrong.append(f"outside: {found['name']}")
        if found["tight"]:
            wrong.append(f"larger than its box: {found['name']}")
    return wrong


def parts(browser: Page) -> list[tuple[str, Box]]:
    """The big parts of the page, in order."""
    answer = browser.ask(
        "[...document.body.children].map(e => { const r = e.getBoundingClientRect();"
        " return [e.tagName, r.left, r.top, r.right, r.bottom]; })"
    )
    return [(name, (left, top, right, bottom)) for name, left, top, right, bottom in answer]


def overlapping(texts: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Pairs of texts that cover each other; lines of one text stand close together."""
    rows = [(found["text"], row) for found in texts for row in found["rows"]]
    wrong: list[tuple[str, str]] = []
    for number, (text, (left, top, right, bottom)) in enumerate(rows):
        for other, (left2, top2, right2, bottom2) in rows[number + 1 :]:
            wide = min(right, right2) - max(left, left2)
            high = min(bottom, bottom2) - max(top, top2)
            if text != other and wide > 1 and high > 0.3 * min(bottom - top, bottom2 - top2):
                wrong.append((text, other))
    return wrong


def test_nothing_overflows_in_a_square(browser: Page, scheme: str) -> None:
    browser.show(PAGE, SIZE, scheme)
    assert overflowing(browser) == []
    assert overlapping(browser.ask(TEXTS)) == []


def test_a_wider_font_fits_too(browser: Page) -> None:
    """Which font there is, differs from machine to machine."""
    browser.show(PAGE, SIZE, "light")
    browser.ask(f"document.head.insertAdjacentHTML('beforeend', {json.dumps(WIDER)})")
    assert overflowing(browser) == []
    assert overlapping(browser.ask(TEXTS)) == []
    found = parts(browser)
    assert [name for name, _ in found] == ["HEADER", "svg", "DIV", "FOOTER"]
    for (_, above), (name, below) in itertools.pairwise(found):
        assert above[3] <= below[1], name


def test_what_does_not_fit_is_seen(browser: Page) -> None:
    """So that the tests above cannot pass by seeing nothing."""
    browser.show(PAGE, SIZE, "light")
    browser.ask("document.querySelector('h1').style.fontSize = '14rem'")
    assert overflowing(browser)
    browser.show(PAGE, SIZE, "light")
    browser.ask("document.querySelector('svg').style.marginTop = '-9rem'")
    assert overlapping(browser.ask(TEXTS))


@pytest.mark.parametrize("size", [540, 2160])
def test_it_fits_any_square(browser: Page, size: int) -> None:
    """All sizes are parts of the window's."""
    browser.show(PAGE, size, "light")
    assert overflowing(browser, size) == []
    assert overlapping(browser.ask(TEXTS)) == []


def luminance(colour: tuple[int, ...]) -> float:
    """The relative luminance of WCAG."""
    parts = [value / 255 for value in colour]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """The contrast of two colours, from 1 to 21."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def behind(rows: list[bytes], box: list[float]) -> tuple[int, ...]:
    """The colour that most of a place has: what its text stands on."""
    left, top, right, bottom = (max(0, min(SIZE, round(value))) for value in box)
    counted: Counter[bytes] = Counter()
    for row in rows[top:bottom]:
        counted.update(row[at : at + 3] for at in range(3 * left, 3 * right, 3))
    return tuple(counted.most_common(1)[0][0])


def test_every_text_can_be_read(browser: Page, scheme: str) -> None:
    browser.show(PAGE, SIZE, scheme)
    texts = browser.ask(TEXTS)
    _, _, rows = pixels(browser.picture())
    assert len(texts) > 40
    for found in texts:
        assert found["size"] >= SMALLEST, found
        colour = tuple(int(n) for n in re.findall(r"\d+", found["colour"])[:3])
        assert found["rows"], found
        for box in found["rows"]:
            assert contrast(colour, behind(rows, box)) >= CONTRAST, found


def test_light_and_dark_are_told_apart(browser: Page) -> None:
    grounds: list[tuple[int, ...]] = []
    for scheme in SCHEMES:
        browser.show(PAGE, SIZE, scheme)
        grounds.append(behind(pixels(browser.picture())[2], [0, 0, SIZE, 40]))
    assert luminance(grounds[0]) > 0.8
    assert luminance(grounds[1]) < 0.05


def test_it_needs_nothing_from_elsewhere() -> None:
    assert not re.search(r"<script|<link|<img|@import|@font-face|url\(|\ssrc=|\shref=", TEXT)
    assert "http" not in TEXT


# --- What it says ---------------------------------------------------------------------------


def verbs(world: World, script: str) -> list[str]:
    """The verbs of a command, by its help."""
    page = world.run("--help", script=SCRIPTS / script).out
    return re.findall(r"(?m)^    ([a-z]+)(?= |$)", page.partition("\n  VERB\n")[2])


def cards() -> dict[str, str]:
    """What each card's side note says, by its title."""
    return dict(re.findall(r"<h2><code>([^<]+)</code><span>([^<]+)</span>", TEXT))


def test_the_commands_and_their_verbs_are_there(world: World) -> None:
    found = cards()
    assert len(found) == 4
    for script, note in found.items():
        assert (SCRIPTS / script).is_file(), script
        told = re.fullmatch(r"(\d+) verbs", note)
        if told:
            assert int(told[1]) == len(verbs(world, script)), script
    assert sum(note.endswith(" verbs") for note in found.values()) == 2
    named = re.findall(r"<p>([A-Za-z, ]+?)\. (?:A prompt|One more)", TEXT)
    words = [word.strip().lower() for text in named for word in text.split(",")]
    assert len(words) == 10
    every = [verb for script in found for verb in verbs(world, script)]
    # `watch` and `steer` are what capture, attach and send are for.
    assert [word for word in words if word not in every] == ["watch", "steer"]


def test_it_names_all_commands_but_the_one_that_checks_them() -> None:
    named = set(re.findall(r"\b[a-z_]+\.py\b", TEXT))
    assert named | {"self_test.py"} == {path.name for path in SCRIPTS.glob("*.py")}


@original
def test_the_mapped_agents_are_there() -> None:
    files = sorted((ROOT / "examples").glob("harness-*.json"))
    names = [json.loads(path.read_text())["display_name"] for path in files]
    names = sorted(name for name in names if name)
    told = re.search(r"<p>([^<;]+); drafts a mapping", TEXT)
    assert told is not None
    assert sorted(told[1].split(", ")) == names
    assert f"{len(names)} agent CLIs mapped" in TEXT


def test_the_requirements_are_those_of_the_doctor() -> None:
    for name, least in doctor.MINIMUM.items():
        assert f"{name} {'.'.join(map(str, least))}+" in TEXT
    assert 'requires-python = ">=3.11"' in (ROOT / "pyproject.toml").read_text()
    assert "Python 3.11+" in TEXT
    assert "dependencies = []" in (ROOT / "pyproject.toml").read_text()
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_it_says_what_it_is() -> None:
    head = (ROOT / "SKILL.md").read_text().splitlines()[1]
    assert f"<title>{head.removeprefix('name: ')}</title>" in TEXT
    assert "experimental" in TEXT
    assert "Agents run commands on your machine." in TEXT
    steps = re.findall(r'class="step"[^>]*>([^<]+)<', TEXT)
    assert steps == ["Plan", "Fan out", "Verify", "Integrate"]


# --- Its picture ----------------------------------------------------------------------------


@original
def test_the_picture_is_of_this_page() -> None:
    picture = PICTURE.read_bytes()
    assert told_hash(picture) == page_hash(), "`make poster` makes it anew"
    assert len(picture) < 300_000
    assert pixels(picture)[:2] == (SIZE, SIZE)


def blurred(rows: list[bytes], cell: int = 45) -> list[float]:
    """The brightness of each cell of a picture."""
    found: list[float] = []
    for top in range(0, SIZE, cell):
        for left in range(0, SIZE, cell):
            part = b"".join(r[3 * left : 3 * (left + cell)] for r in rows[top : top + cell])
            found.append(sum(part) / len(part))
    return found


def difference(one: list[float], other: list[float]) -> float:
    """How far two pictures are apart, on average."""
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / len(one)


@original
def test_the_picture_shows_what_the_browser_shows(browser: Page) -> None:
    kept = blurred(pixels(PICTURE.read_bytes())[2])
    browser.show(PAGE, SIZE, "light")
    # Another font is up to 6 apart. An older page is told by its hash, above.
    assert difference(kept, blurred(pixels(browser.picture())[2])) < 8
    browser.ask("document.body.style.visibility = 'hidden'")
    assert difference(kept, blurred(pixels(browser.picture())[2])) > 10, "or this sees nothing"


def test_without_a_browser_it_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setattr("browser.NAMES", ("chromium", "google-chrome"))
    with pytest.raises(Exception, match="apt-get install chromium"), page():
        pass
