pip install "${BERT_TF}[serve]" pandas
