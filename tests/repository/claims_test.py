"""Tests that the pages show the committed figures, and of the check itself."""

import tensorflow as tf
from absl.testing import parameterized

from tests.support import repository
from tools import check_claims

_FIGURES = {"a.rate": 546907.08, "a.share": 30.21, "b": -1.2412, "c": 1.4e-6}
_PAGE = """# Page

| rate | share |
|---|---|
| 1 | 2 |

<!-- claims: a.* -->

| rate of 7 | share |
|---|---|
| 546,907 | 30.2% |

It is -1.24 by SQuAD 1.1, `x=3`, int8. <!-- claims: b -->

```text
4
```
"""


def _check(page, checked="", body="9.7", figures=_FIGURES):
    return list(check_claims.check(page, checked, body, figures))


class PagesTest(tf.test.TestCase):
    def test_every_page_shows_the_committed_figures(self):
        self.assertEqual(check_claims.main([]), 0)

    def test_changed_number_of_the_readme_fails(self):
        page = (repository.ROOT / "README.md").read_text(encoding="utf-8")
        figures = check_claims.read_figures()
        count = f"{figures['scores.count']} within"
        self.assertEqual(page.count(count), 1)
        changed = page.replace(count, "14 within")
        (error,) = _check(changed, figures=figures)
        self.assertIn("14 for scores.count, which is 13", error)


class CheckTest(tf.test.TestCase, parameterized.TestCase):
    def test_page_with_its_figures_has_no_errors(self):
        self.assertEmpty(_check(_PAGE))

    @parameterized.parameters(
        ("546,907", "546,908", "7: 546,908 for a.rate, which is 546907"),
        ("30.2%", "30.3%", "7: 30.3 for a.share"),
        ("-1.24", "1.24", "13: 1.24 for b"),
        ("| 546,907 |", "| |", "7: numbers ['30.2'] for the figures"),
        ("claims: b", "claims: d", r"13: numbers ['-1.24'] for the figures []"),
    )
    def test_changed_number_or_name_fails(self, old, new, expected):
        self.assertIn(old, _PAGE)
        (error,) = _check(_PAGE.replace(old, new))
        self.assertStartsWith(error, expected)

    def test_unmarked_number_of_a_checked_part_fails(self):
        (error,) = _check(_PAGE, checked=_PAGE[: _PAGE.index("<!--")])
        self.assertStartsWith(error, "5: numbers ['1', '2'] for the figures []")

    @parameterized.parameters(("9.7†", 0), ("7†", 1), ("9.8†", 1), ("9.8*", 0))
    def test_dagger_has_to_stand_in_the_results(self, number, errors):
        page = f"It takes {number} ms.\n"
        self.assertLen(_check(page, checked=page), errors)

    @parameterized.parameters(
        ("547,000", 546907, True),
        ("546,000", 546907, False),
        ("100", 101, False),
        ("1.4e-6", 1.43e-6, True),
        ("1.4e-6", 1.46e-6, False),
        ("+0.13", 0.125, True),
        ("13", 13, True),
        ("13", 12, False),
        ("0.0", 0.04, True),
    )
    def test_number_shows_a_figure_that_rounds_to_it(self, text, value, result):
        self.assertEqual(check_claims.shows(text, value), result)


if __name__ == "__main__":
    tf.test.main()
