import keras
import keras_hub
import tensorflow as tf

lines = tf.data.TextLineDataset("text.txt").filter(lambda x: x != "")
vocabulary = keras_hub.tokenizers.compute_word_piece_vocabulary(
    lines,
    vocabulary_size=8000,
    lowercase=True,
    reserved_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
)
vocabulary = [token for token in vocabulary if token == token.strip()]
tokenizer = keras_hub.models.BertTokenizer(vocabulary, lowercase=True)
model = keras_hub.models.BertMaskedLM(
    backbone=keras_hub.models.BertBackbone(
        vocabulary_size=tokenizer.vocabulary_size(),
        num_layers=2,
        num_heads=2,
        hidden_dim=128,
        intermediate_dim=512,
    ),
    preprocessor=keras_hub.models.BertMaskedLMPreprocessor(
        tokenizer, sequence_length=128, mask_selection_length=20
    ),
)
model.compile(
    optimizer=keras.optimizers.AdamW(1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    weighted_metrics=["accuracy"],
)
data = lines.shuffle(10000).repeat().batch(32)
model.fit(data, steps_per_epoch=200)
model.save_to_preset("model")
