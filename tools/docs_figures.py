"""Draws the figures of docs/concepts from the code's own objects.

    python -m tools.docs_figures

MiniLM, from the tests' requirements, computes the vectors and the attention.
The files in docs/images are committed. The site inverts the lightness of .svg
files in its dark theme.
"""

import os
import pathlib
import tempfile
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from matplotlib import rcParams
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

import bert_tf
from bert_tf.commands.create_pretraining_data import CreatePretrainingDataConfig
from bert_tf.config import BertConfig
from bert_tf.data import create as pretraining_data
from bert_tf.modeling import bert as bert_model
from bert_tf.tasks.squad import examples as squad_examples
from bert_tf.tasks.squad import features as squad_features
from tests.support import minilm

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "docs" / "images"
# The paper's example for the sum of embeddings, Figure 2.
_PAIR = ("my dog is cute", "he likes playing")
_AMBIGUOUS = "The animal didn't cross the street because it was too tired."
_TEXT = """\
The lighthouse stood at the end of the pier. Its lamp was lit at dusk.
Ships could see it from twelve miles away. In winter the waves broke over it.

The bakery opens before dawn. The first loaves leave the oven at five.
By noon most shelves are empty. The baker sleeps in the afternoon.
"""
_PARAGRAPH = (
    "The bridge over the Inn was planned for twenty years. The first design "
    "was too heavy for the soft ground. A second one, of steel, was too "
    "expensive. In the end Lena Brunner proposed an arch of concrete, which "
    "needed neither deep foundations nor much steel. It was opened in the "
    "spring of 1931 and has been repaired twice since."
)
_QUESTION = "Who proposed the arch?"
BLUE, ORANGE, GREEN, GRAY = "#1f6fb4", "#d95f02", "#2a8f5b", "#9a9a9a"

rcParams["svg.fonttype"] = "none"
rcParams["svg.hashsalt"] = "bert_tf"
rcParams["font.family"] = "sans-serif"


def new_figure(width: float, height: float) -> Figure:
    """Returns an empty figure of a size in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    return figure


def save(figure: Figure, name: str) -> None:
    """Writes a figure to docs/images."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None})
    # Matplotlib writes spaces at line ends, which must not be committed.
    text = path.read_text(encoding="utf-8")
    path.write_text("\n".join(x.rstrip() for x in text.splitlines()) + "\n")


def _plain(axes) -> None:
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


# === The two phases ===


def count_parameters() -> dict[str, dict[str, int]]:
    """Returns the parameters of BERT-base by part, in each phase."""
    config = BertConfig(vocab_size=30522)
    models = {
        "pretraining": bert_tf.BertForPretraining(config),
        "fine-tuning": bert_tf.BertForClassification(config, num_labels=2),
    }
    counted = {}
    for phase, model in models.items():
        parts: dict[str, int] = {}
        for name, variable in bert_model.named_variables(model).items():
            part = "/".join(name.split("/")[:2])
            if not name.startswith(("bert/", "cls/")):
                part = "output"
            parts[part] = parts.get(part, 0) + int(np.prod(variable.shape))
        counted[phase] = parts
    return counted


_PARTS = {
    "bert/embeddings": "embeddings",
    "bert/encoder": "12 encoder layers",
    "bert/pooler": "pooler",
    "cls/predictions": "masked words",
    "cls/seq_relationship": "next sentence",
    "output": "your labels",
}


