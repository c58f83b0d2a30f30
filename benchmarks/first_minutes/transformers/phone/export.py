import litert_torch
import torch
from ai_edge_quantizer import quantizer, recipe
from transformers import AutoModelForSequenceClassification

model = AutoModelForSequenceClassification.from_pretrained("model").eval()
ids = torch.ones((1, 64), dtype=torch.int32)
names = ("input_ids", "attention_mask", "token_type_ids")
inputs = {name: ids for name in names}
litert_torch.convert(model, sample_kwargs=inputs).export("float32.tflite")
quantize = quantizer.Quantizer("float32.tflite", recipe.dynamic_wi8_afp32())
quantize.quantize().export_model("model.tflite")
