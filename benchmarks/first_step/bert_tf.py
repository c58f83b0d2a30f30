import sys
import time

import bert_tf

model = bert_tf.load_model("minilm", "classification", labels=["bad", "good"])
print("loaded", time.time())

texts = [f"Text number {i} is {'fine' if i % 2 else 'bad'}." for i in range(16)]
labels = ["good" if i % 2 else "bad" for i in range(16)]

if sys.argv[1] == "step":
    model.fit(texts, labels, batch_size=16, verbose=0)
else:
    model.predict(texts[:1], verbose=0)
print("done", time.time())
