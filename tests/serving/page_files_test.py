"""Tests of the page's files: safety, contrast and size."""

import pathlib
import re

from absl.testing import absltest
from absl.testing import parameterized

from bert_tf import serving

_FOLDER = pathlib.Path(serving.__file__).parent / "page"
_NAMES = sorted(path.name for path in _FOLDER.iterdir())
_PAGES = ("index.html", "search.html")
# Colors of text and background; WCAG 2.2 requires a contrast of 4.5.
_PAIRS = (
    ("--ink", "--paper"),
    ("--ink", "--surface"),
    ("--quiet", "--paper"),
    ("--quiet", "--surface"),
    ("--accent", "--paper"),
    ("--accent", "--surface"),
    ("--on-accent", "--accent"),
    ("--marker-ink", "--marker"),
    ("--bad", "--bad-soft"),
    ("--ink", "--bad-soft"),
    *(("--ink", f"--hue-{number}") for number in range(8)),
)
# Bars, and the edges of the chosen one; WCAG requires a contrast of 3.
_SHAPES = (("--accent", "--track"), ("--accent", "--surface"))


def _read(name):
    return (_FOLDER / name).read_text(encoding="utf-8")


def _colours():
    """Returns the colors of the light and the dark theme."""
    light, _, dark = _read("page.css").partition("prefers-color-scheme: dark")
    first = re.search(r":root \{(.*?)\}", light, re.S)[1]
    second = re.search(r":root \{(.*?)\}", dark, re.S)[1]
    parse = re.compile(r"(--[\w-]+): (#[0-9a-f]{6});").findall
    return dict(parse(first)), dict(parse(second))


def _luminance(colour):
    """Returns the relative luminance by WCAG's definition."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4
        for x in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(first, second):
    bright, dark = sorted((_luminance(first), _luminance(second)))[::-1]
    return (bright + 0.05) / (dark + 0.05)


class PageFilesTest(parameterized.TestCase):
    @parameterized.parameters(*_NAMES)
    def test_loads_nothing_from_other_hosts(self, name):
        text = _read(name).replace("http://www.w3.org/2000/svg", "")
        self.assertNotRegex(text, r"https?:|\burl\(|@import|[\"']//")

    @parameterized.parameters(*[x for x in _NAMES if x.endswith(".js")])
    def test_no_text_becomes_markup(self, name):
        self.assertNotRegex(
            _read(name),
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|"
            r"DOMParser|createContextualFragment|srcdoc",
        )

    @parameterized.parameters(*_PAGES)
    def test_has_no_inline_script_or_style(self, name):
        self.assertNotRegex(_read(name), r"<script>|<style|style=|\son\w+=")

    def test_referenced_files_exist(self):
        named = {
            found
            for name in _NAMES
            for found in re.findall(r"/page/([\w.-]+)", _read(name))
        }
        self.assertEqual(named - {"models.json"}, set(_NAMES) - set(_PAGES))

    def test_colours_contrast_in_light_and_dark(self):
        light, dark = _colours()
        self.assertEqual(set(light), set(dark))
        for colours in (light, dark):
            for pairs, least in ((_PAIRS, 4.5), (_SHAPES, 3)):
                for first, second in pairs:
                    contrast = _contrast(colours[first], colours[second])
                    self.assertGreater(contrast, least, (first, second))

    def test_page_is_small(self):
        size = sum((_FOLDER / name).stat().st_size for name in _NAMES)
        self.assertLess(size, 100_000)


if __name__ == "__main__":
    absltest.main()
