"""Tests of text extraction as a whole, and of bad input."""

import bz2
import contextlib
import gc
import gzip
import json
import os
import pathlib
import re
import shutil
import signal
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from absl.testing import parameterized
from pyarrow import parquet

from bert_tf.commands.extract_text import ExtractTextConfig
from bert_tf.corpus import inputs
from bert_tf.corpus import readers
from bert_tf.corpus import report as corpus_report
from bert_tf.corpus import run
from bert_tf.corpus import wikipedia
from bert_tf.corpus.documents import Chunk
from bert_tf.errors import UserError
from bert_tf.errors import WorkerEndedError
from bert_tf.io import compression
from tests.support import corpus_case
from tests.support import full_disk
from tests.support.repository import ROOT

_DUMP = ROOT / "tests" / "testdata" / "corpus" / "dump.xml"
_LONG = "A paragraph of many words that two documents share. " * 4
_PARQUET_ROWS = {"text": ["From Parquet.", None], "key": [7, 8]}


class FormatsTest(corpus_case.CorpusCase):
    @pytest.mark.slow
    def test_reads_all_formats_in_the_order_of_the_globs(self):
        self.write("a.txt.gz", "One.\nTwo.\r\n\r\nThree.\n")
        self.write("b.jsonl.zst", self.rows(["Row one.\n\nMore.", "Row two."]))
        self.write("c.ndjson.xz", self.rows(["Three.", "Row xz."]))
        self.write("d.txt.bz2", "\ufeffMark.\n \t\nDie Ströme.\n")
        (self.folder / "set").mkdir()
        parquet.write_table(
            pa.table(_PARQUET_ROWS), self.path("set/train-0.parquet")
        )
        globs = ",".join(map(self.path, ("[abc].*", "d.*", "set")))
        report = run.run(
            ExtractTextConfig(
                input_file=globs, output_file=self.path("out.txt")
            )
        )
        self.assertEqual(
            self.read(),
            "One.\nTwo.\n\nThree.\n\nRow one.\nMore.\n\nRow two.\n\nRow xz.\n\n"
            "Mark.\n\nDie Ströme.\n\nFrom Parquet.\n",
        )
        self.assertEqual(
            self.dropped(report), {"duplicate document": 1, "empty document": 1}
        )
        self.assertEqual(
            report["files"][self.path("out.txt")],
            {"documents": 8, "paragraphs": 10, "characters": 71},
        )
        (sample,) = report["dropped"]["duplicate document"]["samples"]
        self.assertEqual(sample["text"], "Three.")

    @parameterized.parameters(
        ("ab=c.txt", "ab=c.txt", ""),
        ("ab=[c].t*", "ab=c.txt", ""),
        ("ab=d.t*", "d.txt", "ab"),
        ("lg=en/*", "lg=en/e.txt", ""),
        ("de=lg=en/*", "lg=en/e.txt", "de"),
    )
    def test_equals_signs_follow_a_language_or_belong_to_the_path(
        self, given, path, language
    ):
        os.mkdir(self.path("lg=en"))
        for name in ("ab=c.txt", "c.txt", "d.txt", "lg=en/e.txt"):
            self.write(name, "Text.")
        with contextlib.chdir(self.folder):
            (found,) = inputs.find(given, "auto")
        self.assertEqual(found, inputs.InputFile(path, "text", language))

    @parameterized.parameters((5000, 5), (20000, 3), (1 << 26, 2))
    def test_row_groups_of_parquet_are_cut(self, size, least):
        texts = [f"Text of row {i}, {i * i}." for i in range(3000)]
        texts[2900] = None
        table = pa.table({"text": texts, "id": range(3000)})
        path = self.path("a.parquet")
        parquet.write_table(table, path, row_group_size=2500)
        with mock.patch.object(inputs, "_ROWS_BYTES", size):
            (file,) = inputs.find(path, "auto")
            chunks = [*inputs.split(file)]
            documents = [y for x in chunks for y in _read_rows(x)]
        self.assertBetween(len(chunks), least, 10 * least)
        self.assertEqual([x.id for x in documents], [*map(str, range(3000))])
        self.assertEqual(documents[2900].paragraphs, ())
        self.assertEqual(documents[2999].paragraphs, (texts[2999],))
        table = table.set_column(0, "text", [[b"bytes"] * 3000])
        parquet.write_table(table, path, row_group_size=2500)
        with self.assertRaisesRegex(UserError, "row 2499, has bytes"):
            [*_read_rows(Chunk(path, 2499, "parquet", (0, 2499, 2500)))]

    @pytest.mark.slow
    def test_wikipedia_gives_the_reviewed_text(self):
        # Two streams, cut inside a page, must read as a multistream dump does.
        dump = _DUMP.read_bytes()
        path = self.folder / "dewiki-pages-articles.xml-p1p9.bz2"
        path.write_bytes(bz2.compress(dump[:900]) + bz2.compress(dump[900:]))
        with mock.patch.object(inputs, "_CHUNK_BYTES", 4000):
            report = self.extract(path.name, heldout_share=0.0)
        golden = _DUMP.with_name("dump.txt").read_text(encoding="utf-8")
        self.assertEqual(self.read(), golden)
        self.assertEqual(
            self.dropped(report),
            {
                "redirect": 1,
                "disambiguation page": 1,
                "page of another namespace": 1,
                "empty document": 1,
            },
        )

    @parameterized.parameters(1, 400, 1 << 22)
    def test_dumps_joined_in_one_file_keep_their_headers(self, size):
        sites = {"A": 3, "B": 0, "C": 2}
        dumps = [
            corpus_case.dump(["Text."] * count).replace(
                "<siteinfo/>", f"<siteinfo>{site}</siteinfo>"
            )
            for site, count in sites.items()
        ]
        joined = '\n<?xml version="1.0"?>\n'.join(dumps).encode()
        path = self.write("a.xml.bz2", joined[:300])
        with open(path, "ab") as file:
            file.write(bz2.compress(joined[300:]))
        with mock.patch.object(inputs, "_CHUNK_BYTES", size):
            (file,) = inputs.find(path, "auto")
            chunks = [*inputs.split(file)]
        pages = []
        for chunk in chunks:
            end = chunk.start + len(chunk.payload)
            self.assertEqual(joined[chunk.start : end], chunk.payload)
            (site,) = re.findall(rb"<siteinfo>(.)", chunk.header)
            for number in re.findall(rb"<id>(\d)</id>", chunk.payload):
                pages.append(f"{site.decode()}{number.decode()}")
        self.assertEqual(pages, ["A1", "A2", "A3", "C1", "C2"])


