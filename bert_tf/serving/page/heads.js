/** Detects a model's head, and lists its input fields and examples. */

const LABELS = {
  text: "Text",
  text_pair: "Second text",
  question: "Question",
  context: "Context",
  choices: "Choices, one on each line",
};

const PAIRS = [
  {
    text: "A man is playing a guitar.",
    text_pair: "Someone plays an instrument.",
  },
  {
    text: "Two dogs run through the snow.",
    text_pair: "The bank opens at nine.",
  },
];

/** Examples of single texts; the first entry that matches a label is shown. */
const SINGLE_TEXTS = [
  {
    labels: /^(very[ _-]?)?(pos|neg)|sentiment|\bstars?\b|^(good|bad)$/i,
    examples: [
      {text: "A quiet, funny film with a heart of gold."},
      {text: "The plot is thin, and the songs are worse."},
    ],
  },
  {
    labels: /^(world|sports?|business|politics|science|tech|health|economy)/i,
    examples: [
      {text: "The home side won the final after extra time, before 60,000."},
      {text: "Shares fell after the bank raised its interest rates again."},
    ],
  },
  {
    labels: /^(spam|ham|junk)$/i,
    examples: [
      {text: "You have won a free phone! Send your address to claim it."},
      {text: "Are we still meeting at the station at six?"},
    ],
  },
  {
    labels: /^(joy|anger|fear|sad|happy|surprise|love)/i,
    examples: [
      {text: "I cannot stop smiling, she said yes!"},
      {text: "I lie awake and listen for steps on the stairs."},
    ],
  },
  {
    labels: null,
    examples: [
      {text: "I ordered a new card two weeks ago. When will it arrive?"},
      {text: "Thank you, the transfer has worked now."},
    ],
  },
];

/** The known heads; the first one that matches a signature is its head. */
const HEADS = [
  {
    name: "question_answering",
    outputs: ["answer", "start", "end", "score", "no_answer_score"],
    title: "Question answering",
    about: "Finds the answer to a question in a text, or says that there " +
      "is none.",
    rows: {question: 1, context: 8},
    examples: [
      {
        question: "When was the lighthouse built?",
        context: "The lighthouse stands on a rock before the harbor. It " +
          "was built in 1871 by two brothers from the village, after the " +
          "storm that sank eleven fishing boats. Its lamp burned oil until " +
          "1926.",
      },
      {
        question: "Who eats the crêpes?",
        context: "On Sundays Zoë bakes crêpes 🥞 for everyone. Her father " +
          "takes his with cheese; most are eaten by her brother Émile.",
      },
    ],
  },
  {
    name: "tagging",
    outputs: ["words", "tags", "starts", "ends"],
    title: "Tagging",
    about: "Gives each word of a text a tag.",
    rows: {text: 4},
    examples: [
      {text: "Ada Lovelace met Charles Babbage in London in June 1833."},
      {text: "The café in São Paulo sells 🍰 from Vienna."},
    ],
  },
  {
    name: "fill_mask",
    outputs: ["tokens", "probabilities"],
    title: "Fill-mask",
    about: "Predicts the tokens in place of each [MASK].",
    rows: {text: 3},
    mask: true,
    examples: [
      {text: "The [MASK] sat on the mat."},
      {text: "Paris is the [MASK] of [MASK]."},
    ],
  },
  {
    name: "embeddings",
    outputs: ["embedding"],
    title: "Embedding",
    about: "Turns a text into a vector; texts that mean the same are close.",
    rows: {text: 3},
    examples: [
      {text: "The cat sleeps on the sofa."},
      {text: "A kitten is napping on the couch."},
      {text: "Interest rates rose again in March."},
    ],
  },
  {
    name: "multiple_choice",
    outputs: ["index", "probabilities"],
    inputs: ["choices"],
    title: "Multiple choice",
    about: "Chooses the continuation that fits a text best.",
    rows: {text: 3, choices: 4},
    examples: [
      {
        text: "She put the kettle on the stove and",
        choices: "waited for the water to boil.\n" +
          "the mountain was very high.\nswam to the other shore.\n" +
          "painted it with a spoon.",
      },
    ],
  },
  {
    name: "multi_label",
    outputs: ["labels", "probabilities"],
    title: "Labels, any number",
    about: "Decides for each label whether it holds.",
    rows: {text: 3, text_pair: 3},
    examples: PAIRS,
  },
  {
    name: "classification",
    outputs: ["label", "probabilities"],
    title: "Classification",
    about: "Predicts one label for a text.",
    rows: {text: 3, text_pair: 3},
    examples: PAIRS,
  },
  {
    name: "regression",
    outputs: ["score"],
    title: "Regression",
    about: "Answers with a number.",
    rows: {text: 3, text_pair: 3},
    examples: PAIRS,
  },
];

