pip install "${BERT_TF}[tflite]" mediapipe
# -- train
bert-tf finetune-classifier --task_name=custom --train_file=train.csv \
    --dev_file=dev.csv --label_column=category --pretrained_model_dir=minilm \
    --output_dir=output --do_train --do_eval --max_seq_length=64 \
    --learning_rate=2e-4
# -- answer
bert-tf export-tflite --model_dir=output/model --output_file=model.tflite
python answer.py
# -- ships model.tflite
