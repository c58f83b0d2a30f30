/** Creates elements without markup, so that text never becomes markup. */

/**
 * Returns an element.
 *
 * @param {string} name The tag, with classes after dots: "span.tag.hue-2".
 * @param {Object} attributes Attributes. An attribute with the value false,
 *     null or undefined is omitted.
 * @param {...(Node|string)} children The element's contents.
 */
export function element(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  return fill(document.createElement(tag), classes, attributes, children);
}

/** Returns an element of SVG, with the arguments of `element`. */
export function shape(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  return fill(
    document.createElementNS("http://www.w3.org/2000/svg", tag),
    classes, attributes, children);
}

function fill(node, classes, attributes, children) {
  if (classes.length) node.classList.add(...classes);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

/** Returns a description list of names and values. */
export function facts(values) {
  return element("dl.facts", {}, ...Object.entries(values).map(
    ([name, value]) => element("div", {},
      element("dt", {}, name), element("dd", {}, value))));
}

/** Returns the element with an id. */
export function find(id) {
  return document.getElementById(id);
}

/** Returns the value of a custom property of the style sheet. */
export function color(name) {
  return getComputedStyle(document.documentElement)
    .getPropertyValue(name).trim();
}

/**
 * Returns a canvas and its context, sharp on dense screens.
 *
 * @param {number} width In CSS pixels.
 * @param {number} height In CSS pixels.
 */
export function canvas(width, height, attributes = {}) {
  const node = element("canvas", attributes);
  const ratio = window.devicePixelRatio || 1;
  node.width = Math.ceil(width * ratio);
  node.height = Math.ceil(height * ratio);
  node.style.width = `${width}px`;
  node.style.height = `${height}px`;
  const context = node.getContext("2d");
  context.scale(ratio, ratio);
  return [node, context];
}
