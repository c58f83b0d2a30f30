/**
 * Shows the answers of the heads. Each function takes the row that the
 * server returned and the row that was sent.
 */

import {element, facts} from "/page/dom.js";
import {embeddingView} from "/page/embedding.js";

const MOST_BARS = 10;
const HUES = 8;

/** Returns the elements that show an answer. */
export function view(head, row, sent, names) {
  const show = {
    question_answering: answerView,
    tagging: tagsView,
    fill_mask: masksView,
    embeddings: embeddingView,
    multiple_choice: choicesView,
    multi_label: multiLabelView,
    classification: labelView,
    regression: scoreView,
  }[head.name];
  return show ? show(row, sent, names) : jsonView(row);
}

/** Formats a probability. */
export function percent(probability) {
  if (probability > 0 && probability < 0.001) return "< 0.1 %";
  return `${(100 * probability).toFixed(1)} %`;
}

function labelView(row, sent, names) {
  const labels = row.probabilities.map((_, i) => names?.[i] ?? `class ${i}`);
  return [
    element("p.headline", {}, row.label),
    bars(row.probabilities, labels, (i) => labels[i] === row.label),
  ];
}

function multiLabelView(row, sent, names) {
  const labels = row.probabilities.map((_, i) => names?.[i] ?? `class ${i}`);
  const chosen = row.labels.filter((label) => label);
  return [
    element("p.headline", {}, chosen.join(", ") || "No label holds"),
    bars(row.probabilities, labels, (i) => chosen.includes(labels[i])),
    element("p.quiet", {}, "Each label is judged by itself, so the bars do " +
      "not add up to 100 %."),
  ];
}

function choicesView(row, sent) {
  if (!row.probabilities.length) {
    return [element("p.headline.none", {}, "There is nothing to choose from")];
  }
  const choices = row.probabilities.map((_, i) => sent.choices?.[i] ?? "");
  return [
    element("p.headline", {}, choices[row.index]),
    bars(row.probabilities, choices, (i) => i === row.index),
  ];
}

function scoreView(row) {
  return [
    element("p.headline.figure", {}, row.score.toFixed(3).replace("-", "−")),
    element("p.quiet", {}, `The score as it is computed: ${row.score}`),
  ];
}

function jsonView(row) {
  const text = JSON.stringify(row, null, 2);
  return [element("pre.json", {tabindex: 0}, text)];
}

/**
 * Returns bars, the longest first.
 *
 * @param {Array<number>} probabilities One for each label.
 * @param {Array<string>} labels The names of the labels.
 * @param {function(number): boolean} isChosen True for chosen labels.
 */
function bars(probabilities, labels, isChosen) {
  const order = probabilities
    .map((_, i) => i)
    .sort((a, b) => probabilities[b] - probabilities[a] || a - b);
  const items = order.map((i) => bar(probabilities[i], labels[i], isChosen(i)));
  const list = element("ol.bars", {}, ...items.slice(0, MOST_BARS));
  if (items.length <= MOST_BARS) return list;
  const button = element(
    "button", {type: "button"}, `Show all ${items.length}`);
  button.addEventListener("click", () => {
    list.append(...items.slice(MOST_BARS));
    button.remove();
  });
  return element("div", {}, list, button);
}

function bar(probability, label, isChosen) {
  const filled = element("span.filled");
  filled.style.width = `${100 * Math.min(1, Math.max(0, probability))}%`;
  return element(
    isChosen ? "li.chosen" : "li",
    {title: `${label}: ${probability}`},
    element("span.name", {}, label),
    element("span.share", {}, percent(probability)),
    element("span.track", {"aria-hidden": "true"}, filled));
}

/**
 * Returns the answer to a question, highlighted in its context.
 *
 * Characters count as in Python: an emoji, two units in JavaScript, is one
 * character.
 */
function answerView(row, sent) {
  const characters = Array.from(sent.context);
  const found = row.start >= 0;
  const part = (start, end) => characters.slice(start, end).join("");
  const context = element("p.context", {lang: ""});
  if (found) {
    context.append(
      part(0, row.start),
      element("mark", {}, part(row.start, row.end)),
      part(row.end));
  } else {
    context.append(sent.context);
  }
  const known = {
    "Score": percent(row.score),
    "No answer": percent(row.no_answer_score),
  };
  if (found) known["Characters"] = `${row.start} to ${row.end}`;
  return [
    element(found ? "p.headline" : "p.headline.none", {},
      found ? row.answer : "No answer in this context"),
    facts(known),
    context,
  ];
}

