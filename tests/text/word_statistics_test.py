import tensorflow as tf

from bert_tf.text import word_statistics


def _gather(words, vocab_size=200, min_frequency=2):
    return word_statistics.gather_statistics(
        list(words.items()), vocab_size, min_frequency
    )


class GatherStatisticsTest(tf.test.TestCase):
    def test_counts_characters_by_place(self):
        statistics = _gather({"aba": 3, "b": 4, "c" * 201: 7, "ca": 1})
        self.assertEqual(statistics.starts, {"a": 3, "b": 4, "c": 1})
        self.assertEqual(statistics.insides, {"a": 4, "b": 3})
        self.assertEqual(statistics.words, [("b", 4), ("aba", 3)])
        self.assertEqual(statistics.num_words, 15)
        self.assertEqual(statistics.num_distinct_words, 4)
        self.assertEqual(statistics.num_too_long, 7)

    def test_coverage_asks_for_the_piece_of_the_place(self):
        statistics = _gather({"ab": 3, "b": 4})
        self.assertEqual(statistics.coverage(["a", "b", "##b"]), 1.0)
        self.assertEqual(statistics.coverage(["a", "b", "##a"]), 0.7)
        self.assertEqual(statistics.coverage(["##b"]), 0.3)

    def test_order_of_words_does_not_matter(self):
        words = {f"{i * i % 997}": 2 + i % 5 for i in range(500)}
        backwards = dict(reversed(words.items()))
        self.assertNotEqual(list(words), list(backwards))
        self.assertEqual(_gather(words), _gather(backwards))

    def test_characters_as_frequent_as_words_with_a_line_get_one_too(self):
        words = {"ab": 900, "b": 90, "c": 9, "d": 8, "e": 1}
        statistics = _gather(words)
        for room, expected in (
            (2, ["a", "b"]),  # The coverage takes all of the room.
            (3, ["a", "b"]),
            (30, ["a", "b", "c", "d"]),  # "e" is rarer than all words kept.
        ):
            starts, insides = word_statistics.choose_alphabet(
                statistics, 0.9, room
            )
            self.assertEqual(starts, expected)
            self.assertEqual(insides, ["##b"])
        starts, _ = word_statistics.choose_alphabet(statistics, 1.0, 2)
        self.assertEqual(starts, list("abcde"))


if __name__ == "__main__":
    tf.test.main()
