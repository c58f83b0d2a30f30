"""Tests of the text of wikitext, beside the golden of a whole dump."""

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.corpus import wikitext

_HIDDEN = frozenset({"datei", "file", "image", "media", "category"})


class ExtractTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        # Older names of the namespace of files, which no header has.
        ("[[Bild:A b.JPG|mini|Mit [[Link]]]]Der Text.", "Der Text."),
        ("[[Imagen:A.svg]]El [[Kurs:Ort.de|texto]].", "El texto."),
        ("[[:Datei:A.jpg|Eine Datei]] und [[A: B]].", "Eine Datei und A: B."),
        # Several scripts.
        ("-{zh-hans:简体; zh-hant:繁體}-和-{原文}-。", "简体和原文。"),
        ("-{H|zh-hans:a;zh-hant:b}--{A|zh-cn:甲;zh-tw:乙}-丙。", "甲丙。"),
        ("-{zh-cn:[[计算机]]; zh-tw:電腦}-；-{a:b}-", "计算机；a:b"),
        # Markup that nests or is not closed.
        ("A<ref name=x>b {{c|d=[[e]]}}</ref> f<ref name=x /> g.", "A f g."),
        ("Is {{a|{{b|{{c}}}}|d}}here.", "Is here."),
        ("{|\n| a\n{|\n| b\n|}\n|}\nBehind.", "Behind."),
        ("<gallery>\nA.jpg|b\n</gallery>\nText <math>x</math>.", "Text."),
        ("[http://a.org label] &ndash; &lt;b&gt; <nowiki>[[c]]</nowiki>",
         "label – <b> [[c]]"),
        ("* list\n# list\n; term : text\n== Head ==\nText.", "Text."),
        ("#REDIRECT is text here, __NOTOC__ not.", ""),
        ("One.<hr>Two.\n----\nThree.", "One.\nTwo.\nThree."),
        ("Text.\n\n[[simple:Text]]\n[[zh-min-nan:Text]]", "Text."),
    )  # fmt: skip
    def test_text_that_a_reader_sees(self, text, expected):
        self.assertEqual("\n".join(wikitext.extract(text, _HIDDEN)), expected)


if __name__ == "__main__":
    tf.test.main()
