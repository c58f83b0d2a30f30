/** The page: selects a model, sends requests and shows the answers. */

import {attentionView} from "/page/attention.js";
import * as client from "/page/client.js";
import {element, find} from "/page/dom.js";
import {blankField, examplesOf, headOf, instanceOf} from "/page/heads.js";
import {view} from "/page/views.js";

// Browsers become slow with more numbers than this in one answer.
const MOST_WEIGHTS = 8e6;
const LONGEST_RAW = 20000;

/** The state of the selected model; replaced as a whole. */
let model = null;
/** The last answered row, as it was sent. */
let asked = null;
/** Aborts earlier requests. */
let requests = new AbortController();
/** The index of the next example. */
let nextExample = 0;

async function start() {
  const names = await client.models();
  if (!names.length) {
    throw new client.ServerError(
      "No model", "The server has none; it looks for new ones by itself.");
  }
  const picker = find("model");
  picker.replaceChildren(...names.map((name) =>
    element("option", {value: name}, name)));
  picker.disabled = false;
  const wanted = decodeURIComponent(location.hash.slice(1));
  if (names.includes(wanted)) picker.value = wanted;
  await chooseModel();
}

async function chooseModel() {
  const name = find("model").value;
  history.replaceState(null, "", `#${encodeURIComponent(name)}`);
  const found = await client.versions(name);
  if (name !== find("model").value) return;
  const ready = found.filter(({state}) => state === "AVAILABLE");
  find("version").replaceChildren(
    element("option", {value: ""}, `newest (${ready[0]?.version ?? "none"})`),
    ...ready.map(({version}) => element("option", {value: version}, version)));
  find("version-label").hidden = false;
  if (!ready.length) {
    const states = found.map(({version, state, error}) =>
      `version ${version}: ${state} ${error}`.trim());
    throw new client.ServerError(
      `${name} is not ready`, states.join("\n") || "It has no version.");
  }
  await chooseVersion();
}

async function chooseVersion() {
  const wanted = () =>
    client.modelPath(find("model").value, find("version").value);
  const name = find("model").value;
  const path = wanted();
  const signatures = await client.signatures(path);
  if (path !== wanted()) return;
  const signatureName = "serving_default" in signatures
    ? "serving_default" : Object.keys(signatures)[0];
  const signature = signatures[signatureName];
  const chosen = {
    name, path, signatures, signature, signatureName,
    head: headOf(signature), labels: null,
  };
  const [first] = chosen.head.examples;
  const labels = await labelNames(chosen, Object.fromEntries(
    chosen.head.fields.map((one) => [one.name, first[one.name] ?? ""])));
  if (path !== wanted()) return;
  chosen.head.examples = examplesOf(chosen.head, labels);
  model = chosen;
  forget();
  showModel();
}

function showModel() {
  const {head, name, path} = model;
  document.title = `${name} · Try a model`;
  find("task").textContent = head.title;
  find("about").textContent = head.about;
  find("actions").hidden = false;
  find("example").hidden = head.examples.length < 2;
  const before = values();
  find("fields").replaceChildren(...head.fields.map(field));
  find("links").replaceChildren(
    element("a", {href: path}, "Status"),
    element("a", {href: `${path}/metadata`}, "Signatures"));
  nextExample = 0;
  showExample();
  // Keeps the user's text in fields that the next model has too.
  for (const input of inputs()) {
    if (before[input.name]?.typed) {
      input.value = before[input.name].value;
      input.dataset.typed = "";
    }
  }
}

function field({name, label, rows, kind}) {
  const id = `field-${name}`;
  const input = element("textarea", {
    id, name, rows, spellcheck: "false", autocomplete: "off", lang: "",
    "aria-describedby": kind === "lines" ? `${id}-help` : null,
  });
  input.addEventListener("input", () => {
    input.dataset.typed = "";
  });
  const parts = [element("label", {for: id}, label), input];
  if (kind === "lines") {
    parts.push(element("p.quiet", {id: `${id}-help`},
      "Empty lines do not count."));
  }
  if (model.head.mask) parts.push(maskButton(input));
  return element("div.field", {}, ...parts);
}

