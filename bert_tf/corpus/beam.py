"""An Apache Beam pipeline that extracts and filters the chunks of a corpus.

The parts are equal byte for byte to those of local processes: each step calls
the same function. Duplicates are found, and the text is written, without Beam.
Workers and launcher share the work folder, `<output_file>.work`. A killed run
resumes from it, with or without Beam.
"""

import dataclasses
import json
import os
from collections.abc import Iterator
from collections.abc import Sequence

import apache_beam as beam

from bert_tf import errors
from bert_tf.corpus import extraction
from bert_tf.corpus import inputs
from bert_tf.corpus.documents import Chunk
from bert_tf.corpus.extraction import ExtractOptions
from bert_tf.corpus.extraction import Part
from bert_tf.corpus.inputs import InputFile
from bert_tf.distribute import beam_runner
from bert_tf.flags.options import Flags
from bert_tf.io import compression
from bert_tf.io import files


def extract(
    config: Flags,
    found: Sequence[InputFile],
    options: ExtractOptions,
    folder: str,
    work_dir: str,
) -> list[Part]:
    """Extracts the chunks whose parts are missing; returns all parts.

    Args:
      config: Has the runner and its options.
      found: The input files.
      options: The flags that decide which text a chunk gives.
      folder: Holds the parts.
      work_dir: For the lists of each file's parts.

    Raises:
      UserError: If the input is unsuitable, the disk is full, or an option for
        Beam is unknown.
    """

    def build(pipeline: beam.Pipeline) -> None:
        _ = (
            pipeline
            | "files" >> beam.Create(list(enumerate(found)))
            | "spread the files" >> beam.Reshuffle()
            | "cut" >> beam.ParDo(_Cut(work_dir, options, folder))
            | "spread the chunks" >> beam.Reshuffle()
            | "extract" >> beam.ParDo(_Extract(work_dir, options))
        )

    num_bytes = sum(compression.stored_size(file.path) for file in found)
    what = (
        f"Extracting text from {num_bytes / 1e6:.1f} MB of {len(found)} files"
    )
    beam_runner.run(config, work_dir, f"{what} files", build)
    extracted = []
    for number, file in enumerate(found):
        with open(_list_path(work_dir, number), encoding="utf-8") as stored:
            extracted += [Part(key, file.language) for key in json.load(stored)]
    return extracted


def _list_path(work_dir: str, file: int) -> str:
    return os.path.join(work_dir, "lists", f"file-{file:06d}.json")


@dataclasses.dataclass(eq=False, repr=False)
class _Cut(beam_runner.Step):
    """Cuts numbered files into chunks; lists their parts."""

    options: ExtractOptions
    folder: str

    def work(
        self, element: tuple[int, InputFile]
    ) -> Iterator[tuple[Chunk, str]]:
        number, file = element
        keys = []
        with errors.full_disks():
            for chunk in inputs.split(file):
                keys.append(extraction.part_key(chunk, self.options))
                path = extraction.part_path(self.folder, keys[-1])
                if not os.path.exists(path):
                    yield chunk, path
            with files.atomic_file(_list_path(self.work_dir, number)) as path:
                with open(path, "w", encoding="utf-8") as stored:
                    json.dump(keys, stored)


@dataclasses.dataclass(eq=False, repr=False)
class _Extract(beam_runner.Step):
    """Writes the part of a chunk."""

    options: ExtractOptions

    def work(self, element: tuple[Chunk, str]) -> Iterator[None]:
        chunk, path = element
        with errors.full_disks():
            # A runner may process the same element again.
            if not os.path.exists(path):
                extraction.extract(chunk, self.options, path)
        yield from ()
