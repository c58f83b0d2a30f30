# -- train
bert-tf finetune-classifier --task_name=custom --train_file=train.csv \
    --dev_file=dev.csv --label_column=category --pretrained_model_dir=minilm \
    --output_dir=output --do_train --do_eval --max_seq_length=64 \
    --learning_rate=2e-4
# -- answer
bert-tf serve --model_base_path=output/model &
curl -d '{"instances": [{"text": "Where is my new card?"}]}' \
    localhost:8501/v1/models/output:predict
# -- ships output/model
