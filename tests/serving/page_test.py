"""Tests of the server's page in headless Chromium, with every head.

Pictures of the page are kept in .cache/page; each test prints their paths.
"""

import json
import math
import pathlib
import re
import subprocess
import tempfile
import urllib.error
import urllib.request

import pytest
import tensorflow as tf
from absl import flags
from absl.testing import parameterized
from selenium.webdriver.common.keys import Keys

from tests.support import browser
from tests.support import every_head
from tests.support import live_server
from tests.support import toy_models

_PICTURES = pathlib.Path(__file__).resolve().parents[2] / ".cache" / "page"
_MARKUP = "<img src=x onerror='window.broken = 1'><b>cat</b> & \"dog\""
# JavaScript counts these characters twice, which shifts later offsets.
_EMOJI = "\U0001f642 cafe\u0301 \U0001f469\u200d\U0001f469 "
_MINUS = "\u2212"


def _percent(probability):
    if 0 < probability < 0.001:
        return "< 0.1 %"
    return f"{100 * probability:.1f} %"


@pytest.mark.environment
class PageTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.browser = browser.start()
        cls.addClassCleanup(cls.browser.close)
        folder = tempfile.mkdtemp(dir=flags.FLAGS.test_tmpdir)
        published = every_head.publish()
        models = {name: one.output_dir for name, one in published.items()}
        models["ids"] = published["classification"].ids_dir
        server = live_server.serve(folder, models)
        _, cls.address = cls.enterClassContext(server)
        _PICTURES.mkdir(parents=True, exist_ok=True)

    def setUp(self):
        super().setUp()
        self.browser.use_dark(False)
        self.browser.use_width(None)
        self.browser.errors()

    def tearDown(self):
        self.assertEmpty(self.browser.errors())
        super().tearDown()

    def _open(self, model):
        self.browser.open(f"http://{self.address}/#{model}")
        self.browser.find("textarea")

    def _type(self, **fields):
        """Puts text into fields; the driver cannot type all characters."""
        for name, text in fields.items():
            field = self.browser.find(f"#field-{name}")
            self.browser.script(
                "arguments[0].value = arguments[1];"
                "arguments[0].dispatchEvent(new Event('input'));",
                field,
                text,
            )

    def _ask(self, model, **fields):
        """Sends a request to a model through the page."""
        self._open(model)
        self._type(**fields)
        self._submit()

    def _submit(self):
        self.browser.script(
            "document.getElementById('answer').replaceChildren();"
        )
        self.browser.find("button.primary").click()
        self._wait_for_answer()

    def _wait_for_answer(self):
        self.browser.wait(
            lambda: (
                self.browser.all("#answer > *")
                and not self.browser.all("#result[aria-busy=true]")
            ),
            "There is no answer.",
        )

    def _post(self, path, body):
        """Posts to the server itself; returns the status and the answer."""
        request = urllib.request.Request(
            f"http://{self.address}/v1/models/{path}", json.dumps(body).encode()
        )
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def _predict(self, model, signature="serving_default", **instance):
        status, answer = self._post(
            f"{model}:predict",
            {"signature_name": signature, "instances": [instance]},
        )
        self.assertEqual(status, 200, answer)
        return answer["predictions"][0]

    def _keep(self, name):
        path = _PICTURES / f"{name}.png"
        self.browser.screenshot(path)
        print(path)  # noqa: T201

    def _each(self, selector, value):
        """Returns a value in JavaScript of each element x."""
        return self.browser.script(
            f"return Array.from(document.querySelectorAll('{selector}'),"
            f"(x) => {value});"
        )

    def _bars(self, selector="#answer .bars"):
        """Returns pairs of name and percentage, and the chosen names."""
        return (
            list(
                zip(
                    self.browser.texts(f"{selector} .name"),
                    self.browser.texts(f"{selector} .share"),
                    strict=True,
                )
            ),
            self.browser.texts(f"{selector} .chosen .name"),
        )

    def _assert_bars(self, names, probabilities, chosen):
        """Checks that all bars are there, the longest first."""
        pairs = sorted(
            zip(probabilities, names, strict=True), key=lambda pair: -pair[0]
        )
        expected = [(name, _percent(x)) for x, name in pairs]
        shown, shown_as_chosen = self._bars()
        self.assertEqual(shown, expected)
        self.assertCountEqual(shown_as_chosen, chosen)
        # Widths are styles, so the text does not show errors in them.
        widths = self._each(
            "#answer .filled", "x.offsetWidth / x.parentNode.offsetWidth"
        )
        self.assertAllClose(widths, [x for x, _ in pairs], atol=0.01)

    @parameterized.named_parameters(
        ("classification", {"text": "the cat sat on 東"}),
        ("pair", {"text": "the cat", "text_pair": "dog on the mat ."}),
        ("next_sentence", {"text": "the dog", "text_pair": "cat sat ."}),
    )
    def test_labels_show_as_bars(self, fields):
        name = self._testMethodName.removeprefix("test_labels_show_as_bars_")
        self._ask(name, **fields)
        answer = self._predict(name, **fields)
        status, classes = self._post(
            f"{name}:classify",
            {"signature_name": "classify", "examples": [fields]},
        )
        self.assertEqual(status, 200, classes)
        names = [label for label, _ in classes["results"][0]]
        self.assertLen(names, len(answer["probabilities"]))
        self._assert_bars(names, answer["probabilities"], [answer["label"]])
        headline = self.browser.find("#answer .headline").text
        self.assertEqual(headline, answer["label"])
        self.assertRegex(self.browser.find("#time").text, r"^in [\d.]+ ms")
        self._keep(name)

    def test_several_labels_make_the_headline(self):
        fields = {"text": "cat , dog"}
        self._ask("multi_label", **fields)
        answer = self._predict("multi_label", **fields)
        chosen = [label for label in answer["labels"] if label]
        self._assert_bars(
            ("no", "yes", "ümlaut"), answer["probabilities"], chosen
        )
        headline = self.browser.find("#answer .headline").text
        self.assertEqual(headline, ", ".join(chosen) or "No label holds")
        self._keep("multi_label")

    def test_regression_shows_the_score(self):
        fields = {"text": "the cat", "text_pair": "東 on ."}
        self._ask("regression", **fields)
        score = self._predict("regression", **fields)
        expected = f"{score:.3f}".replace("-", _MINUS)
        self.assertEqual(self.browser.find(".headline").text, expected)
        self._keep("regression")

    def test_answer_is_marked_after_surrogates(self):
        found = 0
        for question in ("the cat", "dog", "on 東 .", "mat"):
            fields = {
                "question": question,
                "context": f"{_EMOJI}the cat sat on the mat . dog , 東",
            }
            answer = self._predict("question_answering", **fields)
            if answer["start"] < len(_EMOJI):
                continue
            found += 1
            self._ask("question_answering", **fields)
            self.assertEqual(self.browser.find("mark").text, answer["answer"])
            self.assertEqual(
                answer["answer"],
                fields["context"][answer["start"] : answer["end"]],
            )
            before = self.browser.script(
                "return document.querySelector('mark')"
                ".previousSibling.textContent;"
            )
            self.assertEqual(before, fields["context"][: answer["start"]])
            self.assertEqual(
                self.browser.find(".context").text, fields["context"]
            )
            shares = self.browser.texts(".facts dd")
            self.assertEqual(
                shares,
                [
                    _percent(answer["score"]),
                    _percent(answer["no_answer_score"]),
                    f"{answer['start']} to {answer['end']}",
                ],
            )
            self._keep("question_answering")
        self.assertGreater(found, 0)

    def test_empty_context_shows_no_answer(self):
        fields = {"question": "the cat", "context": ""}
        self.assertEqual(
            self._predict("question_answering", **fields)["start"], -1
        )
        self._ask("question_answering", **fields)
        headline = self.browser.find(".headline").text
        self.assertEqual(headline, "No answer in this context")
        self.assertEmpty(self.browser.all("mark"))

    def test_best_choice_is_the_headline(self):
        choices = ["sat on the mat", "東", "<b>dog</b>"]
        self._ask(
            "multiple_choice",
            text="the cat",
            choices="\n".join((choices[0], "", *choices[1:], " ")),
        )
        answer = self._predict(
            "multiple_choice", text="the cat", choices=choices
        )
        best = choices[answer["index"]]
        self._assert_bars(choices, answer["probabilities"], [best])
        self.assertEqual(self.browser.find(".headline").text, best)
        self._keep("multiple_choice")

    @parameterized.parameters(
        (f"{_EMOJI}the cat sat , 東 mats dog on the mat .", 1, True),
        (f"{_EMOJI}on . on cat , the dog", 2, False),
    )
    def test_kinds_of_entity_have_colours(self, text, num_kinds, has_long_ones):
        """Words of one entity are joined, and each kind has a color."""
        self._ask("tagging", text=text)
        answer = self._predict("tagging", text=text)
        expected = _entities(text, answer)
        text_of = "x.lastChild.textContent"
        shown = self._each(".entity", f"[{text_of}, x.firstChild.textContent]")
        self.assertEqual([tuple(pair) for pair in shown], expected)
        # The whole text must be shown, with tag names in between.
        self.assertEqual(
            self.browser.script(
                "const text = document.querySelector('.tagged')"
                ".cloneNode(true);"
                "text.querySelectorAll('.kind').forEach((x) => x.remove());"
                "return text.textContent;"
            ),
            text,
        )
        kinds = {kind for kind, _ in expected}
        self.assertLen(kinds, num_kinds)
        is_long = len(expected) < sum(tag != "O" for tag in answer["tags"])
        self.assertEqual(is_long, has_long_ones)
        legend = [
            re.sub(r" × \d+$", "", line)
            for line in self.browser.texts(".legend li")
        ]
        self.assertCountEqual(legend, kinds)
        colour = "getComputedStyle(x).backgroundColor"
        colours = self._each(".entity", f"[{text_of}, {colour}]")
        self.assertLen({tuple(pair) for pair in colours}, len(kinds))
        self.assertLen({colour for _, colour in colours}, len(kinds))
        self._keep("tagging")

    def test_chosen_tokens_fill_the_masks(self):
        text = "the [MASK] sat on [MASK] ."
        self._ask("fill_mask", text=text)
        answer = self._predict("fill_mask", text=text)
        groups = self.browser.all("#answer .mask")
        self.assertLen(groups, 2)
        shown, _ = self._bars("#answer .mask")
        expected = [
            (token, _percent(probability))
            for tokens, probabilities in zip(
                answer["tokens"], answer["probabilities"], strict=True
            )
            for token, probability in zip(tokens, probabilities, strict=True)
        ]
        self.assertEqual(shown, expected)
        first, second = answer["tokens"]
        self.assertEqual(
            self.browser.texts("#answer mark"),
            [token.removeprefix("##") for token in (first[0], second[0])],
        )
        self._keep("fill_mask")
        self.browser.all("#answer .mask:last-child input")[1].click()
        self.assertEqual(
            self.browser.texts("#answer mark"),
            [token.removeprefix("##") for token in (first[0], second[1])],
        )

    def test_adds_a_mask_to_a_text_without_one(self):
        self._ask("fill_mask", text="the cat")
        headline = self.browser.find(".headline").text
        self.assertEqual(headline, "The text has no [MASK]")
        self.browser.find("#field-text").send_keys(" ")
        self.browser.find("button.small").click()
        field = self.browser.find("#field-text")
        self.assertEqual(field.get_attribute("value"), "the cat [MASK]")

    def test_embeddings_show_length_and_similarity(self):
        vectors = []
        self._open("embeddings")
        self.browser.use_dark(True)
        for text in ("the cat", "dog on 東 ."):
            vectors.append(self._predict("embeddings", text=text))
            self._type(text=text)
            self._submit()
        shown = self.browser.texts(".facts dd")
        self.assertEqual(shown[0], "16")
        self.assertAllClose(float(shown[1]), math.hypot(*vectors[1]), 1e-4)
        bars, _ = self._bars()
        cosine = sum(x * y for x, y in zip(*vectors, strict=True))
        cosine /= math.hypot(*vectors[0]) * math.hypot(*vectors[1])
        self.assertLen(bars, 1)
        self.assertEqual(bars[0][0], "the cat")
        self.assertAllClose(
            float(bars[0][1].replace(_MINUS, "-")), cosine, atol=6e-4
        )
        self._keep("embeddings")

    def test_attention_of_a_head_is_drawn(self):
        fields = {"text": "the cat sat", "text_pair": "on 東 ."}
        self._ask("pair", **fields)
        answer = self._predict("pair", "attention", **fields)
        self.browser.find("#attention-button").click()
        self.browser.find(".heads")
        pictures = self.browser.all(".thumbnail")
        layers, heads = len(answer["attention"]), len(answer["attention"][0])
        self.assertLen(pictures, layers * heads)
        # The keys move to layer 2, head 2 and enlarge it.
        pictures[0].send_keys(Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
        self.browser.actions().send_keys(Keys.ENTER).perform()
        self.assertEqual(
            self.browser.find(".enlarged h3").text, "Layer 2, head 2"
        )
        tokens = [token for token in answer["tokens"] if token]
        self.assertEqual(self.browser.texts(".lines text"), [*tokens, *tokens])
        self._assert_lines_of_row(answer["attention"][1][1], tokens, 2)
        self._keep("attention")
        self.browser.script("arguments[0].focus()", self.browser.find(".lines"))
        self.browser.actions().move_to_element(
            self.browser.find(".enlarged h3")
        ).send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN).perform()
        self.assertStartsWith(
            self.browser.find(".readout").text, f"{tokens[1]} looks at"
        )
        # The attention of the next request must appear without a click.
        self._type(text="dog")
        self._submit()
        self.browser.wait(
            lambda: "dog" in self.browser.texts(".lines text"),
            "The attention stayed that of the text before.",
        )

    def _assert_lines_of_row(self, weights, tokens, row):
        """Points at a token, and checks the lines that lead from it."""
        text = self.browser.all(".lines text")[row]
        self.browser.actions().move_to_element(text).perform()
        readout = self.browser.find(".readout").text
        best = max(range(len(tokens)), key=lambda i: weights[row][i])
        self.assertStartsWith(
            readout,
            f"{tokens[row]} looks at {tokens[best]} "
            f"{_percent(weights[row][best])}",
        )
        ends = "[x.y1.baseVal.value, x.y2.baseVal.value]"
        lines = self._each(".lines line", ends)
        self.assertLen({start for start, _ in lines}, 1)
        seen = sum(x >= 0.02 for x in weights[row][: len(tokens)])
        self.assertLen(lines, seen)

    def test_takes_json_where_a_model_takes_no_text(self):
        row = {
            "input_ids": [2, 5, 6, 3],
            "input_mask": [1, 1, 1, 1],
            "segment_ids": [0, 0, 0, 0],
        }
        self._ask("ids", json=json.dumps(row))
        answer = self._predict("ids", **row)
        shown = json.loads(self.browser.find("#answer pre").text)
        self.assertAllClose(shown["probabilities"], answer["probabilities"])
        self._type(json="{")
        self._submit()
        self.assertIn(
            "This is not JSON", self.browser.find("#answer .problem").text
        )

    def test_examples_suit_the_labels(self):
        module = f"http://{self.address}/page/heads.js"
        for labels, start in (
            (None, "I ordered a new card"),
            (["card_arrival", "refund"], "I ordered a new card"),
            (["negative", "positive"], "A quiet, funny film"),
            (["Sports", "World"], "The home side won"),
        ):
            head = {
                "name": "classification",
                "fields": [{"name": "text"}],
                "examples": [],
            }
            examples = self.browser.script(
                "return import(arguments[0]).then(({examplesOf}) =>"
                "examplesOf(arguments[1], arguments[2]));",
                module,
                head,
                labels,
            )
            self.assertStartsWith(examples[0]["text"], start)

    def test_no_choices_show_a_message(self):
        self._ask("multiple_choice", text="the cat", choices="\n")
        headline = self.browser.find("#answer .headline").text
        self.assertEqual(headline, "There is nothing to choose from")

    def test_attention_of_long_texts_is_not_requested(self):
        self._ask("classification", text="the cat " * 1500)
        self.browser.find("#attention-button").click()
        message = self.browser.find("#attention .problem").text
        self.assertIn("2 × 2 heads on 3000 tokens are 36 million", message)

    def test_curl_line_sends_the_same_request(self):
        text = f'it\'s {_EMOJI}\n"cat" \\ $HOME `dog` %s'
        self._ask("classification", text=text)
        self.browser.find("#curl-part summary").click()
        url, body = _arguments_of_curl(self.browser.find("#curl").text)
        with urllib.request.urlopen(url, body.encode()) as answer:
            raw = answer.read().decode()
        self.assertEqual(json.loads(body)["instances"], [{"text": text}])
        self.browser.find("#raw-part summary").click()
        self.assertEqual(
            json.loads(self.browser.find("#raw").text), json.loads(raw)
        )
        self._keep("curl")

    @parameterized.parameters(*every_head.NAMES)
    def test_text_is_never_markup(self, name):
        self._open(name)
        fields = {
            field.get_attribute("name"): f"{_MARKUP} [MASK]"
            for field in self.browser.all("textarea")
        }
        if name == "multiple_choice":
            fields["choices"] = f"{_MARKUP}\n{_MARKUP}</textarea>"
        self._type(**fields)
        self._submit()
        self.assertEmpty(self.browser.all(".problem"))
        if self.browser.find("#attention-part, #more").text.startswith("Show"):
            self.browser.find("#attention-button").click()
            self.browser.find(".heads")
        self.assertEmpty(self.browser.all("main img, main b, main script"))
        self.assertIsNone(self.browser.script("return window.broken ?? null;"))

    def test_policy_lets_nothing_else_run_or_load(self):
        self._open("classification")
        self.browser.script(
            "const script = document.createElement('script');"
            "script.textContent = 'window.broken = 1';"
            "document.body.append(script);"
            "const image = new Image();"
            "image.src = 'https://example.org/x.png';"
            "document.body.append(image);"
        )
        self.assertIsNone(self.browser.script("return window.broken ?? null;"))
        errors = self.browser.errors()
        self.assertLen(errors, 2)
        for error in errors:
            self.assertIn("Content Security Policy", error)
        loaded = self.browser.script(
            "return performance.getEntriesByType('resource')"
            ".filter((entry) => entry.responseStatus)"
            ".map((entry) => entry.name);"
        )
        self.assertGreater(len(loaded), 5)
        for url in loaded:
            self.assertStartsWith(url, f"http://{self.address}/")

    def test_errors_of_the_server_are_shown_as_they_are(self):
        row = {"input_ids": [2, 3], "<b>nothing</b>": [1, 1]}
        self._ask("ids", json=json.dumps(row))
        status, answer = self._post("ids:predict", {"instances": [row]})
        self.assertEqual(status, 400)
        self.assertEqual(
            self.browser.find("#answer .problem h3").text,
            "The server answered 400 Bad Request",
        )
        message = self.browser.find("#answer .problem pre")
        self.assertEqual(message.get_property("textContent"), answer["error"])
        self._keep("error")
        self.assertLen(self.browser.errors(), 1)
        # The page must still work after an error.
        ones = [1, 1]
        row = {"input_ids": [2, 3], "input_mask": ones, "segment_ids": ones}
        self._type(json=json.dumps(row))
        self._submit()
        self.assertEmpty(self.browser.all(".problem"))

    @parameterized.parameters(
        ("pair", "text_pair", "Second text", "A man is playing a guitar."),
        ("classification", "text", "Text", None),
    )
    def test_blank_texts_are_refused(self, model, name, label, first):
        self._open(model)
        field = self.browser.find("#field-text")
        self.assertEqual(
            field.get_attribute("value"),
            first or "I ordered a new card two weeks ago. When will it arrive?",
        )
        self._type(**{name: " \n"})
        self._submit()
        self.assertEqual(
            self.browser.find("#answer .problem pre").text,
            f'Type something into the field "{label}".',
        )
        self._type(**{name: "the dog"})
        self._submit()
        self.assertEmpty(self.browser.all(".problem"))

    def test_works_by_keyboard_alone(self):
        self._open("classification")
        self.browser.actions().send_keys(*[Keys.TAB] * 3).perform()
        self.browser.actions().key_down(Keys.CONTROL).send_keys("a").key_up(
            Keys.CONTROL
        ).send_keys("the dog").perform()
        self.assertEqual(
            self.browser.find("#field-text").get_attribute("value"), "the dog"
        )
        self.browser.actions().key_down(Keys.CONTROL).send_keys(
            Keys.ENTER
        ).key_up(Keys.CONTROL).perform()
        self.browser.find("#answer .headline")
        answer = self._predict("classification", text="the dog")
        self.assertEqual(
            self.browser.find("#answer .headline").text, answer["label"]
        )

    def test_keeps_what_was_typed_for_the_next_model(self):
        self._open("classification")
        example = self.browser.find("#field-text").get_attribute("value")
        self._type(text="the dog")
        for model, expected in (("tagging", "the dog"), ("embeddings", None)):
            picker = self.browser.find("#model")
            self.browser.script(
                "arguments[0].value = arguments[1];"
                "arguments[0].dispatchEvent(new Event('change'));",
                picker,
                model,
            )
            title = {"tagging": "Tagging", "embeddings": "Embedding"}[model]
            self.browser.wait(
                lambda title=title: self.browser.find("#task").text == title,
                "The model did not change.",
            )
            field = self.browser.find("#field-text")
            self.assertEqual(
                field.get_attribute("value"), expected or "the dog"
            )
        self.assertNotEqual(example, "the dog")

    @parameterized.parameters(*every_head.NAMES, "ids")
    def test_controls_have_names_and_fit_a_phone(self, name):
        """All controls have names; on phones, nothing scrolls sideways."""
        self._open(name)
        self.browser.use_width(360)
        self.browser.use_dark(True)
        if name != "ids":
            self.browser.find("button.primary").click()
            self._wait_for_answer()
        if self.browser.script(
            "return !document.getElementById('attention-part').hidden;"
        ):
            self.browser.find("#attention-button").click()
            self.browser.find(".heads")
        for element in self.browser.all(
            "textarea, select, button, input, summary, a, canvas[role=img]"
        ):
            if element.is_displayed():
                self.assertNotEmpty(element.accessible_name)
        widths = self.browser.script(
            "const page = document.documentElement;"
            "return [page.scrollWidth, page.clientWidth];"
        )
        self.assertEqual(*widths)
        self._keep(f"{name}_narrow")

    def test_absent_server_shows_a_problem(self):
        self._open("classification")
        self.browser.set_offline(True)
        try:
            self._submit()
        finally:
            self.browser.set_offline(False)
        title = self.browser.find("#answer .problem h3").text
        self.assertEqual(title, "The server did not answer")
        self.assertNotEmpty(self.browser.errors())


