/** The search page: sends queries and shows the nearest texts. */

import * as client from "/page/client.js";
import {element, find} from "/page/dom.js";

/** Aborts earlier queries. */
let requests = new AbortController();

async function search() {
  const query = find("query").value;
  if (!query.trim()) return;
  requests.abort();
  requests = new AbortController();
  find("result").setAttribute("aria-busy", "true");
  const {signal} = requests;
  try {
    const {value, milliseconds} =
      await client.ask("/search", JSON.stringify({query}), signal);
    find("time").textContent = `in ${milliseconds.toFixed(0)} ms`;
    find("answer").replaceChildren(
      element("ol.bars", {}, ...value.results.map(item)));
    history.replaceState(null, "", `#${encodeURIComponent(query)}`);
  } catch (error) {
    if (error.name === "AbortError") return;
    find("time").textContent = "";
    find("answer").replaceChildren(
      element("div.problem", {role: "alert"},
        element("h3", {}, error.title ?? "The page cannot show this"),
        element("pre", {}, error.message)));
  }
  find("result").setAttribute("aria-busy", "false");
}

function item({text, place, score}) {
  const filled = element("span.filled");
  filled.style.width = `${100 * Math.max(0, score)}%`;
  return element("li", {},
    element("span.name", {lang: ""}, text),
    element("span.share", {}, score.toFixed(3).replace("-", "−")),
    element("span.track", {"aria-hidden": "true"}, filled),
    element("span.quiet", {}, place));
}

find("form").addEventListener("submit", (event) => {
  event.preventDefault();
  search();
});
find("query").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    search();
  }
});
const asked = decodeURIComponent(location.hash.slice(1));
if (asked) {
  find("query").value = asked;
  search();
}
