"""Makes the small data sets of the guides, in docs/samples/.

The texts of docs/samples/topics are written by hand. All other texts are filled
templates; names and words in the gaps differ between dev and training files.
Every call makes identical files.
"""

import csv
import json
import pathlib
import random
from collections.abc import Iterator

_FOLDER = pathlib.Path(__file__).resolve().parents[1] / "docs" / "samples"
_SEED = 1

_FIRST = (
    "Anna Ben Clara David Elena Felix Grace Hugo Irene Jonas Karin Leo Maria "
    "Nadia Oscar Paula Rosa Simon Tara Viktor Wanda Yusuf Amira Boris Carmen "
    "Dario Edith Farah Goran Hanna Ivan Julia Kofi Lena Milan Nora Omar Pia"
).split()
_LAST = (
    "Novak Okafor Lindgren Moreau Castillo Weber Tanaka Petrov Doyle Haddad "
    "Rossi Kovacs Silva Berger Jensen Mensah Fischer Ortega Bianchi Larsen "
    "Walker Nowak Sato Costa Meyer Brandt Dubois Ferreira Hughes Ito"
).split()
_CITIES = (
    "Graz Porto Lyon Ghent Turin Bergen Malmo Leipzig Krakow Split Brno "
    "Utrecht Cork Aarhus Seville Nantes Basel Trieste Tartu Gdansk Bilbao "
    "Salzburg Osaka Quito Dakar Lima Tampere Bristol"
).split()
_ORGANIZATIONS = (
    "Northlight|Helios Energy|Blue Harbor Bank|Marlin Foods|Vega Labs|"
    "Stone Bridge Press|Alpina Rail|Corvus Motors|Green Acre|Delta Shipping|"
    "Falcon Air|Quill Media|Orion Steel|Sunrise Dairy|Amber Glass|"
    "Nordic Timber|Polar Games|Atlas Insurance"
).split("|")
_JOBS = (
    "surveyor|violin maker|nurse|bridge engineer|baker|translator|geologist|"
    "stage designer|pilot|chemist|gardener|notary|teacher|clockmaker"
).split("|")

# Names of persons, places and organizations replace {PER}, {LOC} and {ORG}.
_NAME_SENTENCES = (
    "{PER} moved from {LOC} to {LOC} in March .",
    "{ORG} opens a second office in {LOC} .",
    "The board of {ORG} has appointed {PER} .",
    "{PER} , who grew up in {LOC} , now works for {ORG} .",
    "Trains between {LOC} and {LOC} run every hour .",
    "According to {PER} , the plant in {LOC} stays open .",
    "{ORG} and {ORG} announced a joint venture .",
    "The festival in {LOC} was opened by {PER} and {PER} .",
    "Nobody was hurt when the roof collapsed .",
    "Engineers of {ORG} are repairing the bridge near {LOC} .",
    "Prices rose again last month , said {PER} of {ORG} .",
    "In {LOC} the schools reopen on Monday .",
    "The prize went to {PER} for her work in {LOC} .",
    "He sold his shares to {ORG} .",
)
_NAME_SENTENCES_OF_DEV = (
    "{PER} left {ORG} after a dispute .",
    "The mayor of {LOC} met {PER} yesterday .",
    "{ORG} , based in {LOC} , will hire forty people .",
    "A spokesman for {ORG} denied the report .",
    "Heavy rain flooded streets in {LOC} and {LOC} .",
    "{PER} and her brother {PER} run a shop in {LOC} .",
    "The strike ended without a result .",
    "Investors see {ORG} ahead of {ORG} .",
)
# Paragraphs, each with questions and the names of the values that answer them.
_PARAGRAPHS = (
    (
        "{person} was born in {city} in {year}. After school {person} trained "
        "as a {job} and later joined {organization}, where {person} still "
        "works.",
        (
            ("Where was {person} born?", "city"),
            ("In which year was {person} born?", "year"),
            ("What is the profession of {person}?", "job"),
        ),
    ),
    (
        "{organization} is a company from {city}. It was founded in {year} by "
        "{person}, a former {job}, and employs {number} people today.",
        (
            ("Who founded {organization}?", "person"),
            ("When was {organization} founded?", "year"),
            ("How many people work for {organization}?", "number"),
        ),
    ),
    (
        "The old town hall of {city} was rebuilt in {year}. {organization} "
        "paid for the roof, and {person} designed the tower, which is "
        "{number} meters high.",
        (
            ("Who designed the tower in {city}?", "person"),
            ("Who paid for the roof of the town hall?", "organization"),
            ("How high is the tower, in meters?", "number"),
        ),
    ),
)
_CATEGORIES = {
    "an animal": "horse|badger|otter|goose|salmon|lizard|beetle|squirrel|mole|"
    "crow|trout|hare|wolf|heron",
    "a tool": "hammer|saw|chisel|wrench|drill|pliers|screwdriver|axe|file|"
    "spanner|plane|crowbar|trowel|clamp",
    "a fruit": "apple|cherry|plum|pear|apricot|grape|melon|peach|fig|"
    "lemon|mango|orange|raspberry|kiwi",
    "a piece of clothing": "shirt|jacket|scarf|glove|sock|coat|skirt|hat|"
    "sweater|belt|apron|trousers|vest|dress",
    "a vehicle": "lorry|bicycle|tram|ferry|tractor|scooter|van|bus|"
    "train|canoe|taxi|wagon|glider|truck",
    "a musical instrument": "violin|trumpet|drum|flute|cello|harp|piano|"
    "guitar|clarinet|organ|oboe|banjo|accordion|trombone",
}
_QUESTIONS = ("Which of these is {}?", "Find {}.", "One of these is {}.")
_QUESTIONS_OF_DEV = ("Only one of these words names {}.",)
_NUM_CHOICES = 4