/**
 * Returns the head of a signature: an entry of `HEADS`, with its `fields`.
 *
 * @param {{inputs: Object, outputs: Object}} signature From `client`.
 */
export function headOf(signature) {
  const kinds = Object.entries(signature.inputs).map(
    ([name, input]) => [name, fieldKind(input)]);
  if (!kinds.length || kinds.some(([, kind]) => kind === null)) {
    return unknown(signature);
  }
  const head = HEADS.find((one) =>
    one.outputs.every((name) => name in signature.outputs) &&
    (one.inputs ?? []).every((name) => name in signature.inputs)) ??
    {
      name: "other",
      title: "Prediction",
      about: "The signature is none that this page knows, so the answer is " +
        "shown as it comes.",
      rows: {},
      examples: [{}],
    };
  const order = Object.keys(LABELS);
  const rank = (name) => (order.indexOf(name) + order.length) % order.length;
  const fields = kinds
    .sort(([a], [b]) => rank(a) - rank(b))
    .map(([name, kind]) => ({
      name,
      kind,
      label: LABELS[name] ?? name,
      rows: head.rows[name] ?? 3,
    }));
  if (fields.some(({name}) => name === "text_pair")) {
    fields.find(({name}) => name === "text").label = "First text";
  }
  return {...head, fields};
}

/**
 * Returns examples for a head; for single texts, the labels select them.
 *
 * @param {Object} head From `headOf`.
 * @param {?Array<string>} labels The names of all labels, if there are any.
 */
export function examplesOf(head, labels) {
  const names = head.fields.map(({name}) => name);
  const isClassifier = ["classification", "multi_label"].includes(head.name);
  if (!isClassifier || names.includes("text_pair")) return head.examples;
  return SINGLE_TEXTS.find((one) => one.labels === null ||
    (labels ?? []).some((label) => one.labels.test(label))).examples;
}

/**
 * Returns the first text field that is blank, or undefined.
 *
 * A blank context is allowed, so that users can see "no answer".
 */
export function blankField(head, values) {
  if (head.name === "other") return undefined;
  return head.fields.find(({name, kind}) =>
    kind === "text" && name !== "context" && !values[name].trim());
}

/** Returns the input field for a string: "text", "lines", or null if none. */
function fieldKind({dtype, shape}) {
  if (dtype !== "DT_STRING" || shape === null) return null;
  return {1: "text", 2: "lines"}[shape.length] ?? null;
}

/** Returns a head with a JSON field, for signatures without text inputs. */
function unknown(signature) {
  const row = Object.fromEntries(Object.entries(signature.inputs).map(
    ([name, {dtype, shape}]) => [name, sample(dtype, (shape ?? []).slice(1))]));
  return {
    name: "other",
    title: "Prediction",
    about: "The model does not take text, so its input is typed as JSON: " +
      "one row, an object with a value for each input.",
    fields: [{name: "json", kind: "json", label: "One row", rows: 8}],
    examples: [{json: JSON.stringify(row, null, 1)}],
  };
}

function sample(dtype, shape) {
  if (shape.length) {
    const count = shape[0] < 0 ? 2 : shape[0];
    return Array.from({length: count}, () => sample(dtype, shape.slice(1)));
  }
  return {DT_STRING: "", DT_BOOL: false}[dtype] ?? 0;
}

/**
 * Returns a row in the server's format.
 *
 * @param {Object} head From `headOf`.
 * @param {Object<string, string>} values The contents of the fields.
 * @throws {SyntaxError} If a JSON field is not valid JSON.
 */
export function instanceOf(head, values) {
  if (head.fields[0].kind === "json") return JSON.parse(values.json);
  return Object.fromEntries(head.fields.map(({name, kind}) => [
    name,
    kind === "lines"
      ? values[name].split("\n").filter((line) => line.trim())
      : values[name],
  ]));
}