function maskButton(input) {
  const button = element("button.small", {type: "button"}, "Insert [MASK]");
  button.addEventListener("click", () => {
    input.setRangeText(
      "[MASK]", input.selectionStart, input.selectionEnd, "end");
    input.dataset.typed = "";
    input.focus();
  });
  return button;
}

function inputs() {
  return Array.from(find("fields").querySelectorAll("textarea"));
}

function values() {
  return Object.fromEntries(inputs().map((input) => [
    input.name, {value: input.value, typed: "typed" in input.dataset}]));
}

function showExample() {
  const {examples} = model.head;
  const example = examples[nextExample++ % examples.length];
  for (const input of inputs()) {
    input.value = example[input.name] ?? "";
    delete input.dataset.typed;
  }
}

/** Removes the answer of another model. */
function forget() {
  requests.abort();
  asked = null;
  find("time").textContent = "";
  find("result").setAttribute("aria-busy", "false");
  find("answer").replaceChildren(
    element("p.empty", {}, "The model's answer appears here."));
  find("more").hidden = true;
  find("attention").replaceChildren();
  find("attention-button").setAttribute("aria-expanded", "false");
  nameAttentionButton();
}

async function askModel() {
  if (!model) return;
  requests.abort();
  requests = new AbortController();
  const {signal} = requests;
  const {head, path, signature, signatureName} = model;
  const input = Object.fromEntries(
    inputs().map(({name, value}) => [name, value]));
  const blank = blankField(head, input);
  if (blank) {
    forget();
    throw new client.ServerError(
      "There is no text", `Type something into the field "${blank.label}".`);
  }
  let instance;
  try {
    instance = instanceOf(head, input);
  } catch (error) {
    throw new client.ServerError("This is not JSON", error.message);
  }
  const body = client.predictBody(instance, signatureName);
  showRequest(`${path}:predict`, body);
  find("result").setAttribute("aria-busy", "true");
  // Requests the names of labels only once, so that answers stay fast.
  const [answer, labels] = await Promise.all([
    client.ask(`${path}:predict`, body, signal),
    labelNames(model, instance, signal),
  ]);
  asked = instance;
  find("result").setAttribute("aria-busy", "false");
  find("time").textContent =
    `in ${milliseconds(answer.milliseconds)}, as the browser measured it`;
  find("raw").textContent = shortened(answer.text);
  find("raw-part").hidden = false;
  find("answer").replaceChildren(...view(
    head, client.onlyRow(answer.value, signature), instance, labels));
  find("attention-part").hidden = !("attention" in model.signatures);
  if (find("attention-button").getAttribute("aria-expanded") === "true") {
    await showAttention();
  }
}

function showRequest(path, body) {
  find("more").hidden = false;
  find("attention-part").hidden = true;
  find("raw-part").hidden = true;
  find("curl").textContent = client.curlLine(path, body);
}

function milliseconds(time) {
  return time < 10 ? `${time.toFixed(1)} ms` : `${time.toFixed(0)} ms`;
}

function shortened(text) {
  return text.length <= LONGEST_RAW ? text
    : `${text.slice(0, LONGEST_RAW)}\n… (${text.length} characters in all)`;
}

/**
 * Returns the names of all labels, or null if the model has none.
 *
 * `serving_default` names only the best label; the interface for
 * classification names them all, in the order of the probabilities.
 */
async function labelNames(at, instance, signal) {
  const {path, signatures, head} = at;
  if (!["classification", "multi_label"].includes(head.name)) return null;
  if (at.labels || !("classify" in signatures)) return at.labels;
  const {value} = await client.ask(`${path}:classify`, JSON.stringify(
    {signature_name: "classify", examples: [instance]}), signal);
  at.labels = value.results[0].map(([label]) => label);
  return at.labels;
}

function nameAttentionButton() {
  const open =
    find("attention-button").getAttribute("aria-expanded") === "true";
  find("attention-button").textContent = open
    ? "Hide the attention heads" : "Show the attention heads";
  find("attention").hidden = !open;
}

