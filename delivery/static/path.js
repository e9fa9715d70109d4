// One event's path, as the API tells it; fields that this page does not know are shown as they are.
import { $, clock, make } from "./dom.js";

const words = (name) => name.replaceAll("_", " ");

const WHOSE = ["recipient", "message_id", "event_id"]; // said already, of each failure and decision

function value(name, what) {
  if (name === "confirmed_at" && what === null) return "not yet";
  if (what === null || what === undefined || what === "" || what.length === 0) return "none";
  if (typeof what === "number" && /(_at|_until|^since)$/.test(name)) return clock(what);
  if (Array.isArray(what)) return what.every((each) => typeof each === "string") ? what.join(", ") : make("ol", {}, ...what.map((each) => make("li", {}, line(each))));
  return typeof what === "object" ? line(what) : String(what);
}

function line(record) {
  const told = Object.entries(record ?? {}).filter(([name, what]) => what !== null && what !== "" && !WHOSE.includes(name));
  return told.map(([name, what]) => `${words(name)}: ${value(name, what)}`).join(", ");
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
