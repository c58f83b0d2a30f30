/** An embedding and its similarity to earlier texts' embeddings. */

import {canvas, color, element, facts} from "/page/dom.js";

const COLUMNS = 64;
const MOST_EARLIER = 6;

/** Vectors of earlier texts; only equal lengths are compared. */
let earlier = [];

/** Returns a vector as a strip of cells, its length, and its neighbors. */
export function embeddingView(row, sent) {
  const vector = row.embedding;
  const length = Math.hypot(...vector);
  const text = Object.values(sent).join(" / ");
  const others = earlier.filter((one) =>
    one.vector.length === vector.length && one.text !== text);
  earlier = [{text, vector}, ...others].slice(0, MOST_EARLIER + 1);
  const parts = [
    facts({Dimensions: vector.length, Length: length.toPrecision(5)}),
    strip(vector),
  ];
  if (others.length) parts.push(neighbors(vector, others));
  return parts;
}

/** Returns one cell per number: one color below zero, another above. */
function strip(vector) {
  const columns = Math.min(COLUMNS, vector.length);
  const rows = Math.ceil(vector.length / columns);
  const size = 8;
  const most = Math.max(...vector.map(Math.abs), 1e-12);
  const [node, context] = canvas(columns * size, rows * size, {
    role: "img",
    "aria-label": `${vector.length} numbers between ` +
      `${Math.min(...vector).toPrecision(3)} and ` +
      `${Math.max(...vector).toPrecision(3)}`,
  });
  node.classList.add("strip");
  node.style.width = "";
  node.style.height = "";
  const [below, above] = [color("--below"), color("--above")];
  vector.forEach((value, i) => {
    context.globalAlpha = Math.abs(value) / most;
    context.fillStyle = value < 0 ? below : above;
    context.fillRect(
      (i % columns) * size, Math.floor(i / columns) * size, size - 1, size - 1);
  });
  return element("figure", {}, node, element("figcaption.quiet", {},
    element("span.swatch.below", {"aria-hidden": "true"}), "below zero, ",
    element("span.swatch.above", {"aria-hidden": "true"}), "above; full " +
    `color is ${most.toPrecision(3)} away from it.`));
}

function neighbors(vector, others) {
  const items = others
    .map((one) => ({...one, cosine: cosine(vector, one.vector)}))
    .sort((a, b) => b.cosine - a.cosine)
    .map((one) => {
      const filled = element("span.filled");
      filled.style.width = `${100 * Math.max(0, one.cosine)}%`;
      return element("li", {},
        element("span.name", {lang: ""}, one.text),
        element("span.share", {}, one.cosine.toFixed(3).replace("-", "−")),
        element("span.track", {"aria-hidden": "true"}, filled));
    });
  return element("section", {},
    element("h3", {}, "How close it is to the texts before"),
    element("ol.bars", {}, ...items),
    element("p.quiet", {}, "The cosine of the angle between the vectors; " +
      "1 where they point the same way."));
}

function cosine(a, b) {
  const product = a.reduce((sum, value, i) => sum + value * b[i], 0);
  return product / (Math.hypot(...a) * Math.hypot(...b) || 1);
}
