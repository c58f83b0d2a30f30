r"""Fine-tunes a BERT on SQuAD 1.1 or 2.0, predicts, and scores.

  python run/finetune_squad.py --pretrained_model_dir=output/base/model \
      --do_train --train_file=train-v1.1.json \
      --do_predict --predict_file=dev-v1.1.json --output_dir=output/squad

The command lines of the original's run_squad.py run too. SQuAD 2.0 needs
--version_2_with_negative; its threshold is searched on --predict_file. Started
again, it goes on where its last checkpoint is. --triviaqa_file and
--triviaqa_evidence_dir fine-tune on TriviaQA first, as the paper does, and
--ensemble_nbest_files predicts with several runs together.
"""

from bert_tf.flags.squad import SquadConfig


def main(config: SquadConfig) -> None:
    # So --help answers at once.
    from bert_tf.finetuning import squad as squad_finetuning

    squad_finetuning.run(config)
