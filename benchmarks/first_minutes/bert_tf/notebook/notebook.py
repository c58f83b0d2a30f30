# %%
# -- train
import bert_tf
import keras
import pandas as pd

train, dev = pd.read_csv("train.csv"), pd.read_csv("dev.csv")

# %%
model = bert_tf.load_model(
    "minilm",
    "classification",
    labels=sorted(set(train["category"])),
    max_seq_length=64,
)
model.compile(
    keras.optimizers.AdamW(2e-4),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(
    train["text"],
    train["category"],
    batch_size=32,
    epochs=3,
    validation_data=(dev["text"], dev["category"]),
)

# %%
# -- answer
print(model.predict(["Where is my new card?"]))

# %%
# -- ships model
bert_tf.save_model(model, "model")
