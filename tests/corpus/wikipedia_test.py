"""Tests of pages of dumps: which are articles, and the text of wikitext."""

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.corpus import wikipedia
from bert_tf.corpus import wikitext
from bert_tf.corpus.documents import Chunk
from bert_tf.corpus.documents import Document
from bert_tf.errors import UserError
from tests.support import corpus_case

_HEADER = (
    b'<mediawiki><siteinfo><namespaces><namespace key="0" /><namespace '
    b'key="10" case="first-letter">Vorlage</namespace><namespace key="6">'
    b"Datei</namespace></namespaces></siteinfo>"
)


def _read(page, **options):
    contents = page if isinstance(page, bytes) else page.encode()
    chunk = Chunk("a.xml", 0, "wikipedia", contents, _HEADER)
    return next(wikipedia.read(chunk, **options))


class ReadTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("{{Disambiguation|surname}}", True),
        ("{{Letter-NumberCombDisambig}}", True),
        ("{{Human name disambiguation}}", True),
        ("{{ Begriffsklärung }}", True),
        ("{{Homonymie de personnes}}", True),
        ("{{Page d'homonymie}}", True),
        ("{{неоднозначность}}", True),
        ("{{人名の曖昧さ回避}}", True),
        ("{{消歧义页}}", True),
        ("{{Rozcestník - příjmení}}", True),
        ("{{Disambig-cleanup}}", True),
        ("{{Homonymie dans les communes}}", True),
        ("{{Toponymie}}", True),
        ("{{gren}}", True),
        ("{{Айрық}}", True),
        ("{{Täpsustus}}", True),
        ("{{صفحة توضيح}}", True),
        ("{{ توضيح }}", True),
        ("{{అయోమయ నివృత్తి}}", True),
        # This template marks a link, so the page is an article.
        ("{{Disambiguation needed|date=May}}", False),
        ("{{Voir homonymes}}", False),
        ("{{Begriffsklärungshinweis}}", False),
        ("{{dpa}}", False),
        # These templates link an article to a disambiguation page.
        ("{{значения|Ядро (значения)}}", False),
        ("{{Другие значения}}", False),
        ("{{توضيح|3=القاهرة (توضيح)}}", False),
    )
    def test_templates_mark_disambiguation_pages(self, template, expected):
        found = _read(corpus_case.page(1, f"Text {template}."))
        reason = getattr(found, "reason", None)
        self.assertEqual(reason == wikipedia.DISAMBIGUATION, expected)

    @parameterized.parameters(
        ("Mercury (disambiguation)", wikipedia.DISAMBIGUATION),
        ("Ядро (значения)", wikipedia.DISAMBIGUATION),
        ("Disambiguation (book)", None),
    )
    def test_titles_mark_disambiguation_pages(self, title, reason):
        page = corpus_case.page(1, "Text.").replace("Title 1", title)
        self.assertEqual(getattr(_read(page), "reason", None), reason)

    @parameterized.parameters(
        ("Vorlage:Box", wikipedia.OTHER_NAMESPACE),
        ("datei:A.jpg", wikipedia.OTHER_NAMESPACE),
        ("Alien: Die Rückkehr", None),
    )
    def test_titles_give_the_namespace_without_ns(self, title, reason):
        page = corpus_case.page(1, "Text.").replace("Title 1", title)
        page = page.replace("<ns>0</ns>", "")
        self.assertEqual(getattr(_read(page), "reason", None), reason)

    @parameterized.parameters(
        "#REDIRECT [[A]]",
        "#WEITERLEITUNG [[A]]",
        " #перенаправление:[[A]]",
        "#अनुप्रेषित [[A]]",
        "#เปลี่ยนทาง[[A|b]]",
    )
    def test_redirects_are_found_by_their_text(self, text):
        found = _read(corpus_case.page(1, text))
        self.assertEqual(found.reason, wikipedia.REDIRECT)

    @parameterized.parameters(
        "# [[A]] is first", "#[[A]] is first", "#A is [[B]]"
    )
    def test_lists_are_no_redirects(self, text):
        self.assertIsInstance(_read(corpus_case.page(1, text)), Document)

    def test_hides_links_to_the_namespaces_of_the_header(self):
        page = corpus_case.page(1, "[[Datei:A|B]]Text [[Vorlage:C|D]].")
        self.assertEqual(_read(page).paragraphs, ("Text D.",))

    def test_names_the_byte_that_is_not_utf8(self):
        page = corpus_case.page(1, "Stroeme.").encode().replace(b"oe", b"\xf6")
        place = page.index(b"\xf6")
        with self.assertRaisesRegex(UserError, f"a.xml .*byte {place} .*0xf6"):
            _read(page)

    def test_replaces_invalid_utf8(self):
        page = corpus_case.page(1, "Stroeme.").encode().replace(b"oe", b"\xf6")
        found = _read(page, replace_invalid=True)
        self.assertEqual(found.paragraphs, ("Str\ufffdme.",))


_HIDDEN = frozenset({"datei", "file", "image", "media", "category"})


class ExtractTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        # A dump's header lacks these older names of the namespace of files.
        ("[[Bild:A b.JPG|mini|Mit [[Link]]]]Der Text.", "Der Text."),
        ("[[Imagen:A.svg]]El [[Kurs:Ort.de|texto]].", "El texto."),
        ("[[:Datei:A.jpg|Eine Datei]] und [[A: B]].", "Eine Datei und A: B."),
        # The first variant in -{...}- is kept; one with the flag H is not.
        ("-{zh-hans:简体; zh-hant:繁體}-和-{原文}-。", "简体和原文。"),
        ("-{H|zh-hans:a;zh-hant:b}--{A|zh-cn:甲;zh-tw:乙}-丙。", "甲丙。"),
        ("-{zh-cn:[[计算机]]; zh-tw:電腦}-；-{a:b}-", "计算机；a:b"),
        # Nested or unclosed markup must not swallow the text behind it.
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
    def test_keeps_the_text_that_a_reader_sees(self, text, expected):
        self.assertEqual("\n".join(wikitext.extract(text, _HIDDEN)), expected)


if __name__ == "__main__":
    tf.test.main()
