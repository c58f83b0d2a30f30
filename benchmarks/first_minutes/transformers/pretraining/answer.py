from transformers import pipeline

fill_mask = pipeline("fill-mask", "model")
for answer in fill_mask("The city is the [MASK] of the country."):
    print(answer["token_str"], answer["score"])
