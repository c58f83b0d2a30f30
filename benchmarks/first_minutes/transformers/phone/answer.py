from ai_edge_litert.interpreter import Interpreter
from transformers import AutoConfig, AutoTokenizer

names = AutoConfig.from_pretrained("model").id2label
inputs = AutoTokenizer.from_pretrained("model")(
    ["Where is my new card?"],
    padding="max_length",
    max_length=64,
    return_tensors="np",
)
run = Interpreter("model.tflite").get_signature_runner()
outputs = run(**{name: x.astype("int32") for name, x in inputs.items()})
(logits,) = outputs.values()
print(names[int(logits.argmax())])