async function toggleAttention() {
  const button = find("attention-button");
  const open = button.getAttribute("aria-expanded") !== "true";
  button.setAttribute("aria-expanded", open);
  nameAttentionButton();
  if (open) await showAttention();
}

async function showAttention() {
  const {path, signatures} = model;
  const {signal} = requests;
  const part = find("attention");
  part.replaceChildren(element("p.quiet", {}, "Asking …"));
  try {
    await checkAttentionSize(signal);
    const {value} = await client.ask(
      `${path}:predict`, client.predictBody(asked, "attention"),
      signal);
    const row = client.onlyRow(value, signatures.attention);
    part.replaceChildren(...attentionView(row.tokens, row.attention));
  } catch (error) {
    if (error.name !== "AbortError") part.replaceChildren(problem(error));
  }
}

/** Throws an error if the attention of the row is too large to show. */
async function checkAttentionSize(signal) {
  const {path, signatures} = model;
  const [, layers, heads] = signatures.attention.outputs.attention.shape;
  if (!("tokenize" in signatures)) return;
  const texts = Object.values(asked).map((text) => ({text}));
  const {value} = await client.ask(`${path}:predict`, JSON.stringify(
    {signature_name: "tokenize", instances: texts}), signal);
  const length = value.predictions
    .flatMap(({tokens}) => tokens).filter((token) => token).length;
  const count = layers * heads * length ** 2;
  if (count > MOST_WEIGHTS) {
    throw new client.ServerError(
      "Too long to show",
      `${layers} × ${heads} heads on ${length} tokens are ` +
      `${(count / 1e6).toFixed(0)} million numbers. Shorten the text.`);
  }
}

/** Returns the element that shows an error. */
function problem(error) {
  const title = error instanceof client.ServerError
    ? error.title : "The page cannot show this";
  return element("div.problem", {role: "alert"},
    element("h3", {}, title), element("pre", {}, error.message));
}

/** Wraps an event handler, so that every error is shown. */
function guarded(action) {
  return async () => {
    try {
      await action();
    } catch (error) {
      if (error.name === "AbortError") return;
      find("result").setAttribute("aria-busy", "false");
      find("time").textContent = "";
      find("answer").replaceChildren(problem(error));
      if (!(error instanceof client.ServerError)) throw error;
    }
  };
}

/** Wraps a handler like `guarded`; an error also deselects the model. */
function guardedChoice(action) {
  return guarded(async () => {
    try {
      await action();
    } catch (error) {
      model = null;
      forget();
      find("task").textContent = find("model").value || "No model";
      find("about").textContent = "";
      find("fields").replaceChildren();
      find("actions").hidden = true;
      throw error;
    }
  });
}

async function copyCurl() {
  const button = find("copy");
  try {
    await navigator.clipboard.writeText(find("curl").textContent);
    button.textContent = "Copied";
  } catch {
    // Browsers refuse this on pages without TLS, except from localhost.
    getSelection().selectAllChildren(find("curl"));
    button.textContent = "Selected";
  }
  setTimeout(() => {
    button.textContent = "Copy";
  }, 1500);
}

const submit = guarded(askModel);
find("form").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
find("form").addEventListener("keydown", (event) => {
  const wanted = event.ctrlKey || event.metaKey ||
    (event.target.rows === 1 && !event.shiftKey && !event.isComposing);
  if (event.key === "Enter" && event.target.matches("textarea") && wanted) {
    event.preventDefault();
    submit();
  }
});
find("example").addEventListener("click", showExample);
find("copy").addEventListener("click", copyCurl);
find("attention-button").addEventListener("click", guarded(toggleAttention));
find("model").addEventListener("change", guardedChoice(async () => {
  find("version").value = "";
  await chooseModel();
}));
find("version").addEventListener("change", guardedChoice(chooseVersion));
// Canvases keep their colors when the theme changes, so draw them again.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  if (asked) submit();
});
guardedChoice(start)();