class OutputTest(corpus_case.CorpusCase):
    @pytest.mark.slow
    def test_resumes_to_the_same_bytes_for_any_number_of_processes(self):
        texts = [f"Text number {i}, {i * i}." for i in range(2000)]
        texts[1500] = texts[3]
        shards = [f"x-0000{i}-of-00003.txt.gz" for i in range(3)]
        names = [*shards, "x_heldout.txt.gz"]
        flags = {"num_shards": 3, "heldout_share": 0.1}
        data = gzip.compress(self.rows(texts).encode())
        with mock.patch.object(inputs, "_CHUNK_BYTES", 8000):
            (self.folder / "a.jsonl.gz").write_bytes(data[:-40])
            with self.assertRaisesRegex(
                UserError, rf"a.jsonl.gz is not.*ends at byte {len(data) - 40}"
            ):
                self.extract("a.jsonl.gz", "x.txt.gz", **flags)
            self.write("b.jsonl", self.rows(texts[:100]))
            (self.folder / "a.jsonl.gz").write_bytes(data)
            made = os.listdir(self.folder / "x.txt.gz.work" / "parts")
            times = {x: self._time(x) for x in made}
            # Stopped after two shards, which must not be written again.
            with (
                mock.patch.object(run.os, "cpu_count", return_value=1),
                mock.patch.object(run.writing, "write", _write_some(2)),
                self.assertRaises(KeyboardInterrupt),
            ):
                self.extract("a.jsonl.gz", "x.txt.gz", **flags)
            self.assertEqual({x: self._time(x) for x in made}, times)
            self.assertGreater(len(made), 3)
            shard = os.stat(self.folder / shards[0])
            with self.assertRaisesRegex(UserError, r"--heldout_share was 0\.1"):
                self.extract("a.jsonl.gz", "x.txt.gz", num_shards=3)
            self.extract("a.jsonl.gz", "x.txt.gz", **flags)
            self.assertEqual(
                os.stat(self.folder / shards[0]).st_ino, shard.st_ino
            )
            first = [(self.folder / name).read_bytes() for name in names]
            # A kill during cleanup leaves this folder, which must be removed.
            self.assertFalse((self.folder / "x.txt.gz.work").exists())
            (self.folder / "x.txt.gz.work" / "parts").mkdir(parents=True)
            finished = self.extract("a.jsonl.gz", "x.txt.gz", **flags)
            self.assertFalse((self.folder / "x.txt.gz.work").exists())
            flags |= {"num_processes": 2, "overwrite_output_dir": True}
            report = self.extract("a.jsonl.gz", "x.txt.gz", **flags)
        second = [(self.folder / name).read_bytes() for name in names]
        self.assertEqual(first, second)
        self.assertEqual(finished, report)
        self.assertTrue((self.folder / "x.txt.gz.report.png").exists())
        self.assertFalse((self.folder / "x.txt.gz.work").exists())
        pieces = [gzip.decompress(x).decode().split("\n\n") for x in second]
        heldout = {x.strip() for x in pieces.pop()}
        self.assertBetween(len(heldout), 160, 240)
        unique = list(dict.fromkeys(texts))
        self.assertEqual(
            [x.strip() for piece in pieces for x in piece],
            [x for x in unique if x not in heldout],
        )
        for piece in pieces:
            self.assertBetween(len(piece), 550, 650)
        # A part of the corpus must hold out the same documents.
        self.extract("b.jsonl", "y.txt", heldout_share=0.1)
        part = set(self.read("y_heldout.txt").strip().split("\n\n"))
        self.assertEqual(part, heldout & set(texts[:100]))

    def _time(self, part):
        return os.stat(
            self.folder / "x.txt.gz.work" / "parts" / part
        ).st_mtime_ns

    @pytest.mark.slow
    def test_full_disk_keeps_finished_work(self):
        generator = np.random.default_rng(1)
        texts = [
            " ".join(map(str, generator.integers(0, 10**9, 120)))
            for _ in range(250)
        ]
        self.write("a.jsonl", self.rows(texts))
        flags = {"num_shards": 4, "near_duplicate_threshold": 0.8}
        self.extract("a.jsonl", "x.txt", **flags)
        shards = [f"x-0000{i}-of-00004.txt" for i in range(4)]
        reached = set()
        with full_disk.mount(self, megabytes=2) as folder:
            for free in range(20, 2000, 60):
                filler = pathlib.Path(folder, "filler")
                filler.write_bytes(bytes((2048 - free) << 10))
                output = os.path.join(folder, "x.txt")
                try:
                    self.extract("a.jsonl", output, **flags)
                    break
                except UserError as error:
                    self.assertRegex(str(error), "disk is full.*; free")
                finished = sorted(set(shards) & {*os.listdir(folder)})
                reached.add(len(finished))
                filler.unlink()
                # The traceback keeps files mapped, so collect it to free disk.
                gc.collect()
                # Each size starts with an empty folder; two shards resume.
                if len(finished) != 2:
                    for name in set(os.listdir(folder)):
                        _remove(pathlib.Path(folder, name))
                    continue
                times = [os.stat(f"{folder}/{x}").st_mtime_ns for x in finished]
                self.extract("a.jsonl", output, **flags)
                self.assertEqual(
                    times,
                    [os.stat(f"{folder}/{x}").st_mtime_ns for x in finished],
                )
                break
            self.assertContainsSubset({0, 2}, reached)
            for name in shards:
                made = pathlib.Path(folder, name).read_text(encoding="utf-8")
                self.assertEqual(made, self.read(name))

    def test_warns_of_a_small_heldout_text_and_refuses_no_other_text(self):
        self.write("a.jsonl", self.rows([f"Text {i}." for i in range(400)]))
        with self.assertLogs(level="WARNING") as logs:
            report = self.extract("a.jsonl", heldout_share=0.1)
        counts = [x["documents"] for x in report["files"].values()]
        self.assertIn(f"holds out {counts[1]} of 400", logs.output[0])
        with self.assertNoLogs(level="WARNING"):
            self.extract("a.jsonl", "half.txt", heldout_share=0.5)
        for language in ("", "en="):
            self.write("b.jsonl", self.rows(["Text."]))
            with self.assertRaisesRegex(UserError, "holds out all 1 documents"):
                config = ExtractTextConfig(
                    input_file=f"{language}{self.path('b.jsonl')}",
                    output_file=self.path("none.txt"),
                    heldout_share=0.999999,
                )
                corpus_case.run_here(config)

    @pytest.mark.slow
    def test_filters_duplicates_and_languages(self):
        self.write("test.json", json.dumps({"q": [" ".join("abcdefghijklm")]}))
        english = [f"The {i}th text of the small language." for i in range(200)]
        english += [_LONG + "\nOwn.", _LONG, "See A B c d e f g h, i j k l m."]
        german = [f"Der {i}. Text der großen Sprache." for i in range(2000)]
        self.write("en.jsonl", self.rows(english))
        self.write("de.jsonl", self.rows(german))
        report = self.extract(
            f"en={self.path('en.jsonl')},de={self.path('de.jsonl')}",
            exclude_file=self.path("test.json"),
            language_sampling=0.5,
        )
        self.assertEqual(
            self.dropped(report),
            {
                "shares 13 words in a row with --exclude_file": 1,
                "duplicate paragraph": 1,
                "empty document": 1,
            },
        )
        languages = report["languages"]
        before = {x: y["share_before"] ** 0.5 for x, y in languages.items()}
        for name, counts in languages.items():
            expected = before[name] / sum(before.values())
            self.assertNear(counts["share"], expected, 0.03)
        lines = self.read().split("\n")
        self.assertGreaterEqual(lines.count(english[0]), 2)


