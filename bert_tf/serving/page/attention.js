/** Attention heads: small pictures of all heads, and one enlarged head. */

import {canvas, color, element, shape} from "/page/dom.js";
import {percent} from "/page/views.js";

const SVG_TEXT = 12;
const ROW = 19;
const LINES_WIDTH = 380;
const COLUMN = 130;
// Draws at most MOST_LINES lines, the strongest, and none below WEAKEST.
const WEAKEST = 0.02;
const MOST_LINES = 1500;

/**
 * Returns the elements that show the attention of a row.
 *
 * @param {Array<string>} tokens <string>[T].
 * @param {Array} attention <float32>[layers, heads, T, T]: how much each token
 *     (third axis) attends to each other token (fourth).
 */
export function attentionView(tokens, attention) {
  const length = used(tokens);
  const names = tokens.slice(0, length);
  const enlarged = element("div.enlarged");
  const buttons = [];
  const show = (layer, head) => {
    for (const one of buttons) {
      const chosen = one.layer === layer && one.head === head;
      one.button.setAttribute("aria-pressed", chosen);
      one.button.tabIndex = chosen ? 0 : -1;
    }
    enlarged.replaceChildren(
      ...enlarge(names, attention[layer][head], layer, head));
  };
  const table = element("table.heads", {"aria-label": "Attention heads"});
  table.append(
    element("thead", {}, element("tr", {},
      element("th", {scope: "col"}, "Layer"),
      ...attention[0].map((_, head) =>
        element("th", {scope: "col"}, `${head + 1}`)))));
  const body = element("tbody");
  attention.forEach((heads, layer) => {
    body.append(element("tr", {},
      element("th", {scope: "row"}, `${layer + 1}`),
      ...heads.map((weights, head) => {
        const button = element("button.thumbnail", {
          type: "button",
          "aria-label": `Layer ${layer + 1}, head ${head + 1}`,
          "aria-pressed": "false",
        }, thumbnail(weights, length));
        button.addEventListener("click", () => show(layer, head));
        buttons.push({button, layer, head});
        return element("td", {}, button);
      })));
  });
  table.append(body);
  table.addEventListener("keydown", (event) => moveFocus(event, buttons));
  show(0, 0);
  return [
    element("div.all-heads", {},
      element("p.quiet", {},
        "A row for each layer, a column for each head. Choose one."),
      element("div.scroll", {}, table)),
    enlarged,
  ];
}

/** Returns the number of tokens before the padding. */
function used(tokens) {
  let length = tokens.length;
  while (length > 1 && ["", "[PAD]"].includes(tokens[length - 1])) length--;
  return length;
}

/** Moves the focus from picture to picture with the arrow keys. */
function moveFocus(event, buttons) {
  const step = {
    ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0],
  }[event.key];
  const from = buttons.find(({button}) => button === event.target);
  if (!step || !from) return;
  const to = buttons.find(({layer, head}) =>
    layer === from.layer + step[0] && head === from.head + step[1]);
  event.preventDefault();
  to?.button.focus();
}

/** Returns a weight's opacity: its square root, which shows small weights. */
function strength(weight) {
  return Math.sqrt(Math.min(1, Math.max(0, weight)));
}

function thumbnail(weights, length) {
  const node = element("canvas", {"aria-hidden": "true"});
  node.width = node.height = length;
  const context = node.getContext("2d");
  const image = context.createImageData(length, length);
  const [red, green, blue] = channels(color("--ink-of-heads"));
  for (let row = 0; row < length; row++) {
    for (let column = 0; column < length; column++) {
      const alpha = 255 * strength(weights[row][column]);
      image.data.set([red, green, blue, alpha], 4 * (row * length + column));
    }
  }
  context.putImageData(image, 0, 0);
  return node;
}