@pytest.mark.environment
class SearchPageTest(tf.test.TestCase):
    def test_shows_the_nearest_texts(self):
        window = browser.start()
        self.addCleanup(window.close)
        lines = f"dog on 東 .\nthe cat\n{_MARKUP}\n"
        texts = self.create_tempfile("texts.txt", lines).full_path
        path = every_head.publish()["embeddings"].output_dir
        with toy_models.serving(path, search_file=texts) as (_, config):
            window.open(f"http://127.0.0.1:{config.rest_api_port}/search")
            window.find("#query").send_keys("the cat" + Keys.ENTER)
            window.wait(lambda: window.all(".bars li"), "There is no answer.")
            names = window.texts(".bars .name")
            self.assertEqual(names[0], "the cat")
            self.assertCountEqual(names, lines.splitlines())
            self.assertEqual(window.texts(".bars .share")[0], "1.000")
            self.assertEqual(window.texts(".bars .quiet")[0], "texts.txt:2")
            _PICTURES.mkdir(parents=True, exist_ok=True)
            window.screenshot(_PICTURES / "search.png")
            self.assertEmpty(window.errors())


def _arguments_of_curl(line):
    """Parses a curl command as a shell does; returns URL and body."""
    words = subprocess.run(
        ["sh", "-c", f"curl() {{ printf '%s\\0' \"$@\"; }}\n{line}"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    quiet, url, option, body, end = words
    assert (quiet, option, end) == ("-s", "-d", "")
    return url, body


def _entities(text, answer):
    """Returns types and texts of the tagged entities, by CoNLL's rules."""
    found, previous = [], "O"
    for tag, start, end in zip(
        answer["tags"], answer["starts"], answer["ends"], strict=True
    ):
        if tag.startswith("I-") and previous[2:] == tag[2:]:
            kind, first, _ = found.pop()
            found.append((kind, first, end))
        elif tag not in ("", "O"):
            found.append((tag.partition("-")[2] or tag, start, end))
        previous = tag
    return [(kind, text[start:end]) for kind, start, end in found]


if __name__ == "__main__":
    tf.test.main()
