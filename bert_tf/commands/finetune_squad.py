r"""Fine-tunes a BERT on SQuAD 1.1 or 2.0, predicts, and scores.

  python run/finetune_squad.py --pretrained_model_dir=output/base/model \
      --do_train --train_file=train-v1.1.json \
      --do_predict --predict_file=dev-v1.1.json --output_dir=output/squad

Command lines of the original's run_squad.py work, too. SQuAD 2.0 needs
--version_2_with_negative; its threshold is tuned on --predict_file.
--triviaqa_file and --triviaqa_evidence_dir fine-tune on TriviaQA first, as in
the paper, and --ensemble_nbest_files predicts with an ensemble of runs. Rerun
the same command to resume from the last checkpoint.
"""

from bert_tf.flags.squad import SquadConfig


def main(config: SquadConfig) -> None:
    from bert_tf.tasks.squad import inputs

    inputs.check(config)
    from bert_tf.finetuning import squad as squad_finetuning

    squad_finetuning.run(config)
