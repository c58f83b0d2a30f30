"""Text extraction of small files, shared by several test files."""

import html
import json
from unittest import mock

from bert_tf.commands.extract_text import ExtractTextConfig
from bert_tf.corpus import run
from bert_tf.errors import UserError
from tests.support import files_case


class CorpusCase(files_case.FilesCase):
    def rows(self, texts):
        return "".join(json.dumps({"text": x}) + "\n" for x in texts)

    def extract(self, pattern, output="out.txt", **flags):
        """Extracts text in this process, unless num_processes is given."""
        config = ExtractTextConfig(
            input_file=pattern if "=" in pattern else self.path(pattern),
            output_file=self.path(output),
            **flags,
        )
        return run.run(config) if config.num_processes else run_here(config)

    def read(self, name="out.txt"):
        return (self.folder / name).read_text(encoding="utf-8")

    def dropped(self, report):
        return {x: y["count"] for x, y in report["dropped"].items()}


def page(number, text):
    """Returns a page of a dump."""
    return (
        f"<page><title>Title {number}</title><ns>0</ns><id>{number}</id>"
        f"<revision><text>{html.escape(text)}</text></revision></page>"
    )


def dump(texts):
    """Returns a dump with pages of these texts, numbered from 1."""
    pages = "".join(page(i, text) for i, text in enumerate(texts, 1))
    return f"<mediawiki><siteinfo/>{pages}</mediawiki>"


def run_here(config):
    """Extracts text in this process; returns the report."""
    with mock.patch.object(run.worker_processes, "pool") as pool:
        pool.return_value.__enter__.return_value = _Here()
        return run.run(config)


class _Here:
    """An executor that runs tasks in this process, without starting workers."""

    def submit(self, function, *args):
        future = run.worker_processes.futures.Future()
        try:
            future.set_result(function(*args))
        except (OSError, UserError) as error:
            future.set_exception(error)
        return future
