// Listen to the server, show each snapshot, and say when there is nobody to listen to.
import { $, clock, make, say, shown } from "./dom.js";
import { NOT_YET, OLD, showLatest, showLedger } from "./ledger.js";
import { openPath } from "./path.js";
import { Picture } from "./picture.js";
import { startStage } from "./stage.js";
import { showChart, showLines } from "./story.js";

const SILENCE = 3500; // ms; the server says something every second
const AGAIN = 1000; // ms between two attempts to reach it
const token = document.querySelector('meta[name="stage-token"]').content;
const picture = new Picture($("picture"));
const stage = startStage(token);
const measured = (window.livePage = { updates: 0, last: 0, worst: 0, all: [], lag: 0, looks: {} });

let source = null, last = "", instance = "", heard = performance.now(), lostAt = null, resets = 0;

function connect() {
  source?.close();
  source = new EventSource(`/live/events?after=${encodeURIComponent(last)}`);
  source.onmessage = (event) => hear(event);
  source.onerror = () => { if (lostAt === null && performance.now() - heard > 1500) lose(); };
}

function hear(event) {
  const begun = performance.now();
  heard = begun;
  last = event.lastEventId;
  const now = JSON.parse(event.data);
  const restarted = instance !== now.instance;
  if (restarted && instance && token) return location.reload(); // a new server has a new token
  instance = now.instance;
  if (lostAt !== null) find();
  show(now, restarted);
  measured.last = performance.now() - begun;
  measured.worst = Math.max(measured.worst, measured.last);
  measured.all.push(measured.last);
  if (measured.all.length > 1000) measured.all.shift();
  measured.lag = Date.now() / 1000 - now.at;
  measured.looks = { stores: now.stores.took, broker: now.broker.took };
  measured.updates += 1;
}

function show(now, restarted) {
  picture.show(now);
  showLedger(now);
  showLatest(now, openPath);
  showChart(now);
  showLines(now.lines, restarted || resets !== (now.resets ?? 0));
  resets = now.resets ?? 0;
  stage.show(now);
  say($("seen"), `as of ${clock(now.at)} · ${now.mode === "demo" ? "demo: 1 s stands for 30 s" : "read-only"}`);
  $("parked").hidden = !now.parked;
  if (now.parked) say($("parked"), parked(now.parked, clock(now.at - now.broker.age)));
  const others = listeners(now);
  $("listeners").hidden = !others;
  say($("listeners"), others);
  const blind = [["stores", "The stores"], ["broker", "The broker"]].map(([name, what]) => {
    if (now[name].why === NOT_YET) return "";
    if (!now[name].seen) return `${what} can't be seen: ${now[name].why}.`;
    return now[name].age > OLD ? `${what}: what you see is ${Math.round(now[name].age)} s old.` : "";
  }).filter(Boolean);
  $("blind").hidden = blind.length === 0;
  say($("blind"), blind.join(" "));
}

function parked({ queue, ready, hint, why }, at) {
  if (ready === null) return `What is parked in ${queue} can't be seen: ${why}.`;
  const count = `Parked in ${queue} as of ${at}: ${shown(ready)}.`;
  return ready ? `${count} No queue wanted ${ready === 1 ? "it" : "them"}; once one does: ${hint}` : count;
}

function listeners({ listeners: found, listeners_why: why, broker }) {
  if (!found) return broker.seen && why !== NOT_YET ? `Which other queues are bound to the exchange can't be seen: ${why}.` : "";
  if (!found.shown.length) return "";
  const each = ({ queue, keys, more_keys }) => `${queue} (${keys.join(", ")}${more_keys ? `, ${shown(more_keys)} more` : ""})`;
  const rest = found.more ? `, and ${shown(found.more)} more` : "";
  return `Also bound to the exchange: ${found.shown.map(each).join(", ")}${rest}. Their counts are up to 15 s old, and in no sum below.`;
}

function lose() {
  lostAt = Date.now() / 1000;
  $("lost").hidden = false;
  say($("lost"), `The server has not answered since ${clock(lostAt)}. What you see is old. Trying again ...`);
  document.body.classList.add("stale");
}

function find() {
  lostAt = null;
  $("lost").hidden = true;
  document.body.classList.remove("stale");
}

// A browser gives some errors up for good, and does not notice a silent line: we do both ourselves.
setInterval(() => {
  if (performance.now() - heard <= SILENCE) return;
  if (lostAt === null) lose();
  if (source.readyState !== EventSource.CONNECTING || performance.now() - heard > 2 * SILENCE) connect();
}, AGAIN);

function theme(name) {
  document.documentElement.dataset.theme = name;
  say($("theme"), name === "dark" ? "Light" : "Dark");
}
const kept = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
theme(kept() ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
$("theme").addEventListener("click", () => {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  theme(next);
  try { localStorage.setItem("theme", next); } catch { /* it holds for this visit */ }
});
$("find").addEventListener("submit", (event) => {
  event.preventDefault();
  const id = $("find-id").value.trim();
  if (id) openPath(id);
});
connect();
