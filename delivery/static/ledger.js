// The ledger by counts, the verdict, and the latest publications.
import { $, clock, make, say, shown, sum, tone } from "./dom.js";

const ROWS = [
  ["accepted", "accepted", (now) => now.outbox?.accepted],
  ["applied", "applied", (_, each) => each.receipts?.applied],
  ["stale", "stale", (_, each) => each.receipts?.stale],
  ["dropped", "dropped", (_, each) => each.receipts?.dropped],
  ["dead", "dead", (_, each) => each.dead],
  ["retry", "waits for a retry", (_, each) => each.retry && sum(each.retry)],
  ["in_hand", "in hand", (now, each) => hand(now, each)],
  ["ready", "ready", (_, each) => each.ready],
  ["pending", "pending in the outbox", (now) => now.outbox && sum(Object.values(now.outbox.pending))],
];

export const OLD = 3; // s; stores and queues are looked at four times a second

let cells = null;

// Whoever has ended has nothing in hand: then the look at its queue is older than its end.
export function hand(now, each) {
  const ended = now.cast?.some(({ name, state }) => name === each.recipient && state === "ended");
  return ended && each.sum?.in_hand ? null : each.sum?.in_hand;
}

function build(now) {
  cells = new Map();
  const names = now.recipients.map((each) => each.recipient);
  $("ledger").tHead.replaceChildren(make("tr", {}, make("td"), ...names.map((name) => make("th", { scope: "col", class: "number" }, name))));
  const row = (id, label, kind) =>
    make("tr", { class: kind }, make("th", { scope: "row" }, label), ...names.map((name) => {
      const cell = make("td", { class: "number", "data-cell": `${name}.${id}` });
      cells.set(`${name}.${id}`, cell);
      return cell;
    }));
  $("ledger").tBodies[0].replaceChildren(...ROWS.map(([id, label]) => row(id, label, "")), row("difference", "difference", "sum"));
}

export function showLedger(now) {
  if (!cells) build(now);
  for (const each of now.recipients) {
    for (const [id, , value] of ROWS) say(cells.get(`${each.recipient}.${id}`), shown(value(now, each)));
    const cell = cells.get(`${each.recipient}.difference`);
    say(cell, !each.sum ? "?" : each.sum.difference && !each.sum.exact ? "..." : shown(each.sum.difference));
    tone(cell, !each.sum ? "unknown" : each.sum.difference === 0 ? "good" : each.sum.exact ? "bad" : "warn");
  }
  say($("ledger-note"), note(now));
  const [text, kind] = verdict(now);
  say($("verdict"), text);
  tone($("verdict"), kind);
}

function note(now) {
  const extra = now.recipients.filter((each) => each.sum?.extra > 0 && each.sum.exact).map((each) => `${each.recipient}: ${shown(each.sum.extra)} more waiting or dead than events that are open: second copies, or strangers.`);
  const moving = now.recipients.some((each) => each.sum && !each.sum.exact);
  const unseen = now.recipients.some((each) => !each.sum);
  const state = unseen ? "Not all of it can be seen." : moving ? "By counts; still moving." : "By counts, at rest.";
  const parked = now.parked?.ready ? [`${shown(now.parked.ready)} parked: a difference may be there.`] : [];
  return [state, ...extra, ...parked, "The command delivery ledger looks at every id."].join(" ");
}

export const NOT_YET = "not looked at yet"; // as the server says it

// Figures that are old are no reason for calm.
export function verdict(now) {
  const [text, kind] = judge(now);
  const age = Math.max(now.stores.age, now.broker.age);
  if (kind === "unknown" || age <= OLD) return [text, kind];
  return [`${text}, ${Math.round(age)} s ago`, kind === "good" ? "warn" : kind];
}

function judge(now) {
  if ([now.stores, now.broker].some((each) => each.why === NOT_YET)) return ["Looking ...", "unknown"];
  if (!now.outbox) return ["No publisher's store here", "unknown"];
  if (now.recipients.some((each) => !each.sum)) {
    const why = now.broker.seen ? "a recipient's store is not seen" : "the broker is not seen";
    return [`Can't tell: ${why}`, "warn"];
  }
  const sums = now.recipients.map((each) => each.sum);
  const lost = Math.max(...sums.map((each) => each.difference));
  const pending = sum(Object.values(now.outbox.pending)); // not yet one copy for each recipient
  const way = pending + sum(sums.map((each) => each.on_the_way - pending));
  const dead = sum(sums.map((each) => each.dead));
  const parked = now.parked?.ready ?? 0; // in no sum: it may be an event, or a stranger's message
  const aside = parked ? `, ${shown(parked)} parked` : "";
  if (lost && sums.some((each) => each.difference && each.exact)) return [`Difference: ${shown(lost)}${aside}`, "bad"];
  if (way) return [`${shown(way)} on the way${dead ? `, ${shown(dead)} dead` : ""}${aside}`, "warn"];
  if (lost) return ["Counting ...", "warn"];
  if (dead) return [`${shown(dead)} dead${aside}; all else arrived`, "bad"];
  if (parked) return [`${shown(parked)} parked; all else arrived`, "bad"];
  return ["Everything adds up", "good"];
}

export function showLatest(now, open) {
  const head = ["Publication", "Accepted", "Relay", ...now.recipients.map((each) => each.recipient)];
  const table = $("latest");
  if (!table.tHead.rows.length) table.tHead.append(make("tr", {}, ...head.map((each) => make("th", { scope: "col" }, each))));
  const body = table.tBodies[0];
  const known = new Map([...body.rows].map((row) => [row.dataset.event, row]));
  now.latest.forEach((each, index) => {
    const row = known.get(each.event_id) ?? line(each, now, open);
    known.delete(each.event_id);
    if (body.rows[index] !== row) body.insertBefore(row, body.rows[index] ?? null);
    const relay = each.confirmed_at ? "confirmed" : each.outcome ? `${each.outcome}, ${each.attempts} tried` : "not tried";
    say(row.cells[2], relay);
    tone(row.cells[2], each.confirmed_at ? "good" : each.outcome ? "bad" : "warn");
    now.recipients.forEach(({ recipient }, n) => {
      const effect = each.receipts[recipient];
      say(row.cells[3 + n], effect ?? "no receipt yet");
      tone(row.cells[3 + n], effect === "applied" ? "good" : "warn");
    });
  });
  for (const row of known.values()) row.remove();
}

function line(each, now, open) {
  const name = make("button", { type: "button", class: "link", onclick: () => open(each.event_id) }, each.title);
  const first = make("td", {}, name, ` ${each.material_id}, revision ${each.revision}`);
  const row = make("tr", {}, first, make("td", { "data-label": "accepted" }, clock(each.accepted_at)), make("td", { "data-label": "relay" }), ...now.recipients.map(({ recipient }) => make("td", { "data-label": recipient })));
  row.dataset.event = each.event_id;
  return row;
}
