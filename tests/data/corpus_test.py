from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.data import corpus
from bert_tf.errors import UserError
from tests.support import files_case


class ReadDocumentsTest(files_case.FilesCase):
    def read(self, *contents, **options):
        files = [
            self.write(f"{i}.txt", text) for i, text in enumerate(contents)
        ]
        return list(corpus.read_documents(files, **options))

    def test_blank_lines_separate_documents(self):
        text = "\n\na b\nc\n \t\nd\u3000\n\u3000\n\n\ne".encode()
        self.assertEqual(self.read(text), [["a b", "c"], ["d"], ["e"]])

    def test_a_file_ends_its_document(self):
        self.assertEqual(self.read(b"a", b"b\n"), [["a"], ["b"]])

    def test_one_document_per_file_ignores_blank_lines(self):
        documents = self.read(
            b"a\n\nb\n", b"\n \n", b"c", one_document_per_file=True
        )
        self.assertEqual(documents, [["a", "b"], ["c"]])

    def test_lines_end_at_line_feed_only(self):
        text = "a\u2028b\x0bc\x0cd\x1ce\x85f\r\n\rg\n".encode()
        self.assertEqual(
            self.read(text), [["a\u2028b\x0bc\x0cd\x1ce\x85f", "g"]]
        )

    def test_as_original_reads_like_the_original(self):
        text = "x \r\r\n\ty\x0bz\r z\n\r\n\u2003\u00e9\u2028\n\n\nend".encode()
        path = self.write("a.txt", text)
        expected = [[]]
        with tf.io.gfile.GFile(path, "r") as file:
            while line := file.readline():
                if not line.strip():
                    expected.append([])
                else:
                    expected[-1].append(line.strip())
        self.assertEqual(
            list(corpus.read_documents([path], as_original=True)),
            [document for document in expected if document],
        )

    def test_sample_takes_whole_documents_wherever_they_are(self):
        texts = [f"Title {i}.\nBody {i}.\n" for i in range(2000)]
        first = self.write("a.txt", "\n".join(texts).encode())
        second = self.write("b.txt", "\n".join(texts[:1000]).encode())
        numbered = [*corpus.read_numbered_lines([first, second], sample=0.1)]
        documents = list(corpus.read_documents([first], sample=0.1))
        self.assertBetween(len(documents), 160, 240)
        for title, body in documents:
            self.assertEqual(title.split()[1], body.split()[1])
        again = [x for x in documents if int(x[0].split()[1][:-1]) < 1000]
        both = documents + again
        self.assertEqual(
            [number for number, _ in numbered],
            [i for i in range(len(both)) for _ in range(2)],
        )
        self.assertEqual([x for _, x in numbered], sum(both, []))
        with self.assertRaisesRegex(UserError, "documents of --sample=1e-09"):
            self.read(b"x\n\ny", sample=1e-9)

    def test_sample_depends_on_more_than_the_first_line(self):
        texts = [f"Chapter\nBody {i}.\nMore {i}.\n" for i in range(2000)]
        path = self.write("a.txt", "\n".join(texts).encode())
        documents = list(corpus.read_documents([path], sample=0.1))
        self.assertBetween(len(documents), 160, 240)
        self.assertLen({len(lines) for lines in documents}, 1)
        with mock.patch.object(corpus, "_HASHED_CHARS", 9):
            other = list(corpus.read_documents([path], sample=0.1))
        self.assertEqual({len(lines) for lines in other}, {3})
        # Only the first two lines are hashed now, so the sample differs.
        self.assertNotEqual(other, documents)

    def test_reads_remote_paths_through_tensorflow(self):
        path = "ram://corpus_test.txt"
        with tf.io.gfile.GFile(path, "w") as file:
            file.write("x\r\n\ny\n")
        self.assertEqual(list(corpus.read_documents([path])), [["x"], ["y"]])
        self.assertEqual(corpus.count_bytes([path]), 6)
        with self.assertRaisesRegex(UserError, "ram://gone.txt cannot be read"):
            list(corpus.read_documents(["ram://gone.txt"]))

    def test_documents_are_read_one_at_a_time(self):
        path = self.write(
            "a.txt", b"a\n\nb\n\nc\n" + b"d" * (2 << 20) + b"\xff"
        )
        documents = corpus.read_documents([path])
        self.assertEqual([next(documents), next(documents)], [["a"], ["b"]])

    def test_invalid_utf8_names_file_and_byte(self):
        text = "\u00e4b\n".encode() + b"cd\xff\n"
        with self.assertRaisesRegex(UserError, r"0\.txt .* 6 .*--replace_inv"):
            self.read(text)
        self.assertEqual(
            self.read(text, replace_invalid_utf8=True),
            [["\u00e4b", "cd\ufffd"]],
        )
        path = self.write("a.gz", text)
        with self.assertRaisesRegex(UserError, "byte 6 of the decompressed"):
            list(corpus.read_documents([path]))

    def test_empty_corpus_is_refused(self):
        with self.assertRaisesRegex(UserError, r"empty: no line.*0\.txt, .*1"):
            self.read(b"", b"\n \n\r\n")


class SplitSentencesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (["Dr. Smith paid $3.50 to A. A. Milne.", "He left!", "Why?"],),
        (["Section 4.2 has it (see Fig. 3).", "The U.S. Army did not."],),
        (['He said: "Go.', 'Now!" and left.'],),
        (["\u201cYes.", "I am.\u201d", "\u201cWell?\u201d he asked."],),
        (["\u2018I shan\u2019t.", "Never!\u2019", "She wept."],),
        (["\u6211\u7231\u4f60\u3002", "\u4f60\u597d\u5417\uff1f"],),
    )
    def test_finds_the_sentences(self, sentences):
        self.assertEqual(corpus.split_sentences(" ".join(sentences)), sentences)

    @parameterized.parameters("", " \t", "\u3000\n")
    def test_empty_text_has_no_sentences(self, text):
        self.assertEqual(corpus.split_sentences(text), [])

    def test_keeps_every_character_but_space_of_odd_text(self):
        for text in (
            '"',
            "\u201c\u2018" * 500,
            '". ' * 40 + "a\u2028b. C",
            "\u00ab A. B! \u201eC? D.\u201d E. \u00bb F",
            "ab " * 20_000,
            "a" * 50_000,
        ):
            self.assertEqual(
                "".join("".join(corpus.split_sentences(text)).split()),
                "".join(text.split()),
            )


if __name__ == "__main__":
    tf.test.main()
