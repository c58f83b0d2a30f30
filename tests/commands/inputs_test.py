"""Tests of bad input, Ctrl-C and full disks, for each command."""

import contextlib
import json
import os
import pathlib
import tempfile

import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import task_values
from bert_tf.io import files
from bert_tf.tasks import stored_task
from tests.support import full_disk
from tests.support import scripts
from tests.support import tiny_finetuning

# Prints the error of each command, and whether TensorFlow was imported.
_PROGRAM = """
import importlib, inspect, json, sys
from absl import flags
from bert_tf.errors import UserError
from bert_tf.flags import cli
answers = []
for words in json.load(sys.stdin):
    values = flags.FlagValues()
    main = importlib.import_module(f"bert_tf.commands.{words[0]}").main
    config_cls = inspect.get_annotations(main)["config"]
    read_config = cli.define_flags(config_cls, values)
    values(words)
    try:
        main(read_config())
        message = "No error."
    except UserError as error:
        message = str(error)
    answers.append((message, "tensorflow" in sys.modules))
json.dump(answers, sys.stdout)
"""
_QUESTION = {"id": "1", "question": "Who?", "answers": []}
_ANSWERED = {"id": "2", "question": "Who?", "answers": [{"text": "Ada"}]}
_SHAPE = '{"vocab_size": 9, "max_position_embeddings": 12}'
_SPECIAL = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]"
_TASKS = {
    "topics": {
        "kind": "classification",
        "columns": {"text": "body", "text_pair": None, "labels": ["topic"]},
        "labels": ["x", "y"],
    },
    "choices": {
        "kind": "multiple_choice",
        "columns": {"choices": ["a", "b"], "context": "q", "label": "right"},
    },
    "squad": {"kind": "question_answering"},
    "tagger": {
        "kind": "tagging",
        "word_column": "token",
        "tag_column": "ner",
        "labels": ["O"],
    },
}


def _squad(*questions):
    paragraph = {"context": "Ada.", "qas": questions}
    return json.dumps({"data": [{"paragraphs": [paragraph]}]})