/** Returns a text whose tagged words are colored, and a legend. */
function tagsView(row, sent) {
  const characters = Array.from(sent.text);
  const entities = joined(row);
  const hues = new Map();
  for (const {kind} of entities) {
    if (!hues.has(kind)) hues.set(kind, `hue-${hues.size % HUES}`);
  }
  const text = element("p.tagged", {lang: ""});
  let end = 0;
  for (const entity of entities) {
    text.append(
      characters.slice(end, entity.start).join(""),
      element(`span.entity.${hues.get(entity.kind)}`, {},
        characters.slice(entity.start, entity.end).join(""),
        element("span.kind", {}, entity.kind)));
    end = entity.end;
  }
  text.append(characters.slice(end).join(""));
  const legend = element("ul.legend", {"aria-label": "Legend"},
    ...Array.from(hues, ([kind, hue]) => element("li", {},
      element(`span.swatch.${hue}`, {"aria-hidden": "true"}), kind,
      element("span.quiet", {},
        ` × ${entities.filter((entity) => entity.kind === kind).length}`))));
  const words = row.words.filter((word) => word).length;
  return [
    entities.length
      ? legend : element("p.headline.none", {}, "No word has a tag"),
    text,
    wordTable(row, words),
  ];
}

/**
 * Returns the tagged entities, from left to right.
 *
 * Words tagged B-X, I-X, I-X are one entity X. A tag without a prefix is an
 * entity of one word; O is no entity.
 */
function joined(row) {
  const entities = [];
  let open = null;
  row.tags.forEach((tag, i) => {
    const [, prefix, kind] = /^(?:([BI])-)?(.*)$/s.exec(tag);
    const [start, end] = [row.starts[i], row.ends[i]];
    if (start < 0 || kind === "O" || kind === "") {
      open = null;
    } else if (prefix === "I" && open?.kind === kind) {
      open.end = end;
    } else {
      entities.push({kind, start, end});
      open = prefix ? entities.at(-1) : null;
    }
  });
  return entities;
}

function wordTable(row, count) {
  const rows = row.words.slice(0, count).map((word, i) => element("tr", {},
    element("td", {lang: ""}, word),
    element("td", {}, row.tags[i]),
    element("td.quiet", {}, `${row.starts[i]} to ${row.ends[i]}`)));
  return element("details", {},
    element("summary", {}, count === 1 ? "1 word" : `All ${count} words`),
    element("div.scroll", {}, element("table", {},
      element("thead", {}, element("tr", {},
        ...["Word", "Tag", "Characters"].map(
          (title) => element("th", {scope: "col"}, title)))),
      element("tbody", {}, ...rows))));
}

/** Returns the candidates for each [MASK], and the filled texts. */
function masksView(row, sent) {
  const masks = row.tokens
    .map((tokens, i) => ({tokens, probabilities: row.probabilities[i]}))
    .filter(({tokens}) => tokens.some((token) => token));
  if (!masks.length) {
    return [element("p.headline.none", {}, "The text has no [MASK]")];
  }
  const chosen = masks.map(() => 0);
  const filled = element("p.filled-text", {lang: ""});
  const write = () => filled.replaceChildren(
    ...fill(sent.text, masks.map(({tokens}, i) => tokens[chosen[i]])));
  const groups = masks.map(({tokens, probabilities}, mask) => {
    const name = masks.length > 1
      ? `[MASK] ${mask + 1} of ${masks.length}` : "[MASK]";
    const items = tokens.map((token, i) => {
      const input = element("input", {
        type: "radio", name: `mask-${mask}`, checked: i === 0});
      input.addEventListener("change", () => {
        chosen[mask] = i;
        write();
      });
      const one = bar(probabilities[i], token, i === 0);
      return element("li", {}, element("label", {}, input, ...one.childNodes));
    });
    return element("fieldset.mask", {},
      element("legend", {}, name), element("ol.bars", {}, ...items));
  });
  write();
  return [filled, element("div.masks", {}, ...groups)];
}

/** Returns a text with tokens for its masks; "##" joins them to the left. */
function fill(text, tokens) {
  const parts = text.split("[MASK]");
  const nodes = [];
  parts.forEach((part, i) => {
    const glued = tokens[i]?.startsWith("##");
    nodes.push(glued ? part.trimEnd() : part);
    if (i === parts.length - 1) return;
    // Rows are truncated, so masks after the limit have no candidates.
    nodes.push(i < tokens.length
      ? element("mark", {}, glued ? tokens[i].slice(2) : tokens[i])
      : "[MASK]");
  });
  return nodes;
}
