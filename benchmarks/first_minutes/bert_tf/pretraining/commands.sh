# -- train
bert-tf learn-vocabulary --input_file=text.txt --output_file=vocab.txt \
    --vocab_size=8000
bert-tf create-pretraining-data --input_file=text.txt \
    --vocab_file=vocab.txt --output_file=text.tfrecord --dupe_factor=3
bert-tf pretrain --flagfile=tiny.flags --input_file=text.tfrecord \
    --vocab_file=vocab.txt --output_dir=output --num_train_steps=200 \
    --stop_at_step=200 --num_warmup_steps=20
# -- answer
bert-tf fill-mask --model_dir=output/model \
    --text="The city is the [MASK] of the country."
# -- ships output/model