/** Returns red, green and blue of a color such as "#0f6b66". */
function channels(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

/** Returns one head: lines between tokens, and the matrix. */
function enlarge(tokens, weights, layer, head) {
  const readout = element("p.readout", {"aria-live": "polite"});
  const lines = lineView(tokens, weights);
  const matrix = matrixView(tokens, weights);
  let chosen;
  // Shows the lines of one row, or all lines if the row is null.
  const choose = (row) => {
    if (row === chosen) return;
    chosen = row;
    lines.choose(row);
    matrix.choose(row);
    readout.replaceChildren(...describe(tokens, weights, row));
  };
  choose(null);
  lines.onRow(choose);
  matrix.onRow(choose);
  lines.node.addEventListener("keydown", (event) => {
    const step = {ArrowUp: -1, ArrowDown: 1}[event.key];
    if (!step) return;
    event.preventDefault();
    choose(Math.min(tokens.length - 1, Math.max(0, (chosen ?? -1) + step)));
  });
  return [
    element("h3", {}, `Layer ${layer + 1}, head ${head + 1}`),
    readout,
    element("div.pair", {},
      element("div.scroll", {}, lines.node),
      element("div.scroll", {}, matrix.node)),
    element("p.quiet", {}, "Colors follow the square root of the weight."),
  ];
}

function describe(tokens, weights, row) {
  if (row === null) {
    return ["Each token on the left looks at those on the right; point at " +
      "one, or use the arrow keys."];
  }
  const strongest = weights[row]
    .slice(0, tokens.length)
    .map((weight, column) => ({weight, token: tokens[column]}))
    .sort((a, b) => b.weight - a.weight)
    .slice(0, 4);
  return [
    element("code", {}, tokens[row]), " looks at ",
    ...strongest.flatMap(({weight, token}, i) => [
      i ? ", " : "", element("code", {}, token), ` ${percent(weight)}`]),
  ];
}

/** Returns two columns of tokens, with lines from left to right. */
function lineView(tokens, weights) {
  const height = tokens.length * ROW + 8;
  const middle = (i) => i * ROW + ROW / 2 + 4;
  const lines = shape("g");
  const marks = tokens.map((_, i) => shape("rect.mark", {
    x: LINES_WIDTH - COLUMN + 4, y: i * ROW + 4,
    width: COLUMN - 4, height: ROW - 1, rx: 3, opacity: 0,
  }));
  const side = (x, anchor) => tokens.map((token, i) => shape("text", {
    x, y: middle(i), "text-anchor": anchor, "dominant-baseline": "central",
    "font-size": SVG_TEXT,
  }, shortened(token)));
  const left = side(COLUMN - 8, "end");
  const node = shape("svg.lines", {
    viewBox: `0 0 ${LINES_WIDTH} ${height}`,
    width: LINES_WIDTH, height, tabindex: 0, role: "img",
    "aria-label": "Lines from each token to those it looks at; the arrow " +
      "keys up and down choose a token",
  }, ...marks, lines, ...left, ...side(LINES_WIDTH - COLUMN + 8, "start"));
  const all = strongestLines(weights, tokens.length);
  const draw = (row) => {
    const drawn = row === null ? all : all.filter((one) => one.row === row);
    lines.replaceChildren(...drawn.map(({row: from, column, weight}) =>
      shape("line", {
        x1: COLUMN - 4, y1: middle(from),
        x2: LINES_WIDTH - COLUMN + 4, y2: middle(column),
        "stroke-width": 1 + 2 * weight,
        opacity: strength(weight) * (row === null ? 0.35 : 1),
      })));
  };
  const choose = (row) => {
    draw(row);
    left.forEach((text, i) => text.classList.toggle("chosen", i === row));
    marks.forEach((mark, i) => mark.setAttribute(
      "opacity", row === null ? 0 : 0.5 * strength(weights[row][i])));
  };
  const onRow = (call) => {
    const rowAt = (event) => {
      const box = node.getBoundingClientRect();
      const y = (event.clientY - box.top) * height / box.height;
      return Math.floor(Math.min(tokens.length - 1, Math.max(0, y / ROW)));
    };
    node.addEventListener("pointermove", (event) => call(rowAt(event)));
    node.addEventListener("pointerleave", () => call(null));
  };
  return {node, choose, onRow};
}

function strongestLines(weights, length) {
  const lines = [];
  for (let row = 0; row < length; row++) {
    for (let column = 0; column < length; column++) {
      const weight = weights[row][column];
      if (weight >= WEAKEST) lines.push({row, column, weight});
    }
  }
  return lines.sort((a, b) => b.weight - a.weight).slice(0, MOST_LINES);
}

function shortened(token) {
  const characters = Array.from(token);
  return characters.length > 16
    ? `${characters.slice(0, 15).join("")}…` : token;
}

/** Returns the weights as a square, with the tokens on both axes. */
function matrixView(tokens, weights) {
  const cell = Math.max(7, Math.min(ROW, Math.floor(420 / tokens.length)));
  const size = cell * tokens.length;
  const font = `${Math.min(SVG_TEXT, cell + 1)}px ` +
    getComputedStyle(document.body).fontFamily;
  const names = tokens.map(shortened);
  const edge = widest(names, `bold ${font}`) + 10;
  const [node, context] = canvas(edge + size, edge + size, {
    role: "img",
    "aria-label": "The weights as a matrix, a row for each token that looks",
  });
  node.classList.add("matrix");
  const choose = (chosen) => {
    context.clearRect(0, 0, edge + size, edge + size);
    context.fillStyle = color("--surface");
    context.fillRect(edge, edge, size, size);
    context.fillStyle = color("--ink-of-heads");
    for (let row = 0; row < tokens.length; row++) {
      for (let column = 0; column < tokens.length; column++) {
        context.globalAlpha = strength(weights[row][column]);
        context.fillRect(
          edge + column * cell, edge + row * cell, cell - 1, cell - 1);
      }
    }
    context.globalAlpha = 1;
    drawNames(context, names, cell, edge, font, chosen);
    if (chosen === null) return;
    context.strokeStyle = color("--accent");
    context.strokeRect(edge - 0.5, edge + chosen * cell - 1, size, cell + 1);
  };
  const onRow = (call) => {
    node.addEventListener("pointermove", (event) => {
      const row = Math.floor((event.offsetY - edge) / cell);
      call(row >= 0 && row < tokens.length ? row : null);
    });
    node.addEventListener("pointerleave", () => call(null));
  };
  return {node, choose, onRow};
}

/** Returns the width of the widest name, in pixels. */
function widest(names, font) {
  const context = element("canvas").getContext("2d");
  context.font = font;
  return Math.max(...names.map((name) => context.measureText(name).width));
}

function drawNames(context, names, cell, edge, font, chosen) {
  context.textBaseline = "middle";
  context.fillStyle = color("--ink");
  names.forEach((name, i) => {
    const at = edge + i * cell + cell / 2;
    context.font = i === chosen ? `bold ${font}` : font;
    context.textAlign = "right";
    context.fillText(name, edge - 6, at);
    context.font = font;
    context.textAlign = "left";
    context.save();
    context.translate(at, edge - 6);
    context.rotate(-Math.PI / 2);
    context.fillText(name, 0, 0);
    context.restore();
  });
}
