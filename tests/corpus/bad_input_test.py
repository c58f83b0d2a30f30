"""Tests of input that is damaged, too large or too slow to read."""

import os
import pathlib
import signal
from unittest import mock

import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.corpus import inputs
from bert_tf.corpus import wikipedia
from bert_tf.corpus.documents import Chunk
from bert_tf.errors import UserError
from bert_tf.errors import WorkerEndedError
from bert_tf.io import compression
from tests.support import corpus_case


class SlowPagesTest(corpus_case.CorpusCase):
    @pytest.mark.slow
    def test_drops_pages_that_the_parser_cannot_finish(self):
        # Templates that are not closed take the parser, in C, minutes.
        pages = ["First.", "{{a|" * 20000, "Second.", "<b>" * 40000, "Third."]
        self.write("a.xml", corpus_case.dump(pages))
        with mock.patch.object(wikipedia, "_MAX_SECONDS", 0.5):
            report = self.extract("a.xml")
        self.assertEqual(self.read(), "First.\n\nSecond.\n\nThird.\n")
        self.assertEqual(self.dropped(report), {wikipedia.TOO_SLOW: 2})
        samples = report["dropped"][wikipedia.TOO_SLOW]["samples"]
        self.assertCountEqual(
            [(x["id"], x["text"]) for x in samples],
            [("2", "Title 2"), ("4", "Title 4")],
        )

    def test_parser_that_ends_is_counted_or_reported(self):
        chunk = Chunk(
            "a.xml", 0, "wikipedia", corpus_case.page(1, "Text.").encode()
        )
        parser = wikipedia.PageParser()
        self.enter_context(
            mock.patch.object(wikipedia, "_shared_parser", return_value=parser)
        )
        for number, expected in (
            (signal.SIGSEGV, wikipedia.TOO_DEEP),
            (signal.SIGPROF, wikipedia.TOO_SLOW),
        ):
            os.kill(parser.start(), number)
            (dropped,) = wikipedia.read(chunk)
            self.assertEqual(dropped.reason, expected)
        os.kill(parser.start(), signal.SIGKILL)
        with self.assertRaisesRegex(WorkerEndedError, "status -9, .* memory"):
            list(wikipedia.read(chunk))
        (document,) = wikipedia.read(chunk)
        self.assertEqual(document.paragraphs, ("Text.",))


class LargeDocumentTest(corpus_case.CorpusCase):
    @parameterized.parameters(
        ("text", "blank lines must separate", 0),
        ("jsonl", "each line must be one object", 4),
        ("wikipedia", "a history has each revision", 1),
    )
    def test_is_refused_without_being_read_whole(self, format, advice, place):
        texts = ["Text."] * 5
        texts.insert(place, "\u00e4" * 3000)
        written = {
            "text": "\n\n".join(texts),
            "jsonl": self.rows(texts),
            "wikipedia": corpus_case.dump(texts),
        }[format]
        source = self.write("a", written)
        sizes = {"_CHUNK_BYTES": 100, "_MAX_DOCUMENT_BYTES": 4000}
        starts = {
            "text": 0,
            "jsonl": 72,
            "wikipedia": written.find("<page><title>Title 2"),
        }
        with (
            mock.patch.multiple(inputs, **sizes),
            mock.patch.object(compression, "_BLOCK_BYTES", 100),
            self.assertRaisesRegex(
                UserError,
                f"{source} has a document of over .* from byte "
                f"{starts[format]} of the decompressed file on; {advice}",
            ),
        ):
            self.extract("a", input_format=format)


