// The timeline: how much waited where in the last minute and a half, and what happened.
import { $, clock, draw, make, say, shown, sum } from "./dom.js";

const SPAN = 90; // seconds
const W = 400, H = 90;
const SERIES = ["outbox", "catalog", "audit", "dead"];
const points = [];
const lines = new Map();
const MOST = 150;
let parts = null;

export function showChart(now) {
  const lane = (name) => now.recipients.find((each) => each.recipient === name);
  const waits = (each) => each && each.ready !== null ? each.ready + sum(each.retry ?? []) + (each.sum?.in_hand ?? 0) : null;
  points.push({
    at: now.at,
    outbox: now.outbox ? sum(Object.values(now.outbox.pending)) : null,
    catalog: waits(lane("catalog")),
    audit: waits(lane("audit")),
    dead: now.broker.seen ? sum(now.recipients.map((each) => each.dead ?? 0)) : null,
  });
  while (points.length && points[0].at < now.at - SPAN) points.shift();
  parts ??= build();
  const top = Math.max(5, ...points.flatMap((p) => SERIES.map((name) => p[name] ?? 0)));
  say(parts.top, shown(top));
  for (const name of SERIES) parts[name].setAttribute("d", path(name, now.at, top));
}

function path(name, now, top) {
  let d = "", pen = false;
  for (const point of points) {
    if (point[name] === null) { pen = false; continue; } // not seen is not 0
    d += `${pen ? "L" : "M"}${(W - ((now - point.at) / SPAN) * W).toFixed(1)},${(H - 4 - (point[name] / top) * (H - 10)).toFixed(1)}`;
    pen = true;
  }
  return d;
}

function build() {
  const found = { top: make("span") };
  const svg = draw("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "What waited where in the last 90 seconds", preserveAspectRatio: "none" });
  svg.append(draw("path", { d: `M0,${H - 4} H${W}`, class: "axis" }));
  for (const name of SERIES) svg.append((found[name] = draw("path", { class: `series ${name}`, "vector-effect": "non-scaling-stroke" })));
  const sample = (name) => draw("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" }, draw("path", { d: "M0,5 H26", class: `series ${name}` }));
  const legend = make("p", { class: "legend" }, ...SERIES.map((name) => make("span", {}, sample(name), ` ${name}`)), make("span", {}, "top of the chart: ", found.top));
  $("chart").replaceChildren(svg, legend);
  return found;
}

export function showLines(fresh, restarted) {
  const list = $("story");
  if (restarted) { lines.clear(); list.replaceChildren(); }
  for (const each of fresh) {
    let item = lines.get(each.first);
    if (!item) {
      item = make("li", {}, make("time", {}, clock(each.at)), make("b", {}, each.who), make("span"));
      lines.set(each.first, item);
      list.prepend(item);
    }
    item.dataset.tone = each.tone;
    say(item.lastChild, each.count > 1 ? `${shown(each.count)} ${each.what}` : each.what);
  }
  for (const [first, item] of lines) {
    if (lines.size <= MOST) break;
    item.remove();
    lines.delete(first);
  }
}
