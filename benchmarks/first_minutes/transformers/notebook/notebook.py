# %%
# -- train
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers import Trainer, TrainingArguments, pipeline

files = {"train": "train.csv", "dev": "dev.csv"}
tokenizer = AutoTokenizer.from_pretrained("minilm")


def tokenize(rows):
    return tokenizer(rows["text"], truncation=True, max_length=64)


def accuracy(output):
    right = output.predictions.argmax(-1) == output.label_ids
    return {"accuracy": right.mean()}


data = load_dataset("csv", data_files=files).map(tokenize, batched=True)
data = data.rename_column("category", "label").class_encode_column("label")
names = data["train"].features["label"].names

# %%
model = AutoModelForSequenceClassification.from_pretrained(
    "minilm",
    id2label=dict(enumerate(names)),
    label2id={name: i for i, name in enumerate(names)},
)
trainer = Trainer(
    model,
    TrainingArguments(
        "output",
        num_train_epochs=3,
        per_device_train_batch_size=32,
        learning_rate=2e-4,
        warmup_steps=0.1,
        eval_strategy="epoch",
    ),
    train_dataset=data["train"],
    eval_dataset=data["dev"],
    processing_class=tokenizer,
    compute_metrics=accuracy,
)
trainer.train()

# %%
# -- answer
classify = pipeline("text-classification", model, tokenizer=tokenizer)
print(classify("Where is my new card?"))

# %%
# -- ships model
trainer.save_model("model")