def draw_two_phases() -> None:
    """Draws which weights go from pretraining to fine-tuning."""
    counted = count_parameters()
    figure = new_figure(8, 4.2)
    axes = figure.subplots()
    _plain(axes)
    axes.set_xlim(0, 10)
    axes.set_ylim(-0.6, 6.3)
    columns = (
        (
            0.2,
            "pretraining",
            "1  Pretraining",
            "millions of sentences, no labels",
        ),
        (6.2, "fine-tuning", "2  Fine-tuning", "hundreds of labeled texts"),
    )
    for left, phase, title, data in columns:
        axes.text(left, 6.05, title, fontsize=13, weight="bold")
        axes.text(left, -0.45, data, fontsize=10, color="#555555")
        heads = [x for x in counted[phase] if not x.startswith("bert/")]
        for index, part in enumerate([*list(_PARTS)[:3], *heads]):
            is_head = part in heads
            width = 3.6 / len(heads) - 0.1 if is_head else 3.6
            x = (
                left + (3.6 / len(heads)) * heads.index(part)
                if is_head
                else left
            )
            y = 4.5 if is_head else (0, 1.3, 3.3)[index]
            height = 1.0 if is_head or index != 1 else 1.8
            color = ORANGE if is_head else BLUE
            axes.add_patch(
                FancyBboxPatch(
                    (x, y), width, height, "round,pad=0,rounding_size=0.12",
                    facecolor=color, alpha=0.16, edgecolor=color,
                )
            )  # fmt: skip
            axes.text(
                x + width / 2, y + height / 2,
                f"{_PARTS[part]}\n{_number(counted[phase][part])}",
                ha="center", va="center", fontsize=10,
            )  # fmt: skip
    for y in (0.5, 2.2, 3.8):
        axes.annotate(
            "",
            (6.1, y),
            (3.9, y),
            arrowprops={"arrowstyle": "->", "color": BLUE},
        )
    axes.text(5, 4.25, "the same weights", ha="center", color=BLUE, fontsize=10)
    axes.text(5, 5.0, "new", ha="center", color=ORANGE, fontsize=10)
    save(figure, "two_phases")


def _number(count: int) -> str:
    return f"{count / 1e6:.1f} M" if count >= 1e5 else f"{count:,}"


# === The sum of embeddings ===


def embeddings() -> tuple[list[str], dict[str, np.ndarray]]:
    """Returns tokens, and by name the embeddings that are added up, [T, H]."""
    model = bert_tf.load_model(
        minilm.directory(), "encoder", return_embeddings=True
    )
    tokenizer = model.preprocessor.tokenizer
    inputs = tokenizer([_PAIR[0]], [_PAIR[1]])
    length = int(tf.reduce_sum(inputs["input_mask"]))
    ids = inputs["input_ids"][0, :length].numpy()
    segments = inputs["segment_ids"][0, :length].numpy()
    tables = {
        name.rpartition("/")[2]: variable.numpy()
        for name, variable in bert_model.named_variables(model).items()
        if name.startswith("bert/embeddings/")
    }
    rows = {
        "token": tables["word_embeddings"][ids],
        "position": tables["position_embeddings"][:length],
        "segment": tables["token_type_embeddings"][segments],
    }
    rows["sum"] = sum(rows.values())
    rows["normalized"] = model(inputs)["embedding_output"].numpy()[0, :length]
    tokens = [x.decode() for x in tokenizer.tokens(ids).numpy()]
    return tokens, rows


def draw_embeddings(dimensions: int = 8) -> None:
    """Draws the first numbers of each vector as colors."""
    tokens, rows = embeddings()
    figure = new_figure(8.4, 4.4)
    axes = figure.subplots(len(rows), 1, sharex=True)
    signs = ("", "+", "+", "=", "→")
    names = (
        "token", "position", "segment", "sum", "layer\nnormalization"
    )  # fmt: skip
    for row, (axis, sign, name) in enumerate(
        zip(axes, signs, names, strict=True)
    ):
        values = list(rows.values())[row][:, :dimensions]
        limit = np.abs(values).max()
        picture = np.full((1, len(tokens) * (dimensions + 1)), np.nan)
        for index, vector in enumerate(values):
            start = index * (dimensions + 1)
            picture[0, start : start + dimensions] = vector
        axis.imshow(
            picture, cmap="RdBu_r", aspect="auto", vmin=-limit, vmax=limit
        )
        _plain(axis)
        axis.set_ylabel(f"{sign}  {name}", rotation=0, ha="right", va="center")
    centers = np.arange(len(tokens)) * (dimensions + 1) + (dimensions - 1) / 2
    axes[0].set_xticks(centers, tokens)
    axes[0].xaxis.tick_top()
    for axis in axes:
        axis.tick_params(length=0)
    for index, x in enumerate(centers):
        axes[1].text(x, 1.1, str(index), ha="center", va="top", fontsize=8)
        segment = "AB"[index > tokens.index("[SEP]")]
        axes[2].text(x, 1.1, segment, ha="center", va="top", fontsize=8)
    save(figure, "embeddings")


# === Masking in real records ===


