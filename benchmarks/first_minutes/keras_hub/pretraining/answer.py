import keras
import keras_hub
import numpy as np

model = keras_hub.models.BertMaskedLM.from_preset("model")
tokenizer = model.preprocessor.tokenizer
before, after = "The city is the [MASK] of the country.".split("[MASK]")
ids = [tokenizer.cls_token_id, *tokenizer(before), tokenizer.mask_token_id]
position = len(ids) - 1
ids = np.array([[*ids, *tokenizer(after), tokenizer.sep_token_id]], "int32")
outputs = model(
    {
        "token_ids": ids,
        "segment_ids": np.zeros_like(ids),
        "padding_mask": np.ones_like(ids),
        "mask_positions": np.array([[position]], "int32"),
    }
)
for token in keras.ops.top_k(outputs[0, 0], 5).indices:
    print(tokenizer.id_to_token(int(token)))