def _split(items: list[str], is_dev: bool) -> list[str]:
    """Returns the first three quarters of the items, or the rest for dev."""
    border = len(items) * 3 // 4
    return items[border:] if is_dev else items[:border]


class _Names:
    """Draws names; names in dev files never appear in training files."""

    def __init__(self, rng: random.Random, is_dev: bool) -> None:
        self._rng = rng
        self._first = _split(_FIRST, is_dev)
        self._last = _split(_LAST, is_dev)
        self._lists = {
            "LOC": _split(_CITIES, is_dev),
            "ORG": _split(_ORGANIZATIONS, is_dev),
        }

    def draw(self, kind: str) -> str:
        if kind == "PER":
            lists = (self._first, self._last)
            return " ".join(map(self._rng.choice, lists))
        return self._rng.choice(self._lists[kind])


def tagged_sentences(count: int, is_dev: bool) -> Iterator[str]:
    """Yields sentences, each line a word and its IOB2 tag: "Lyon B-LOC"."""
    rng = random.Random(f"{_SEED} names {is_dev}")
    names = _Names(rng, is_dev)
    templates = _NAME_SENTENCES_OF_DEV if is_dev else _NAME_SENTENCES
    for index in range(count):
        lines = []
        for word in templates[index % len(templates)].split():
            if not word.startswith("{"):
                lines.append(f"{word} O")
                continue
            kind = word.strip("{}")
            for number, part in enumerate(names.draw(kind).split()):
                lines.append(f"{part} {'BI'[number > 0]}-{kind}")
        yield "".join(f"{line}\n" for line in lines)


def questions(count: int, is_dev: bool) -> dict:
    """Returns paragraphs with questions in the form of SQuAD."""
    rng = random.Random(f"{_SEED} questions {is_dev}")
    names = _Names(rng, is_dev)
    paragraphs = []
    for index in range(count):
        text, asked = _PARAGRAPHS[index % len(_PARAGRAPHS)]
        values = {
            "person": names.draw("PER"),
            "city": names.draw("LOC"),
            "organization": names.draw("ORG"),
            "job": rng.choice(_split(_JOBS, is_dev)),
            "year": str(rng.randint(1900, 2015)),
            "number": str(rng.randint(21, 99)),
        }
        context = text.format(**values)
        paragraphs.append(
            {
                "context": context,
                "qas": [
                    {
                        "id": f"{index}-{number}",
                        "question": question.format(**values),
                        "answers": [
                            {
                                "text": values[key],
                                "answer_start": context.index(f" {values[key]}")
                                + 1,
                            }
                        ],
                    }
                    for number, (question, key) in enumerate(asked)
                ],
            }
        )
    return {
        "version": "1.1",
        "data": [{"title": "Samples", "paragraphs": paragraphs}],
    }


def quiz(count: int, is_dev: bool) -> Iterator[list[str]]:
    """Yields a question, four words, and the index of the correct word."""
    rng = random.Random(f"{_SEED} quiz {is_dev}")
    words = {
        category: _split(text.split("|"), is_dev)
        for category, text in _CATEGORIES.items()
    }
    templates = _QUESTIONS_OF_DEV if is_dev else _QUESTIONS
    for _ in range(count):
        right, *others = rng.sample(sorted(words), _NUM_CHOICES)
        choices = [rng.choice(words[category]) for category in others]
        label = rng.randrange(_NUM_CHOICES)
        choices.insert(label, rng.choice(words[right]))
        question = rng.choice(templates).format(right)
        yield [question, *choices, str(label)]


def write(folder: pathlib.Path = _FOLDER) -> None:
    """Writes all files except the topics files."""
    for name in ("names", "questions", "quiz"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for split, is_dev in (("train", False), ("dev", True)):
        sentences = tagged_sentences(64 if is_dev else 280, is_dev)
        path = folder / "names" / f"{split}.conll"
        path.write_text("\n".join(sentences), encoding="utf-8")
        path = folder / "questions" / f"{split}.json"
        values = questions(18 if is_dev else 72, is_dev)
        text = json.dumps(values, indent=1, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")
        path = folder / "quiz" / f"{split}.csv"
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["question", "a", "b", "c", "d", "answer"])
            writer.writerows(quiz(60 if is_dev else 240, is_dev))


if __name__ == "__main__":
    write()