def records() -> Iterator[tuple[list[tuple[str, str, str]], bool]]:
    """Yields (tokens, is_next); a token is (original, shown, kind of mask)."""
    tokenizer = bert_tf.load_tokenizer(minilm.directory())
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text.txt")
        pathlib.Path(text).write_text(_TEXT, encoding="utf-8")
        output = os.path.join(folder, "records.tfrecord")
        pretraining_data.create(
            CreatePretrainingDataConfig(
                input_file=text,
                output_file=output,
                vocab_file=os.path.join(minilm.directory(), "vocab.txt"),
                max_seq_length=36,
                dupe_factor=3,
                random_seed=2,
                num_processes=1,
            )
        )
        for data in tf.data.TFRecordDataset(output).as_numpy_iterator():
            yield _read_record(data, tokenizer)


def _read_record(data: bytes, tokenizer) -> tuple[list, bool]:
    features = tf.train.Example.FromString(data).features.feature
    ids = list(features["input_ids"].int64_list.value)
    length = sum(features["input_mask"].int64_list.value)
    original = list(ids)
    done = dict.fromkeys(range(length), "")
    chosen = zip(
        features["masked_lm_positions"].int64_list.value,
        features["masked_lm_ids"].int64_list.value,
        features["masked_lm_weights"].float_list.value,
        strict=True,
    )
    for position, label, weight in chosen:
        if weight:
            original[position] = label
            if ids[position] == tokenizer.vocabulary.mask_id:
                done[position] = "masked"
            else:
                done[position] = "kept" if ids[position] == label else "random"
    names = [
        [x.decode() for x in tokenizer.tokens(values[:length]).numpy()]
        for values in (original, ids)
    ]
    is_next = not features["next_sentence_labels"].int64_list.value[0]
    return list(zip(*names, done.values(), strict=True)), is_next


_DONE = {"masked": BLUE, "random": ORANGE, "kept": GREEN}


def draw_masking() -> None:
    """Draws two records that have all three kinds of masks."""
    shown = {}
    for tokens, is_next in records():
        kinds = {done for _, _, done in tokens}
        old = shown.get(is_next)
        if old is None or len(kinds) > len({x for _, _, x in old}):
            shown[is_next] = tokens
    figure = new_figure(8.4, 4.6)
    axes = figure.subplots(2, 1)
    titles = {
        True: "the second part follows the first: label 0",
        False: "the second part is from another text: label 1",
    }
    for axis, (is_next, title) in zip(axes, titles.items(), strict=True):
        _plain(axis)
        axis.set_title(title, loc="left", fontsize=11)
        _draw_record(axis, shown[is_next])
    handles = [
        axes[0].plot([], [], color=color, linewidth=6, alpha=0.4)[0]
        for color in _DONE.values()
    ]
    figure.legend(
        handles,
        ["replaced by [MASK]", "replaced by a random token", "kept"],
        loc="outside lower left",
        ncols=3,
        frameon=False,
        title="to predict",
        alignment="left",
    )
    save(figure, "masking")


def _draw_record(axis, tokens: list[tuple[str, str, str]]) -> None:
    x, y, width = 0.0, 0.0, 88.0
    for original, shown, done in tokens:
        size = 0.95 * max(len(shown), len(original) if done else 0) + 1.2
        if x + size > width:
            x, y = 0.0, y - 2.6
        color = _DONE.get(done)
        if color:
            axis.add_patch(
                FancyBboxPatch(
                    (x, y - 0.75), size - 0.5, 1.5,
                    "round,pad=0,rounding_size=0.3",
                    facecolor=color, alpha=0.25, edgecolor="none",
                )
            )  # fmt: skip
            axis.text(
                x + (size - 0.5) / 2, y - 1.3, original,
                ha="center", va="center", fontsize=7.5, color=color,
            )  # fmt: skip
        is_special = shown in ("[CLS]", "[SEP]")
        axis.text(
            x + (size - 0.5) / 2, y, shown, ha="center", va="center",
            fontsize=9, color=GRAY if is_special else "black",
        )  # fmt: skip
        x += size
    axis.set_xlim(0, width)
    axis.set_ylim(y - 2, 1.2)


# === Windows over a long text ===