def _read_rows(chunk):
    return readers.read_parquet(chunk, "text", "id")


def _remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _write_some(count):
    """Returns a `writing.write` that raises after `count` files."""
    left = iter(range(count))
    write = run.writing.write

    def interrupted(*args):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return write(*args)

    return interrupted


_REPORT = {
    "files": {
        "a-0": {"documents": 5, "paragraphs": 9, "characters": 500},
        "a-1": {"documents": 6, "paragraphs": 8, "characters": 300},
        "held": {"documents": 2, "paragraphs": 2, "characters": 90},
    },
    "dropped": {
        "duplicate paragraph": {"count": 7, "characters": 400},
        "empty document": {"count": 3, "characters": 0},
    },
    "languages": {
        "de": {"share_before": 0.75, "share": 0.625},
        "eo": {"share_before": 0.25, "share": 0.375},
    },
    "recipe": {"flags": {"heldout_share": 0.1}},
}


def _bars(axes):
    return [bar.get_width() for bar in axes.patches]


def _names(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


class DrawTest(tf.test.TestCase):
    def test_bars_have_the_counts_of_the_report(self):
        documents, characters, languages = corpus_report.draw(_REPORT).axes
        self.assertEqual(
            _names(documents), ["kept", "held out", "empty document"]
        )
        self.assertEqual(_bars(documents), [11, 2, 3])
        self.assertEqual(
            _names(characters),
            ["kept", "held out", "duplicate paragraph", "empty document"],
        )
        self.assertEqual(_bars(characters), [800, 90, 400, 0])
        self.assertEqual(_names(languages), ["de", "eo"])
        self.assertAllClose(_bars(languages), [75, 25, 62.5, 37.5])


class SlowPagesTest(corpus_case.CorpusCase):
    @pytest.mark.slow
    def test_drops_pages_that_the_parser_cannot_finish(self):
        # The parser, in C, takes minutes for these pages, so it is stopped.
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
    def test_utf16_with_a_mark_becomes_utf8(self, encoding):
        text = "Str\u00f6me.\n\n\U00020000 und mehr.\n"
        self.write("a.txt", ("\ufeff" + text).encode(encoding))
        # Blocks of 3 bytes cut characters, which must be joined again.
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
            ("b.txt.bz2", "cannot end in .bz2"),
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