_FILES = {
    "new/config.json": "",
    "hf/config.json": '{"model_type": "bert", "num_hidden_layers": 2, '
    '"max_position_embeddings": 512, "architectures": ["BertModel"]}',
    "hf/model.safetensors": "\2\0\0\0\0\0\0\0{}",
    "tags/config.json": '{"architectures": ["BertForTokenClassification"]}',
    "run/model.ckpt-9.json": '{"metadata": {"identity": '
    '{"--max_seq_length": 64}}}',
    "picture.txt": "%PDF-1.4\n",
    "zeros.txt": "a\0",
    "crlf.csv": "text,label\r\na,b\r\n",
    "words.txt": "[UNK]\n[SEP]\n",
    "pretrained/task.json": '{"kind": "pretraining"}',
    "no_unk/bert_config.json": _SHAPE,
    "no_unk/vocab.txt": "a\na",
    "short/bert_config.json": _SHAPE,
    "short/vocab.txt": _SPECIAL,
    "text.csv": "text,topic\na,x\n",
    "body.csv": "body,topic\na,x\nb,z\n",
    "one.csv": "text,label\na,x\n",
    "comma.csv": "text,label\na,b,x\n",
    "two.csv": "text,label\na,news\nb,sports\n",
    "typo.csv": "text,label\na,sprots\n",
    "last.csv": "text,label\n" + "a,x\nb,y\n" * 1500 + "a,x\nb,\n",
    "choice.csv": "q,a,right\nwhy,x,a\n",
    "tags.tsv": "token\ttag\nBerlin\tO\n",
    "raw.csv": "title\nBerlin\n",
    "blank.txt": "a\n\nb\n",
    "empty.txt": "\n \n",
    "white.csv": "id,text\n1,\n2, \n",
    "cut.json": "{]",
    "list.json": "[1]",
    "unknown.json": _squad(_QUESTION),
    "both.json": _squad(_QUESTION, _ANSWERED),
    "pairs.csv": "anchor,positive\na,b\nc,d\n",
    "question.csv": "question,text\nWho?,Ada.\n",
}
_NEW = " --output_dir=out --pretrained_model_dir=new --do_train"
_OWN = "finetune_classifier --task_name=custom"
_CHOICE = "finetune_multiple_choice --task_name=custom"
_DISTILL = "distill --output_dir=out --do_eval --pretrained_model_dir=new"
_PREDICT = "predict --output_file=x.csv"
_PRETRAIN = (
    "pretrain --bert_config_file=configs/tiny/bert_config.json --do_train "
    "--input_file=text.csv --output_dir=out"
)
_HF = " --output_dir=out --pretrained_model_dir=hf"
_CONVERT = "convert_checkpoint --input=hf --to=bert_tf"
_FEATURES = "extract_features --model_dir=hf --output_file=a"
_TAGS = "finetune_tagger --train_file=tags.tsv --word_column=token"
_CASES = (
    (f"{_OWN} --train_file=text.csv {_NEW}",
     "text.csv has no column 'label'; its first line names the columns "
     "'text', 'topic'; name another with --label_column."),
    (f"finetune_classifier --task_name=mrp --data_dir=new {_NEW}",
     "or custom. Received: 'mrp'; did you mean mrpc?"),
    (f"finetune_classifier --task_name=feel --train_file=text.csv {_NEW}",
     "Received: 'feel'; for your own files give --task_name=custom."),
    (f"finetune_classifier {_NEW}", "Give --train_file, "),
    (f"finetune_multiple_choice {_NEW}", "Give --train_file, "),
    (f"finetune_classifier --train_file=comma.csv {_NEW}",
     "line 2 must have 2 columns like the first line. Received: 3; put "
     "quotation marks around a text that contains a comma."),
    (f"finetune_classifier --train_file=two.csv --dev_file=typo.csv --do_eval "
     f"{_NEW}", "typo.csv, line 2 has the label 'sprots', which is not among "
     "the 2 known labels: 'news', 'sports'; did you mean 'sports'? Correct "
     "the row, or add the label to the training data."),
    (f"finetune_classifier --train_file=two.csv --text_column=texts {_NEW}",
     "did you mean --text_column=text?"),
    (f"finetune_squad --train_file=text.csv {_NEW}",
     '--train_file must be SQuAD JSON ({"data": [...]}). Received: '
     "the table 'text.csv'"),
    ("fill_mask --model_dir=topics --text=a", "at least one [MASK], in cap"),
    ("fill_mask --model_dir=topics --text=[MASK]",
     "must have a masked-LM head"),
    ("serve --model_base_path=nothing", "no such directory: 'nothing'"),
    ("serve --model_base_path=topics/model --search_file=raw.csv",
     "raw.csv has no column 'text'"),
    ("serve --model_base_path=topics/model --search_file=empty.txt,white.csv",
     "--search_file=empty.txt,white.csv has no text"),
    ("serve --model_base_path=a --search_file=raw.csv --rest_api_port=0",
     "needs a --rest_api_port"),
    (f"{_CHOICE} --train_file=text.csv {_NEW}",
     "text.csv has no column 'context'"),
    (f"{_TAGS} --tag_column=ner {_NEW}", "'ner'"),
    (f"{_OWN} --train_file=last.csv {_NEW}",
     "last.csv, line 3003 has no label"),
    (f"{_OWN} --train_file=one.csv {_NEW}", "at least 2 different labels"),
    (f"{_OWN} --train_file=one.csv --text_pair_column=z {_NEW}",
     "name another with --text_pair_column"),
    (f"{_OWN} --train_file=one.csv --problem_type=regression {_NEW}",
     "one.csv, line 2 must have a number as its label"),
    (f"finetune_classifier --task_name=rte --data_dir=new {_NEW}",
     "no file train.tsv or"),
    (f"finetune_tagger --train_file=cut.json {_NEW}", "cut.json"),
    (f"finetune_squad --train_file=cut.json {_NEW}",
     "cut.json, line 1 is not valid JSON"),
    (f"finetune_squad --train_file=unknown.json {_NEW}",
     "training needs an answer"),
    ("finetune_squad --output_dir=squad --do_predict --predict_file=both.json",
     "--version_2_with_negative"),
    (f"finetune_embeddings --train_file=text.csv {_NEW}",
     "text.csv must have anchor, positive and maybe negative"),
    *((f"finetune_embeddings --train_file=pairs.csv {flag} {_NEW}",
       "A step needs two pairs")
      for flag in ("--train_batch_size=1", "--dev_fraction=0.5")),
    *((f"{_OWN} --few_shot --train_file=two.csv --{flag} {_NEW}", message)
      for flag, message in (
          ("train_batch_size=1", "cannot be used with --train_batch_size=1"),
          ("keep_best", "cannot be used with --keep_best"),
          ("problem_type=multi_label", "is for single-label problems"),
      )),
    (f"{_OWN} --few_shot --train_file=body.csv --text_column=body "
     f"--label_column=topic {_NEW}", "at least two different texts of each"),
    (f"{_OWN} --train_file=one.csv --dev_fraction=0.1 {_NEW}",
     "--dev_fraction=0.1 needs two different texts of each label in one.csv"),
    (f"{_OWN} --output_dir=out --pretrained_model_dir=no_unk --do_eval "
     "--dev_file=one.csv", "vocab.txt lacks [UNK]"),
    (f"{_OWN} --output_dir=out --pretrained_model_dir=short --do_eval "
     "--dev_file=one.csv --max_seq_length=13", "must be at most 12"),
    *((f"{command} --do_eval --dev_file={path} {place}", message)
      for command, model, path, message in (
          (_OWN, "topics", "text.csv", "text.csv has no column 'body'"),
          (_OWN, "topics", "body.csv", "body.csv, line 3 has the label 'z'"),
          (_CHOICE, "choices", "choice.csv", "choice.csv has no column 'b'"),
          ("finetune_tagger", "tagger", "tags.tsv", "has no column 'ner'"),
      )
      for place in (
          f"--output_dir={model}",
          f"--output_dir=out --pretrained_model_dir={model}/model",
      )),
    (f"{_DISTILL} --teacher_dir=topics --dev_file=text.csv",
     "text.csv has no column 'body'"),
    (f"{_DISTILL} --teacher_dir=topics --dev_file=body.csv",
     "body.csv, line 3 has the label 'z'"),
    (f"{_DISTILL} --teacher_dir=topics --dev_file=text.csv --text_column=z",
     "no column 'z'"),
    (f"{_DISTILL} --teacher_dir=choices --dev_file=choice.csv",
     "choice.csv has no column 'b'"),
    (f"{_DISTILL} --teacher_dir=choices --dev_file=choice.csv --text_column=q",
     "--text_column"),
    (f"{_DISTILL} --teacher_dir=topics --data_dir=new",
     "--data_dir is for tasks with"),
    (f"{_DISTILL} --teacher_dir=tagger --dev_file=x --label_column=kind",
     "--label_column: these are for"),
    (f"{_DISTILL} --teacher_dir=squad --dev_file=list.json",
     "list.json must be an object"),
    (f"{_DISTILL} --teacher_dir=tagger --dev_file=tags.tsv",
     "tags.tsv has no column 'ner'"),
    ("distill --output_dir=out --do_train --num_hidden_layers=1 "
     "--teacher_dir=topics --train_file=text.csv --text_column=text "
     "--unlabeled_file=raw.csv", "raw.csv has no column 'text'"),
    ("distill --output_dir=out --do_train --num_hidden_layers=1 "
     "--teacher_dir=topics --train_file=text.csv --text_column=text "
     "--unlabeled_file=blank.txt", "remove the row or fill it in."),
    (f"{_PREDICT} --model_dir=choices --input_file=choice.csv",
     "choice.csv has no column 'b'"),
    (f"{_PREDICT} --model_dir=squad --input_file=question.csv",
     "question.csv has no column 'context'"),
    (f"{_PREDICT} --model_dir=tagger --input_file=raw.csv",
     'raw.csv must have a column "text"'),
    (f"{_PREDICT} --model_dir=tagger --input_file=text.csv --keep_columns=id",
     "--keep_columns"),
    (f"{_PREDICT} --model_dir=pretrained --input_file=text.csv",
     "a model of kind='pretraining'; fine-tune it first"),
    ("predict --output_file=x.npy --model_dir=a --input_file=b "
     "--keep_columns=id", "An array has no columns to keep"),
    ("predict --output_file=x.npy --model_dir=a --input_file=b --keep_empty",
     "--keep_empty and --top_k need labels"),
    ("predict --output_file=x.npy --model_dir=a --input_file=b --top_k=2",
     "--keep_empty and --top_k need labels"),
    (f"{_PRETRAIN} --max_seq_length=9999", "--max_seq_length must be at most"),
    *((f"{command} --max_seq_length=513", "length must be at most 512")
      for command in (
          f"{_OWN} --train_file=one.csv --do_train {_HF}",
          f"finetune_squad --train_file=unknown.json --do_train {_HF}",
          f"finetune_embeddings --train_file=pairs.csv --do_train {_HF}",
          f"{_FEATURES} --input_file=blank.txt",
          "export_savedmodel --model_dir=hf --output_dir=out",
          "export_tflite --model_dir=hf --output_file=a.tflite",
      )),
    *((f"{command} --do_eval {_HF}", "of kind='encoder'; add --do_train")
      for command in (
          f"{_OWN} --dev_file=one.csv",
          f"{_CHOICE} --dev_file=choice.csv",
          "finetune_squad --predict_file=unknown.json",
          "finetune_tagger --dev_file=tags.tsv",
      )),
    (f"{_OWN} --dev_file=one.csv --do_eval --output_dir=out",
     "There is no trained model in out/model"),
    (f"{_OWN} --train_file=two.csv --do_train --output_dir=run "
     "--pretrained_model_dir=hf", "--max_seq_length was 64 and is 128 now"),
    ("fill_mask --model_dir=hf --text=[MASK]", "a model of kind='encoder'"),
    *((f"{command} --model_dir={model} --head=classification", message)
      for command in (
          "export_savedmodel --output_dir=out",
          "export_tflite --output_file=a.tflite",
      )
      for model, message in (
          ("hf", "with --head=embeddings. Received"),
          ("tags", "--head=tagging or embeddings"),
      )),
    ("export_savedmodel --model_dir=hf --output_dir=out --layer=2",
     "--layer must lie between -2 and 1"),
    (f"{_PREDICT} --model_dir=hf --input_file=text.csv", "fine-tune it first"),
    *(("predict --output_file=x.npy --input_file=text.csv --model_dir=" + model,
       "is for embeddings") for model in ("topics", "tags")),
    (f"{_DISTILL} --teacher_dir=hf --dev_file=one.csv", "fine-tune it first"),
    *((f"{_FEATURES} --input_file=blank.txt --layers={layers}", message)
      for layers, message in (
          ("-1,a", "--layers must be whole numbers"),
          ("2", "--layers must lie between -2 and 1"),
      )),
    *((f"{_CONVERT} --output={output}", message)
      for output, message in (
          ("new", "--output=new already exists"),
          ("a --from=tf1", "that holds config.json"),
          ("a --allow_missing=(", "--allow_missing must be a regular expr"),
          ("a --allow_activation_change", "is for --to=keras_hub only"),
      )),
    *((f"extend_vocabulary --input={arguments}", message)
      for arguments, message in (
          ("short --output=a --new_words_file=words.txt", "has all of its 2"),
          ("hf --output=new --new_words_file=words.txt", "already exists"),
      )),
    ("verify_export --export_dir=new --model_dir=hf", "no saved_model.pb and"),
    ("glue_submission --model_dirs=hf --glue_dir=new", "must have the folders"),
    *((f"{command} --input_file=picture.txt", "picture.txt is a PDF")
      for command in (
          "tokenize_file --vocab_file=short/vocab.txt --output_file=a",
          "create_pretraining_data --vocab_file=short/vocab.txt "
          "--output_file=a",
          "learn_vocabulary --output_file=a",
          _FEATURES,
          f"{_PREDICT} --model_dir=topics",
      )),
    ("tokenize_file --vocab_file=short/vocab.txt --output_file=a "
     "--input_file=zeros.txt", "as UTF-16 and binary files have"),
    (f"{_PRETRAIN} --vocab_file=crlf.csv", "crlf.csv lacks [UNK], [CLS]"),
    (f"{_PRETRAIN} --vocab_file=picture.txt", "picture.txt is a PDF"),
    (f"{_PRETRAIN} --bert_config_file=hf/config.json",
     "Received: a Hugging Face configuration"),
    *((f"{command} --output_file=a.zip", "--output_file cannot end in .zip")
      for command in (
          "extract_text --input_file=blank.txt",
          "learn_vocabulary --input_file=blank.txt",
          "tokenize_file --vocab_file=a --input_file=b",
          "create_pretraining_data --vocab_file=a --input_file=b",
          "extract_features --model_dir=a --input_file=b",
          "predict --model_dir=a --input_file=b",
      )),
    *((f"{command} --vocab_file=tags.tsv", "tags.tsv lacks [UNK]")
      for command in (
          _PRETRAIN,
          "create_pretraining_data --input_file=text.csv --output_file=out",
          "tokenize_file --input_file=text.csv --output_file=out",
      )),
)  # fmt: skip


class InputsTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        with contextlib.chdir(folder):
            for name, values in _TASKS.items():
                # A run writes its model to the folder `model` of its output.
                os.makedirs(f"{name}/model")
                files.write_json(f"{name}/model/task.json", values)
            for name in ("no_unk", "short"):
                os.mkdir(name)
                files.write_json(f"{name}/task.json", _TASKS["topics"])
            for name, contents in _FILES.items():
                files.write_text(name, contents)
        commands = json.dumps([command.split() for command, _ in _CASES])
        finished = scripts.python("-c", _PROGRAM, input=commands, cwd=folder)
        assert not finished.returncode, finished.stderr
        cls.answers = json.loads(finished.stdout)

    @parameterized.parameters(*range(len(_CASES)))
    def test_errors_appear_before_tensorflow_is_imported(self, number):
        command, expected = _CASES[number]
        message, imported = self.answers[number]
        self.assertIn(expected, message, command)
        self.assertNotIn("\n", message)
        self.assertFalse(imported, command)

    def test_hub_names_are_left_to_the_readers_of_models(self):
        self.assertIsNone(stored_task.read_kind("hf://owner/name"))
        self.assertEqual(task_values.read_shape("hf://owner/name"), {})


_ROOT = pathlib.Path(__file__).resolve().parents[2]
# Runs a script, and sends Ctrl-C when it imports a module.
_INTERRUPTED = """
import runpy, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            signal.raise_signal(signal.SIGINT)

module, script = sys.argv.pop(1), sys.argv.pop(1)
sys.meta_path.insert(0, Finder())
run = runpy.run_path if script.endswith(".py") else runpy.run_module
run(script, run_name="__main__")
"""


class InterruptTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("absl.flags", ["run/models.py"]),
        ("bert_tf.commands.models", ["run/models.py"]),
        ("absl.flags", ["bert_tf", "models"]),
        # This module is imported later, when the flags are parsed.
        ("bert_tf.recipes.releases", ["bert_tf", "models"]),
    )
    def test_ctrl_c_during_imports_is_one_word(self, module, command):
        finished = scripts.python(
            "-c", _INTERRUPTED, module, *command, cwd=_ROOT
        )
        self.assertEqual(finished.stderr, "Interrupted.\n")
        self.assertEqual(finished.returncode, 130)
        self.assertEqual(finished.stdout, "")


_FREE_BYTES = 8192


def _command_lines(folder, out):
    model = f"{folder}/output/model"
    text = f"{folder}/text.txt"
    export = {"model_dir": model}
    learn = {"vocab_size": 3000, "num_unused": 99}
    words = {
        "run/predict.py": export
        | {"input_file": f"{folder}/long.csv", "output_file": f"{out}/a.csv"},
        "run/convert_checkpoint.py": {
            "input": model,
            "to": "huggingface",
            "output": f"{out}/huggingface",
        },
        "run/learn_vocabulary.py": learn
        | {"input_file": text, "output_file": f"{out}/vocab.txt"},
        "run/tokenize_file.py": {
            "vocab_file": f"{model}/vocab.txt",
            "input_file": text,
            "output_file": f"{out}/tokens.jsonl",
        },
        "run/extract_features.py": export
        | {"input_file": text, "output_file": f"{out}/features.jsonl"}
        | {"max_seq_length": 12},
        "export/savedmodel.py": export | {"output_dir": f"{out}/served"},
        "export/tflite.py": export | {"output_file": f"{out}/a.tflite"},
    }
    return {
        script: tiny_finetuning.command_line(str(_ROOT / script), values)
        for script, values in words.items()
    }


