# %%
# -- train
import keras
import keras_hub
import pandas as pd

train, dev = pd.read_csv("train.csv"), pd.read_csv("dev.csv")
names = sorted(set(train["category"]))
for table in (train, dev):
    table["label"] = table["category"].map(names.index)

# %%
models = keras_hub.models
model = models.BertTextClassifier.from_preset(
    "minilm",
    num_classes=len(names),
    preprocessor=models.BertTextClassifierPreprocessor.from_preset(
        "minilm", sequence_length=64
    ),
)
model.compile(
    optimizer=keras.optimizers.AdamW(2e-4),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(
    train["text"],
    train["label"],
    batch_size=32,
    epochs=3,
    validation_data=(dev["text"], dev["label"]),
)

# %%
# -- answer
logits = model.predict(["Where is my new card?"])
print([names[i] for i in logits.argmax(-1)])

# %%
# -- ships model
model.save_to_preset("model")