def windows() -> tuple[list[str], list[squad_features.InputFeatures]]:
    """Returns the tokens of a paragraph and the windows over it."""
    tokenizer = bert_tf.load_tokenizer(minilm.directory())
    example = squad_examples.make_example("q", _QUESTION, _PARAGRAPH)
    made = squad_features.convert_examples_to_features(
        [example],
        tokenizer,
        max_seq_length=40,
        doc_stride=12,
        max_query_length=16,
        is_training=False,
    )
    words = _PARAGRAPH.split()
    ids = tokenizer.tokenize(words).to_list()
    tokens = [x.decode() for x in tokenizer.tokens(sum(ids, [])).numpy()]
    return tokens, list(made)


def draw_windows() -> None:
    """Draws each window's tokens, darker if it has the most context."""
    tokens, made = windows()
    figure = new_figure(8.4, 2.6)
    axes = figure.subplots()
    start = 0
    starts = []
    for number, window in enumerate(made):
        count = len(window.word_indices)
        if number:
            start += 12
        starts.append(start)
        for index in range(count):
            best = bool(window.is_max_context[index])
            axes.barh(
                number, 0.92, left=start + index, height=0.62,
                color=BLUE if best else "#c9dcec",
            )  # fmt: skip
        axes.text(
            start - 0.6, number, "question +", ha="right", va="center",
            fontsize=8, color=GRAY,
        )  # fmt: skip
    answer = tokens.index("lena")
    axes.axvspan(answer, answer + 2, color=ORANGE, alpha=0.3, linewidth=0)
    axes.text(
        answer + 1, -0.75, "answer", ha="center", color=ORANGE, fontsize=9
    )
    axes.set_yticks(
        range(len(made)), [f"window {i + 1}" for i in range(len(made))]
    )
    axes.set_ylim(len(made) - 0.5, -1.1)
    axes.set_xlim(-7, len(tokens))
    axes.set_xticks(range(0, len(tokens), 12))
    axes.set_xlabel("token of the paragraph")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    save(figure, "windows")


# === Attention of a sentence ===


def attention() -> tuple[list[str], np.ndarray]:
    """Returns tokens and attention [layers, heads, T, T] of a sentence."""
    model = bert_tf.load_model(
        minilm.directory(), "encoder", return_attention_probs=True
    )
    tokenizer = model.preprocessor.tokenizer
    inputs = tokenizer([_AMBIGUOUS])
    length = int(tf.reduce_sum(inputs["input_mask"]))
    ids = inputs["input_ids"][0, :length]
    probs = np.stack([x.numpy()[0] for x in model(inputs)["attention_probs"]])
    tokens = [x.decode() for x in tokenizer.tokens(ids).numpy()]
    return tokens, probs[:, :, :length, :length]


def choose_heads(tokens: list[str], probs: np.ndarray):
    """Yields titles and scores [layers, heads]; the highest selects a head."""
    inner = slice(1, len(tokens) - 1)
    before = np.diagonal(probs, -1, 2, 3)[..., 1:-1].mean(-1)
    yield "the token before", before
    yield "[CLS], whatever the token", probs[:, :, inner, 0].mean(-1)
    it, animal = tokens.index("it"), tokens.index("animal")
    yield "from “it” to “animal”", probs[:, :, it, animal]


def draw_attention() -> None:
    """Draws three heads of MiniLM that do different things."""
    tokens, probs = attention()
    figure = new_figure(9.6, 4.0)
    axes = figure.subplots(1, 3, sharey=True)
    for axis, (title, scores) in zip(
        axes, choose_heads(tokens, probs), strict=True
    ):
        layer, head = np.unravel_index(scores.argmax(), scores.shape)
        axis.imshow(probs[layer, head], cmap="Blues", vmin=0, vmax=1)
        axis.set_title(
            f"{title}\nlayer {layer + 1}, head {head + 1}", fontsize=10
        )
        axis.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=8)
        axis.set_yticks(range(len(tokens)), tokens, fontsize=8)
        axis.tick_params(length=0)
    axes[0].set_ylabel("from")
    for axis in axes:
        axis.set_xlabel("to")
    save(figure, "attention")


if __name__ == "__main__":
    draw_two_phases()
    draw_embeddings()
    draw_masking()
    draw_windows()
    draw_attention()
