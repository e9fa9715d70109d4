// One event's path, as the API tells it; fields that this page does not know are shown as they are.
import { $, clock, make } from "./dom.js";

const words = (name) => name.replaceAll("_", " ");

function value(name, what) {
  if (what === null || what === undefined) return "not yet";
  if (typeof what === "number" && /(_at|_until)$/.test(name)) return clock(what);
  if (what === "") return "none";
  return typeof what === "object" ? JSON.stringify(what) : String(what);
}

function facts(record, without = []) {
  const list = make("dl");
  for (const [name, what] of Object.entries(record)) {
    if (!without.includes(name)) list.append(make("dt", {}, words(name)), make("dd", {}, value(name, what)));
  }
  return list;
}

export async function openPath(id) {
  const body = $("path-body");
  body.replaceChildren(make("p", {}, "Looking ..."));
  if (!$("path").open) $("path").showModal();
  try {
    const answer = await fetch(`/publications/${encodeURIComponent(id)}`);
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.detail);
    const parts = [make("h3", {}, "Publisher and relay"), facts(found, ["recipients"])];
    for (const [recipient, what] of Object.entries(found.recipients ?? {})) {
      parts.push(make("h3", {}, recipient), what !== null && typeof what === "object" ? facts(what) : make("p", {}, String(what)));
    }
    body.replaceChildren(...parts);
  } catch (error) {
    body.replaceChildren(make("p", { "data-tone": "bad" }, error.message || "no answer"));
  }
}
