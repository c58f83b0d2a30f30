import sys
import time

from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers import Trainer, TrainingArguments, pipeline

tokenizer = AutoTokenizer.from_pretrained("minilm")
model = AutoModelForSequenceClassification.from_pretrained(
    "minilm", num_labels=2
)
print("loaded", time.time())

texts = [f"Text number {i} is {'fine' if i % 2 else 'bad'}." for i in range(16)]
labels = [i % 2 for i in range(16)]

if sys.argv[1] == "step":
    rows = [tokenizer(texts[i]) | {"label": labels[i]} for i in range(16)]
    settings = TrainingArguments(
        "output",
        num_train_epochs=1,
        per_device_train_batch_size=16,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    Trainer(
        model, settings, train_dataset=rows, processing_class=tokenizer
    ).train()
else:
    pipeline("text-classification", model, tokenizer=tokenizer)(texts[:1])
print("done", time.time())
