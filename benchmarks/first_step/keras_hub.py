import sys
import time

import keras
import keras_hub

models = keras_hub.models
model = models.BertTextClassifier.from_preset(
    "minilm",
    num_classes=2,
    preprocessor=models.BertTextClassifierPreprocessor.from_preset(
        "minilm", sequence_length=128
    ),
)
print("loaded", time.time())

texts = [f"Text number {i} is {'fine' if i % 2 else 'bad'}." for i in range(16)]
labels = [i % 2 for i in range(16)]

if sys.argv[1] == "step":
    model.compile(
        optimizer=keras.optimizers.AdamW(5e-5),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(texts, labels, batch_size=16, verbose=0)
else:
    model.predict(texts[:1], verbose=0)
print("done", time.time())
