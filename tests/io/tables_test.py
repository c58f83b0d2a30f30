"""Tests for bert_tf.io.tables."""

import csv
import gzip
import io
import json
import os

import pyarrow as pa
import tensorflow as tf
from absl.testing import parameterized
from pyarrow import parquet

from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import tables
from tests.support import files_case


class ReadTableTest(files_case.FolderCase):
    def write(self, name, contents):
        if isinstance(contents, str):
            contents = contents.encode()
        files.write_bytes(self.path(name), contents)
        return self.path(name)

    def read(self, name, contents, **options):
        table = tables.read_table(self.write(name, contents), **options)
        return [(row.line, row.values) for row in table.rows]

    def assert_refused(self, message, name, contents, **options):
        with self.assertRaisesRegex(UserError, message):
            self.read(name, contents, **options)

    @parameterized.parameters(
        (".csv", 'text,label\n"a, b",1\nc,2\n'),
        (".tsv", "text\tlabel\na, b\t1\nc\t2\n"),
        (".jsonl", '{"text":"a, b","label":"1"}\n{"text":"c","label":"2"}'),
        (".json", '{"text":"a, b","label":"1"}\n{"text":"c","label":"2"}'),
        (
            ".json",
            '[\n{"text":"a, b","label":"1"}, {"text":"c","label":"2"}\n]\n',
        ),
    )
    def test_every_format_gives_the_same_rows(self, ending, contents):
        expected = [{"text": "a, b", "label": "1"}, {"text": "c", "label": "2"}]
        for name, stored in (
            ("a" + ending, contents.encode()),
            ("A" + ending.upper(), contents.encode()),
            ("a" + ending, b"\xef\xbb\xbf" + contents.encode()),
            ("a" + ending, contents.replace("\n", "\r\n").encode()),
            ("a" + ending + ".gz", gzip.compress(contents.encode())),
        ):
            rows = self.read(name, stored)
            self.assertEqual([values for _, values in rows], expected)

    def test_text_lines_become_rows(self):
        rows = self.read("a.txt", 'one\ttab\r\n\r\n "two"\n\n\n')
        self.assertEqual(
            rows,
            [
                (1, {"text": "one\ttab"}),
                (2, {"text": ""}),
                (3, {"text": ' "two"'}),
            ],
        )

    def test_csv_fields_with_special_characters(self):
        rows = [
            ['he said "no", then left', "x"],
            ["two\nlines\n", ""],
            ["  spaces ", "é,ü"],
            ["x" * 300_000, "long"],
            ['5" pipe', "inch"],
        ]
        buffer = io.StringIO()
        writer = csv.writer(buffer)
        writer.writerow([" a", "b "])
        writer.writerows(rows)
        found = self.read("a.csv", buffer.getvalue())
        self.assertEqual([list(v.values()) for _, v in found], rows)
        self.assertEqual([list(v) for _, v in found], [["a", "b"]] * 5)
        # The second row spans three lines, so the third one is on line 6.
        self.assertEqual([line for line, _ in found], [2, 3, 6, 7, 8])

    def test_quotation_marks_in_tsv_are_characters(self):
        rows = self.read("a.tsv", 'a\tb\n"x\ty"\n""\t"q ""r"" s"\n')
        self.assertEqual(
            rows,
            [(2, {"a": '"x', "b": 'y"'}), (3, {"a": '""', "b": '"q ""r"" s"'})],
        )

    @parameterized.parameters(
        ("a.csv", "a,b\n\n1,2\n\r\n3,4\n\n\n", [3, 5]),
        ("a.tsv", "a\tb\n\n1\t2\n\r\n3\t4\n\n\n", [3, 5]),
        ("a.tsv", "\n\na\tb\n1\t2\n", [4]),
        # With one column, a row may equal the header: it is text.
        ("a.csv", "a\n1\na\n", [2, 3]),
        # With one column, a blank line is a row with an empty text.
        ("a.tsv", "a\n1\n\n3\n\n", [2, 3, 4]),
        ("a.csv", '\na\n"1\n"\n\r\n3\n\n', [3, 5, 6]),
        ("a.jsonl", '\n{"a": 1}\n\n{"a": 2}\n', [2, 4]),
        ("a.json", '\n\n[\n\n{"a": 1,\n"b": 2},\n\n\n{"a":\n2}]', [5, 9]),
        ("a.json", '[{"a": "\\n],["} ,{"a": 2}\n,{"a": 3}]', [1, 1, 2]),
    )
    def test_blank_lines_count_in_line_numbers(self, name, contents, lines):
        rows = self.read(name, contents)
        self.assertEqual([line for line, _ in rows], lines)

    def test_json_values_keep_their_types(self):
        values = {"t": "x", "n": 1.5, "l": ["a", {"b": None}], "f": False}
        for name, contents in (
            ("a.jsonl", json.dumps(values)),
            ("a.json", json.dumps([values], indent=3)),
        ):
            self.assertEqual(self.read(name, contents)[0][1], values)

    def test_spreadsheets_separate_by_other_characters(self):
        expected = [(2, {"a": "1;x", "b": "2,3"}), (3, {"a": "\n", "b": "4"})]
        for separator in ";\t|":
            contents = '\ufeffa,b\r\n"1;x","2,3"\r\n"\n",4\r\n'
            other = contents.replace("2,3", "2.3").replace(",", separator)
            self.assertEqual(
                self.read("a.csv", other.replace("2.3", "2,3")), expected
            )
        for named, rest in (
            ("sep=;", "a,x;b\n1;2\n"),
            ('"sep=|"', "a,x|b\n1|2\n"),
        ):
            self.assertEqual(
                self.read("a.csv", f"{named}\n{rest}"),
                [(3, {"a,x": "1", "b": "2"})],
            )
        # A comma or quotation marks in the header: commas are separators.
        self.assertEqual(
            self.read("a.csv", "a;b,c\n1;2,3\n"),
            [(2, {"a;b": "1;2", "c": "3"})],
        )
        self.assertEqual(
            self.read("a.csv", '"a;b"\n1;2\n'), [(2, {"a;b": "1;2"})]
        )

    def test_file_without_header_has_the_given_columns(self):
        options = {"columns_without_header": ("source", "label", "text")}
        expected = {"source": "s", "label": "0", "text": "t"}
        self.assertEqual(
            self.read("a.tsv", "s\t0\tt\ns\t1\tu\n", **options),
            [(1, expected), (2, {**expected, "label": "1", "text": "u"})],
        )
        self.assertEqual(
            self.read("a.tsv", "label\tsource\ttext\n0\ts\tt\n", **options),
            [(2, expected)],
        )
        self.assertEqual(
            self.read("a.tsv", "index\ttext\n0\tt\n", **options),
            [(2, {"index": "0", "text": "t"})],
        )

    def test_longer_rows_have_their_own_columns(self):
        options = {"columns_of_longer_rows": ("id", "text", "first", "gold")}
        self.assertEqual(
            self.read(
                "a.tsv", "id\ttext\tgold\n1\tA\tx\n2\tB\ty\tz\n", **options
            ),
            [
                (2, {"id": "1", "text": "A", "gold": "x"}),
                (3, {"id": "2", "text": "B", "first": "y", "gold": "z"}),
            ],
        )
        for header, row in (
            ("id\ttext\tlabel", "1\tA\tx\ty"),
            ("id\ttext", "1"),
        ):
            with self.assertRaisesRegex(UserError, "line 2 must have"):
                self.read("a.tsv", f"{header}\n{row}\n", **options)

    def test_broken_rows_raise_or_are_skipped(self):
        contents = "a\tb\n1\t2\n3\n4\t5\t6\n7\t8\n"
        self.assert_refused(
            r"a.tsv, line 3 must have 2 columns.*Received: 1\.",
            "a.tsv",
            contents,
        )
        broken = []
        rows = self.read("a.tsv", contents, on_broken_row=broken.append)
        self.assertEqual([line for line, _ in rows], [2, 5])
        self.assertEqual(broken, [3, 4])

    @parameterized.parameters(
        (r"a.csv, line 3 must have 2 .*: 3; put", "a.csv", "a,b\n1,2\n3,4,5\n"),
        (r"line 3 must .*: 1; quotation", "a.tsv", 'a\tb\n1\t2\n"3\n4"\t5\n'),
        (r"line 2 is not CSV .*unexpected end", "a.csv", 'a,b\n"1,2\n3,4\n'),
        (r"line 3 is not CSV", "a.csv", 'a,b\n1,2\n"3" x,4\n5,6\n'),
        (r"a.csv, line 2 must have 2 columns.*: 1\.", "a.csv", "a;b\n1,2\n"),
        (r"line 2 must have 1 columns.*seems to have ',' between", "a.tsv",
         "a,b\n1\t2,3\n"),
        (r"a.csv, line 3 is the header again", "a.csv", "a,b\n1,2\na,b\n"),
        (r"a.tsv, line 3 is the header again", "a.tsv",
         "a\tb\n1\t2\n\ufeffa\tb\n"),
        (r"line 1 is not readable JSON: .*digits", "a.jsonl",
         '{"a": %s}' % ("9" * 5000)),
        (r"a.csv is empty", "a.csv", ""),
        (r"a.tsv has no rows", "a.tsv", "a\tb\n"),
        (r"has no rows below its header; .* \.txt", "a.csv", "a text\n"),
        (r"a.txt has no rows", "a.txt", "\n\n"),
        (r"a.jsonl has no rows", "a.jsonl", ""),
        (r"a.json has no rows", "a.json", " [ ] "),
        (r"a.jsonl, line 3 is not valid JSON.*column 6", "a.jsonl",
         '{"a": 1}\n\n{"a":}'),
        (r"a.json, line 2 is not valid JSON", "a.json", '[{"a": 1},\n{"a": ]'),
        (r"a.json, line 1 is not valid JSON", "a.json", '[{"a": 1}'),
        (r"line 1 is not valid JSON.*or a list of objects", "a.json",
         '{\n "train": []\n}'),
        (r"line 2 must be a JSON object.*list", "a.jsonl", '{"a": 1}\n[1]'),
        (r"line 3 must be a JSON object.*int", "a.json", '[{"a": 1},\n\n7]'),
        (r"line 1 is not readable JSON", "a.json", "[" * 100_000),
        (r"a.jsonl, line 2 has half of a character, '.ud83d', .*so '",
         "a.jsonl", '{"a": "\\ud83d\\ude00"}\n{"a": "so \\ud83d"}'),
        (r"a.json, line 3 has half of a character, '.ude00', .*so '",
         "a.json", '[{"a": "\\uD83D\\uDE00"},\n\n{"a": "so \\uDE00"}]'),
        (r"a.xlsx must end in .csv, .tsv", "a.xlsx", "a,b\n1,2\n"),
        (r"line 2 is not UTF-8", "a.csv", b"a,b\n\xe9,2\n"),
        (r"a.csv.gz is not a complete gzip file", "a.csv.gz", b"a,b\n1,2\n"),
    )  # fmt: skip
    def test_bad_files_are_refused(self, message, name, contents):
        self.assert_refused(message, name, contents)

    def test_columns_that_nobody_reads_may_share_a_name(self):
        path = self.write("a.csv", "a,b,, b,\n1,2,,3,\n")
        table = tables.read_table(path)
        self.assertEqual(table.columns, ("a",))
        table.require(["a"])
        (row,) = table.rows
        self.assertEqual(row.values, {"a": "1"})
        for name in ("b", ""):
            with self.assertRaisesRegex(UserError, f"'{name}' twice"):
                table.require([name])

    def test_parquet_keeps_columns_and_values(self):
        path = os.path.join(self.create_tempdir().full_path, "a.parquet")
        rows = [{"a": "x", "b": [1, 2]}, {"a": "y", "b": []}]
        parquet.write_table(pa.Table.from_pylist(rows), path)
        table = tables.read_table(path)
        self.assertEqual(table.columns, ("a", "b"))
        self.assertEqual(
            [(row.line, row.values) for row in table.rows],
            list(enumerate(rows, 1)),
        )

    def test_parquet_bytes_become_text_and_names_must_differ(self):
        path = os.path.join(self.create_tempdir().full_path, "a.parquet")
        texts = pa.array(["café".encode()], pa.binary())
        columns = [texts, pa.array([[b"a", b"b"]]), texts, texts]
        names = ["text", "words", "x", "x"]
        parquet.write_table(pa.Table.from_arrays(columns, names), path)
        table = tables.read_table(path)
        self.assertEqual(table.columns, ("text", "words"))
        with self.assertRaisesRegex(UserError, "'x' twice"):
            table.require(["x"])
        (row,) = table.rows
        self.assertEqual(row.values["text"], "café")
        self.assertEqual(row.values["words"], ["a", "b"])

        texts = pa.array(["café".encode("latin-1")], pa.binary())
        parquet.write_table(pa.Table.from_arrays([texts], ["text"]), path)
        with self.assertRaisesRegex(UserError, "a.parquet is damaged"):
            tables.read_table(path)

    def test_missing_column_is_refused_with_advice(self):
        table = tables.read_table(self.write("a.csv", "text:label\na:b\n"))
        with self.assertRaisesRegex(
            UserError, "no column 'text'; its first line .*label'; rename one"
        ):
            table.require(["text"])
        table.require(["text:label"])
        flags = {"text": "--text_column", "label": "--label_column"}
        with self.assertRaisesRegex(
            UserError,
            "names the columns 'text:label'; name another with --label_column",
        ):
            table.require(["text:label", "label"], flags)
        lines = tables.read_table(self.write("a.txt", "x\n"))
        with self.assertRaisesRegex(
            UserError, "no column 'label', as each of its lines is a text; give"
        ):
            lines.require(["label"], flags)

    def test_rows_are_read_lazily(self):
        # The error in line 3 is raised when that line is read.
        path = self.write("a.csv", "a,b\n1,2\n3\n")
        rows = tables.read_table(path).rows
        self.assertEqual(next(rows).values, {"a": "1", "b": "2"})
        with self.assertRaisesRegex(UserError, "line 3"):
            next(rows)


if __name__ == "__main__":
    tf.test.main()
