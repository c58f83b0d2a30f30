"""Runs transformers for tests, in an environment with PyTorch.

    python transformers_program.py REQUESTS.json

A request is a JSON object: `do`, one of the functions below, and its
arguments. The result is written to the request's `output`, an .npz file. This
module does not import the project, whose packages the environment lacks.
"""

import json
import os
import sys

import numpy as np
import torch
import transformers


def tokenize(model, lines_file):
    """Returns the concatenated ids of all lines, without [CLS] and [SEP]."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    fast = tokenizer.backend_tokenizer
    # MiniLM's file enables truncation and padding, which would hide ids.
    fast.no_truncation()
    fast.no_padding()
    with open(lines_file, "rb") as file:
        lines = file.read().decode().split("\n")
    ids, lengths = [], []
    for start in range(0, len(lines), 2000):
        for encoding in fast.encode_batch_fast(
            lines[start : start + 2000], add_special_tokens=False
        ):
            ids.append(np.array(encoding.ids, np.int32))
            lengths.append(len(encoding.ids))
    return {"ids": np.concatenate(ids), "lengths": np.array(lengths)}


def encode(model, texts_file):
    """Returns concatenated hidden states, and pooler outputs, of texts.

    Each text is computed alone, without padding.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    bert, keys = _load("AutoModel", model)
    parts = {"ids": [], "segments": [], "hidden": [], "pooled": []}
    with open(texts_file, encoding="utf-8") as file:
        for texts in json.load(file):
            inputs = tokenizer(*texts, return_tensors="pt")
            with torch.no_grad():
                outputs = bert(**inputs)
            parts["ids"].append(inputs["input_ids"][0])
            parts["segments"].append(inputs["token_type_ids"][0])
            parts["hidden"].append(outputs.last_hidden_state[0])
            parts["pooled"].append(outputs.pooler_output[0])
    lengths = np.array([len(ids) for ids in parts["ids"]])
    pooled = torch.stack(parts.pop("pooled")).numpy()
    joined = {name: torch.cat(x).numpy() for name, x in parts.items()}
    return joined | keys | {"pooled": pooled, "lengths": lengths}


def save(name, config, model, seed):
    """Saves a model with random weights, and its outputs for fixed inputs.

    Its weights are saved in the two older formats too: torch/ holds a PyTorch
    archive, legacy/ the format before version 1.6.
    """
    torch.manual_seed(seed)
    bert = getattr(transformers, name)(transformers.BertConfig(**config))
    with torch.no_grad():
        # Initial biases are 0, which would hide errors.
        for parameter_name, parameter in bert.named_parameters():
            is_scale = parameter_name.endswith("LayerNorm.weight")
            parameter.normal_(mean=1.0 if is_scale else 0.0, std=0.4)
    bert.eval().save_pretrained(model)
    for folder, is_archive in (("torch", True), ("legacy", False)):
        os.mkdir(f"{model}/{folder}")
        torch.save(
            bert.state_dict(),
            f"{model}/{folder}/pytorch_model.bin",
            _use_new_zipfile_serialization=is_archive,
        )
    return _answers(bert)


def load(name, model):
    """Loads a model; returns its outputs, and missing and unused weights."""
    bert, keys = _load(name, model)
    return _answers(bert) | keys


def save_tokenizer(vocab, model, **options):
    """Saves a tokenizer as this version of transformers does."""
    vocab = {piece: index for index, piece in enumerate(vocab)}
    tokenizer = transformers.BertTokenizer(vocab, **options)
    tokenizer.save_pretrained(model)
    return {}


def default_config():
    """Returns the defaults of config.json."""
    config = transformers.BertConfig().to_dict()
    return {"config": np.array(json.dumps(config))}


def _load(name, model):
    bert, info = getattr(transformers, name).from_pretrained(
        model, output_loading_info=True
    )
    wrong = {key: sorted(map(str, x)) for key, x in info.items() if x}
    return bert.eval(), {"wrong_keys": np.array(json.dumps(wrong))}


def _answers(bert):
    """Returns a model's outputs for inputs of unequal lengths."""
    config = bert.config
    rng = np.random.default_rng(5)
    choices = type(bert).__name__ == "BertForMultipleChoice"
    shape = (4, 3, 6) if choices else (4, 6)
    inputs = {
        "input_ids": rng.integers(config.vocab_size, size=shape),
        "attention_mask": np.arange(6) < rng.integers(2, 7, shape[:-1] + (1,)),
        "token_type_ids": rng.integers(config.type_vocab_size, size=shape),
    }
    with torch.no_grad():
        outputs = bert(
            **{key: torch.tensor(x).long() for key, x in inputs.items()}
        )
    arrays = {
        f"output_{key}": value.numpy()
        for key, value in outputs.items()
        if isinstance(value, torch.Tensor)
    }
    return arrays | {f"input_{key}": x for key, x in inputs.items()}


def main():
    functions = (default_config, encode, load, save, save_tokenizer, tokenize)
    by_name = {function.__name__: function for function in functions}
    with open(sys.argv[1], encoding="utf-8") as file:
        requests = json.load(file)
    for request in requests:
        function = by_name[request.pop("do")]
        np.savez(request.pop("output"), **function(**request))


if __name__ == "__main__":
    main()
