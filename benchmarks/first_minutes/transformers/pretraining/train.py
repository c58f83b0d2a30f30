from datasets import load_dataset
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast
from transformers import DataCollatorForLanguageModeling
from transformers import Trainer, TrainingArguments

wordpieces = BertWordPieceTokenizer()
wordpieces.train("text.txt", vocab_size=8000)
wordpieces.save("tokenizer.json")
tokenizer = BertTokenizerFast(tokenizer_file="tokenizer.json")


def join_and_cut(rows):
    text = "\n".join(rows["text"])
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    rows = [ids[i : i + 126] for i in range(0, len(ids), 126)]
    return {"input_ids": [[cls, *row, sep] for row in rows]}


cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
data = load_dataset("text", data_files="text.txt", split="train")
data = data.map(join_and_cut, batched=True, remove_columns="text")
model = BertForMaskedLM(
    BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
    )
)
trainer = Trainer(
    model,
    TrainingArguments(
        "output",
        max_steps=200,
        per_device_train_batch_size=32,
        learning_rate=1e-3,
        warmup_steps=20,
        logging_steps=20,
    ),
    train_dataset=data,
    data_collator=DataCollatorForLanguageModeling(tokenizer),
    processing_class=tokenizer,
)
trainer.train()
trainer.save_model("model")
