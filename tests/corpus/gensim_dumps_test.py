"""Extracts gensim's real, shortened dumps and compares with gensim's text.

gensim's `filter_wiki` removes markup with regular expressions. It keeps lists,
captions and headers, so its text has the words of ours and more.
"""

import collections
import functools
import json
import os
import re
import statistics

import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.corpus import inputs
from bert_tf.corpus import wikipedia
from bert_tf.corpus.documents import Document
from tests.support import environments

_ENGLISH = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened"
_BULGARIAN = "bgwiki-latest-pages-articles-shortened.xml"
_PROGRAM = """
import bz2, json, os, sys
from gensim.corpora import wikicorpus
from gensim.test import utils

pages = {}
path = utils.datapath(sys.argv[1] + ".bz2")
with bz2.open(path) as file:
    for title, text, page_id in wikicorpus.extract_pages(file):
        pages[page_id] = [title, wikicorpus.filter_wiki(text)]
print(json.dumps([path, pages]))
"""
# gensim's regular expressions lose most of "Asphalt", so it is not compared.
_LOST_BY_GENSIM = ("657",)
_MANY_WORDS = 50


@functools.cache
def _gensim(name):
    """Returns the path of a dump, and {id: [title, text]} of all its pages."""
    python = environments.make("gensim", "gensim==4.4.0")
    result = environments.run(*(python, "-c", _PROGRAM, name))
    return json.loads(result.splitlines()[-1])


@functools.cache
def _ours(path):
    """Returns the documents and the dropped pages by their ids."""
    documents, dropped = {}, {}
    (file,) = inputs.find(os.path.realpath(path), "wikipedia")
    for chunk in inputs.split(file):
        for page in wikipedia.read(chunk):
            side = documents if isinstance(page, Document) else dropped
            side[page.id] = page
    return documents, dropped


def _count_words(text):
    return collections.Counter(re.findall(r"\w+", text.lower()))


class GensimDumpsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (_ENGLISH, 98, {"redirect": 99, "disambiguation page": 8}, 1),
        (_BULGARIAN, 1, {}, 2),
    )
    @pytest.mark.environment
    def test_pages_are_those_of_gensim(self, name, kept, reasons, others):
        path, pages = _gensim(name)
        documents, dropped = _ours(path)
        self.assertLen(documents, kept)
        counts = collections.Counter(page.reason for page in dropped.values())
        # gensim yields all namespaces here, so no page may be unaccounted for.
        self.assertEqual(counts, reasons | {wikipedia.OTHER_NAMESPACE: others})
        self.assertEqual({*pages}, {*documents, *dropped})
        for number, page in dropped.items():
            self.assertEqual(page.text, pages[number][0])
            if page.reason == wikipedia.REDIRECT:
                self.assertRegex(pages[number][1].lower(), r"^\s*#")

    @parameterized.parameters((_ENGLISH, 0.99, 0.8), (_BULGARIAN, 0.99, 0.5))
    @pytest.mark.environment
    def test_words_are_those_of_gensim(self, name, precision, recall):
        path, pages = _gensim(name)
        documents, _ = _ours(path)
        shares = []
        for number, document in documents.items():
            ours = _count_words("\n".join(document.paragraphs))
            theirs = _count_words(pages[number][1])
            common = (ours & theirs).total()
            if ours.total() > _MANY_WORDS and number not in _LOST_BY_GENSIM:
                self.assertGreater(common / ours.total(), precision, number)
                shares.append(common / theirs.total())
        self.assertGreaterEqual(len(shares), len(documents) * 0.97)
        self.assertGreater(statistics.median(shares), recall)

    @parameterized.parameters(_ENGLISH, _BULGARIAN)
    @pytest.mark.environment
    def test_no_markup_is_left(self, name):
        documents, _ = _ours(_gensim(name)[0])
        text = "\n".join(y for x in documents.values() for y in x.paragraphs)
        for markup in ("[[", "]]", "{{", "}}", "{|", "|}", "<ref", "'''", "=="):
            self.assertNotIn(markup, text)


if __name__ == "__main__":
    tf.test.main()