class BadInputTest(corpus_case.CorpusCase):
    @parameterized.parameters(
        (
            "a.jsonl",
            '{"text": "x"}\n{"t": "y"}\n',
            r"a\.jsonl, byte 14 .* column 'text'",
        ),
        ("a.jsonl", '{"text": "x"}\n[1]\n', "byte 14 .* JSON object"),
        ("a.jsonl", '{"text": "x"\n', "byte 0 .* not a line of JSON"),
        ("a.jsonl", '{"text": 5}\n', "byte 0 .* has int 5"),
        ("a.jsonl", '{"text": "\\ud83d"}\n', "half of a character"),
        (
            "a.txt",
            b"Right.\nStr\xf6me.\n",
            r"a\.txt is not UTF-8 at byte 10 .*0xf6",
        ),
        ("a.txt", b"R\0i\0g\0h\0t\0", "value 0 at byte 1"),
        ("a.txt", "ab".encode("utf-16")[:-1], "ends inside a character of"),
        ("a.txt", b"\xff\xfe\x00\xdca\0", r"a\.txt is not UTF-16"),
        ("a.xml", b"<html></html>", "no XML dump"),
        (
            "a.xml",
            "<mediawiki><page></page>",
            r"a\.xml ends at byte 24 .*truncated",
        ),
        (
            "a.xml",
            b"<mediawiki><page>&x;</page></mediawiki>",
            "broken .* byte 11",
        ),
        (
            "a.xml",
            corpus_case.dump(["x"]).removesuffix("</mediawiki>")
            + corpus_case.dump(["y"]),
            r"a\.xml is broken XML in the page at byte 112",
        ),
        ("a.parquet", b"PAR1 and more", "not a complete Parquet file"),
        ("a.pdf", b"%PDF", "does not know the format"),
        ("a.json.gz", b"{}", "as jsonl for .json files with one object a"),
        ("wiki-multistream-index.txt.bz2", b"600:10:Title\n", "is the index"),
        ("a.txt", b"", "No text is left .* holds no document"),
    )
    def test_names_file_and_place(self, name, contents, message):
        self.write(name, contents)
        with self.assertRaisesRegex(UserError, message):
            self.extract(name)
        self.assertEmpty([*self.folder.glob("*.report.json")])

    @parameterized.parameters("utf-16-le", "utf-16-be")
    def test_utf16_with_a_mark(self, encoding):
        text = "Str\u00f6me.\n\n\U00020000 und mehr.\n"
        self.write("a.txt", ("\ufeff" + text).encode(encoding))
        # Characters are cut between blocks.
        with mock.patch.object(compression, "_BLOCK_BYTES", 3):
            self.extract("a.txt")
        self.assertEqual(self.read(), text)

    @parameterized.parameters(".bz2", ".gz", ".xz", ".zst")
    def test_truncated_archive_names_its_byte(self, ending):
        path = pathlib.Path(
            self.write(f"a.xml{ending}", corpus_case.dump(["Text."] * 9))
        )
        data = path.read_bytes()
        path.write_bytes(data[:-20])
        with self.assertRaisesRegex(
            UserError, rf"a\.xml\{ending} is not.* byte {len(data) - 20}"
        ):
            self.extract(path.name)

    def test_broken_page_in_a_later_chunk_names_its_byte(self):
        dump = (
            corpus_case.dump(["Text."] * 9)
            .replace("Title 8", "Title & 8")
            .encode()
        )
        self.write("a.xml.bz2", dump)
        place = dump.index(b"<page><title>Title & 8")
        with (
            mock.patch.object(inputs, "_CHUNK_BYTES", 300),
            self.assertRaisesRegex(
                UserError, rf"a\.xml\.bz2 is broken XML .* at byte {place} "
            ),
        ):
            self.extract("a.xml.bz2")

    def test_folders_leave_out_unfinished_parquet_files(self):
        for name in ("set/_temporary/0", "set/year=2020", "_set"):
            os.makedirs(self.path(name))
            self.write(f"{name}/a_b.parquet", "PAR1")
        for name in ("set", "_set"):
            found = inputs.expand(self.path(name), "--input_file")
            own = "year=2020/" if name == "set" else ""
            self.assertEqual(found, [self.path(f"{name}/{own}a_b.parquet")])

    def test_refuses_folders_globs_and_names(self):
        self.write("a.txt", "Text.")
        os.mkfifo(self.path("pipe"))
        with self.assertRaisesRegex(UserError, "pipe is a pipe or device"):
            self.extract("pipe")
        for pattern, message in (
            ("", "is a directory without Parquet files"),
            ("b*.txt", "--input_file matches no file"),
        ):
            with self.assertRaisesRegex(UserError, message):
                self.extract(pattern)
        for output, message in (
            ("a.txt", "must differ from the files that are read"),
            ("b.txt.bz2", "must end in .gz"),
            (".", "Received a directory"),
        ):
            with self.assertRaisesRegex(UserError, message):
                self.extract("a.txt", output)
        with self.assertRaisesRegex(UserError, "needs the language of each"):
            self.extract("a.txt", language_sampling=0.5)
        with self.assertRaisesRegex(UserError, "codes that py3langid detects"):
            self.extract("a.txt", languages="en,xx")


if __name__ == "__main__":
    tf.test.main()
