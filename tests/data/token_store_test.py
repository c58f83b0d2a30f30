import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.data import token_store
from bert_tf.data.token_store import TokenStore
from bert_tf.data.token_store import TokenStoreWriter
from tests.support import files_case

_VOCAB_SIZE = 30522


def append(writer, sentences, documents):
    lengths = np.array([len(sentence) for sentence in sentences], np.int64)
    tokens = np.array([token for s in sentences for token in s], np.int32)
    writer.append(tokens, lengths, np.array(documents))
    writer.progress.lines += len(sentences)


class TokenStoreTest(files_case.FolderCase):
    def assert_holds(self, tokens, sentences, documents):
        store = TokenStore.open(self.folder, _VOCAB_SIZE)
        self.assertAllEqual(store.tokens, tokens)
        self.assertAllEqual(store.sentence_offsets, sentences)
        self.assertAllEqual(store.document_offsets, documents)
        return store

    def test_skips_empty_sentences(self):
        writer = TokenStoreWriter(self.folder, _VOCAB_SIZE)
        append(writer, [[5, 6], [], [7], []], [0, 0, 0, 1])
        append(writer, [[], []], [2, 2])
        append(writer, [[], [8, 9, 10]], [2, 4])
        writer.finish()
        store = self.assert_holds([5, 6, 7, 8, 9, 10], [0, 2, 3, 6], [0, 2, 3])
        self.assertEqual(store.num_documents, 2)
        self.assertEqual([store.span(0), store.span(1)], [(0, 0, 2), (1, 2, 3)])
        self.assertTrue(token_store.read_progress(self.folder).complete)

    def test_resumes_where_it_was_saved(self):
        writer = TokenStoreWriter(self.folder, _VOCAB_SIZE)
        append(writer, [[5, 6], [7]], [0, 1])
        writer.save()
        append(writer, [[1, 2, 3]], [1])
        writer.close()  # Like a kill: appended, not saved.
        writer = TokenStoreWriter(self.folder, _VOCAB_SIZE)
        self.assertEqual(writer.progress.lines, 2)
        # The document of the last saved sentence continues.
        append(writer, [[8], [9]], [1, 2])
        writer.finish()
        self.assert_holds([5, 6, 7, 8, 9], [0, 2, 3, 4, 5], [0, 1, 3, 4])

    @parameterized.parameters((1 << 16, "uint16"), ((1 << 16) + 1, "int32"))
    def test_tokens_take_as_few_bytes_as_the_vocabulary_allows(
        self, vocab_size, dtype
    ):
        writer = TokenStoreWriter(self.folder, vocab_size)
        append(writer, [[0, vocab_size - 1]], [0])
        writer.finish()
        store = TokenStore.open(self.folder, vocab_size)
        self.assertEqual(store.tokens.dtype, dtype)
        self.assertAllEqual(store.tokens, [0, vocab_size - 1])

    def test_long_documents_have_several_spans(self):
        limit = token_store.MAX_TOKENS_PER_PASS
        lengths = [[7], [1000] * 700, [8, 9], [limit + 1], [5] * 3, [999] * 270]
        writer = TokenStoreWriter(self.folder, _VOCAB_SIZE)
        for number, document in enumerate(lengths):
            writer.append(
                np.ones(sum(document), np.int32),
                np.array(document),
                np.full(len(document), number),
            )
        writer.finish()
        store = TokenStore.open(self.folder, _VOCAB_SIZE)
        self.assertEqual(store.num_documents, 6)
        self.assertEqual(store.num_passes, 6 + 2 + 1)
        covered = {}
        for number in range(store.num_passes):
            document, first, stop = store.span(number)
            self.assertLess(first, stop)
            covered.setdefault(document, []).append((first, stop))
            size = np.diff(store.sentence_offsets[[first, stop]])[0]
            self.assertTrue(size < limit + 1000 or stop == first + 1)
        for document, spans in covered.items():
            edges = store.document_offsets[document : document + 2].tolist()
            starts, stops = zip(*spans, strict=True)
            self.assertEqual([*starts, edges[1]], [edges[0], *stops])


if __name__ == "__main__":
    tf.test.main()