class FullDiskTest(tf.test.TestCase):
    @pytest.mark.thorough
    def test_each_script_ends_with_one_sentence(self):
        folder = self.create_tempdir().full_path
        tiny_finetuning.write_rows(f"{folder}/long.csv", 2000)
        with open(f"{folder}/text.txt", "w", encoding="utf-8") as file:
            for number in range(800):
                file.write(f"The {number} cats sat on mat {number**3}.\n\n")
        train = tiny_finetuning.command_line(
            str(_ROOT / "run/finetune_classifier.py"),
            tiny_finetuning.flags(folder),
        )
        with full_disk.mount(self, megabytes=1) as out:
            lines = _command_lines(folder, out)
            (made,) = scripts.run((train, folder))
            self.assertEqual(made.status, 0, made.stderr)
            filler = os.open(f"{out}/filler", os.O_CREAT | os.O_WRONLY)
            os.posix_fallocate(filler, 0, (1 << 20) - _FREE_BYTES)
            os.close(filler)
            ended = scripts.run(*[(words, folder) for words in lines.values()])
            for script, process in zip(lines, ended, strict=True):
                with self.subTest(script):
                    self.assertEqual(process.status, 1, process.stderr)
                    self.assertNotIn("Traceback", process.stderr)
                    last = process.stderr.strip().splitlines()[-1]
                    self.assertRegex(
                        last, "^ERROR: (The disk is full|.* be written)"
                    )
                    self.assertIn(out, last)


if __name__ == "__main__":
    tf.test.main()
