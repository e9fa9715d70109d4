// The topology with live counts, and what moved between two snapshots.
import { draw, say, shown, sum } from "./dom.js";
import { Dots } from "./dots.js";
import { hand } from "./ledger.js";
import { tall, wide } from "./layout.js";

const narrow = matchMedia("(max-width: 700px)");

export class Picture {
  constructor(place) {
    this.place = place;
    this.shape = "";
    this.last = null;
    // What was seen once stays in the picture when the broker is out of sight.
    this.retries = 1;
    this.parking = false;
    this.listeners = [];
    narrow.addEventListener("change", () => this.last && this.show(this.last));
  }

  show(now) {
    const names = now.recipients.map((each) => each.recipient);
    this.retries = Math.max(this.retries, ...now.recipients.map((each) => each.retry?.length ?? 0));
    if (now.broker.seen) this.parking = (now.parked?.ready ?? null) !== null;
    if (now.listeners) this.listeners = now.listeners.shown.map((each) => each.queue);
    const shape = [narrow.matches, this.retries, this.parking, this.listeners.length, ...names].join();
    if (shape !== this.shape) this.build(names, this.retries, shape);
    this.label(now);
    if (this.last && this.last.instance === now.instance) this.move(this.last, now);
    this.last = now;
  }

  build(names, retries, shape) {
    this.shape = shape;
    const plan = (narrow.matches ? tall : wide)(names, retries, this.parking, this.listeners.length);
    this.svg = draw("svg", { viewBox: `0 0 ${plan.width} ${plan.height}`, role: "group", "aria-label": "The topology" });
    this.svg.append(draw("defs", {}, draw("marker", { id: "head", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" }, draw("path", { d: "M0,0 L8,4 L0,8 Z", class: "head" }))));
    const pipes = new Map();
    for (const [id, d] of Object.entries(plan.edges)) {
      const hidden = id.includes(".dead>");
      const path = draw("path", { d, class: id.includes(".retry.") ? "edge back" : "edge", "marker-end": "url(#head)" });
      if (hidden) path.setAttribute("visibility", "hidden"); // the way of a replay: a person's, not the topology's
      this.svg.append(path);
      pipes.set(id, { path, length: 0 });
    }
    this.nodes = new Map(Object.entries(plan.nodes).map(([id, box]) => [id, this.node(id, box, plan)]));
    const at = this.place.contains(document.activeElement) ? document.activeElement.dataset.node : "";
    this.place.replaceChildren(this.svg);
    this.nodes.get(at)?.group.focus({ preventScroll: true }); // drawn anew below somebody's keyboard
    for (const pipe of pipes.values()) pipe.length = pipe.path.getTotalLength();
    this.dots = new Dots(this.svg, pipes);
  }

  node(id, { x, y, w, h, cx, cy }, plan) {
    const kind = id.split(".")[1] ?? id.split("-")[0];
    const group = draw("g", { class: `node ${kind}`, "data-node": id, role: "img", tabindex: 0 });
    const low = h < 70;
    const shape =
      id === "exchange"
        ? draw("polygon", { points: [[x, cy], [x + 22, y], [x + w - 22, y], [x + w, cy], [x + w - 22, y + h], [x + 22, y + h]].join(" ") })
        : draw("rect", { x, y, width: w, height: h, rx: ["queue", "retry", "dead", "parked", "listener"].includes(kind) ? 4 : 14 });
    const text = (name, dy, size) => draw("text", { class: name, x: cx, y: y + dy, "text-anchor": "middle", "font-size": size });
    const [name, count, state] = low
      ? [text("name", plan.name + 4, plan.name), text("count", h - 9, plan.small), text("state", h + plan.name, plan.name - 2)]
      : [text("name", plan.name + 6, plan.name), text("count", h / 2 + plan.count * 0.38, id === "exchange" ? plan.small : plan.count), text("state", h - 9, plan.name - 2)];
    group.append(shape, name, count, state);
    this.svg.append(group);
    return { group, name, count, state };
  }

  put(id, name, count, { state = "", full = false, gone = false, paused = false, drawn = name } = {}) {
    const node = this.nodes.get(id);
    if (!node) return;
    say(node.name, drawn);
    say(node.count, typeof count === "string" ? count : shown(count));
    say(node.state, state);
    const spoken = `${whose(id, name)}: ${[node.count.textContent, state].filter(Boolean).join(", ")}`;
    if (node.group.getAttribute("aria-label") !== spoken) node.group.setAttribute("aria-label", spoken);
    node.group.classList.toggle("full", full);
    node.group.classList.toggle("gone", gone);
    node.group.classList.toggle("paused", paused);
  }

  label(now) {
    const acting = new Map((now.cast ?? []).map((each) => [each.name, each.state]));
    const of = (name) => ({ state: acting.get(name) ?? "", gone: acting.get(name) === "ended", paused: acting.get(name) === "paused" });
    const box = now.outbox;
    const pending = box ? sum(Object.values(box.pending)) : null;
    const worst = box && Object.keys(box.pending).find((each) => each !== "not tried");
    this.put("api", "api: accepted", box?.accepted, of("api"));
    this.put("outbox", "outbox", pending, { full: pending > 0, state: worst ? `${shown(box.pending[worst])} ${worst}` : pending ? "not sent yet" : "all sent" });
    this.put("relay", "relay: sent", box?.confirmed, of("relay"));
    this.put("exchange", narrow.matches ? "exchange" : "topic exchange", now.broker.seen ? "events" : "?", { state: now.broker.seen ? "" : "broker not seen" });
    this.put("parked", "parked", now.parked?.ready, { full: now.parked?.ready > 0, state: now.parked ? (now.parked.held ? "somebody looks" : now.parked.kind ?? "") : "not seen" });
    for (const each of now.recipients) this.lane(each, now, of);
    const listeners = now.listeners?.shown ?? this.listeners.map((queue) => ({ queue, ready: null }));
    listeners.forEach((each, n) => this.listener(each, n));
    this.svg.setAttribute("aria-label", spoken(now, pending));
  }

  lane(each, now, of) {
    const name = each.recipient;
    const own = of(name);
    if (own.state === "running") own.state = "in hand";
    if (!own.state && each.consumers !== null) Object.assign(own, { state: each.consumers ? `${each.consumers} consuming` : "nobody consumes", gone: each.consumers === 0 });
    this.put(`${name}.queue`, `${name} queue`, each.ready, { full: each.ready > 0, state: each.ready === null ? "not seen" : each.kind ? `ready, ${each.kind}` : "ready" });
    this.put(name, name, hand(now, each) ?? null, own);
    const receipts = each.receipts;
    this.put(`${name}.store`, "applied", receipts?.applied ?? null, { state: receipts ? [receipts.stale && `${receipts.stale} stale`, receipts.duplicates && `${receipts.duplicates} twice`].filter(Boolean).join(", ") : "not seen" });
    this.put(`${name}.dead`, "dead", each.dead, { full: each.dead > 0 });
    (each.retry ?? Array(this.retries).fill(null)).forEach((count, n) => this.put(`${name}.retry.${n + 1}`, `retry ${n + 1}`, count, { full: count > 0, state: now.scale?.[n] ?? "" }));
  }

  listener(each, n) {
    const { queue, ready, consumers, unacked, retry, dead, kind } = each;
    if (consumers === undefined) return this.put(`listener-${n}`, queue, null, { state: "not seen", drawn: short(queue) });
    const state = [consumers !== null && (consumers ? `${shown(consumers)} consuming` : "nobody consumes"), unacked && `${shown(unacked)} in hand`, retry && `${shown(retry)} to retry`, dead && `${shown(dead)} dead`, kind];
    this.put(`listener-${n}`, queue, ready, { full: ready > 0, gone: consumers === 0, state: state.filter(Boolean).join(", "), drawn: short(queue) });
  }

  move(before, now) {
    const more = (a, b) => (a ?? b ?? 0) < (b ?? 0) ? b - (a ?? b) : 0;
    const send = (...all) => this.dots.send(...all);
    send(["api>outbox"], more(before.outbox?.accepted, now.outbox?.accepted));
    const sent = more(before.outbox?.confirmed, now.outbox?.confirmed);
    if (!sent && more(before.outbox?.pending?.returned, now.outbox?.pending?.returned)) send(["outbox>relay", "relay>exchange"], 1, "bad");
    send(["exchange>parked"], more(before.parked?.ready, now.parked?.ready), "bad");
    const stood = new Map((before.listeners?.shown ?? []).map((each) => [each.queue, each.ready]));
    (now.listeners?.shown ?? []).forEach((each, n) => send([`exchange>listener-${n}`], more(stood.get(each.queue), each.ready)));
    for (const [index, each] of now.recipients.entries()) {
      const was = before.recipients[index], name = each.recipient;
      send(["outbox>relay", "relay>exchange", `exchange>${name}.queue`], sent);
      const settled = (r) => r && r.applied + r.stale + r.dropped;
      send([`${name}.queue>${name}`, `${name}>${name}.store`], more(settled(was.receipts), settled(each.receipts)), "good");
      send([`${name}.queue>${name}`], more(was.receipts?.duplicates, each.receipts?.duplicates), "warn");
      send([`${name}>${name}.dead`], more(was.dead, each.dead), "bad");
      send([`${name}.dead>${name}.queue`], more(each.dead, was.dead), "warn");
      (each.retry ?? []).forEach((count, n) => {
        send([`${name}>${name}.retry.${n + 1}`], more(was.retry?.[n], count), "warn");
        send([`${name}.retry.${n + 1}>${name}.queue`], more(count, was.retry?.[n]), "warn");
      });
    }
  }
}

// A queue's name may have 255 bytes.
const short = (name) => (name.length > 40 ? `${name.slice(0, 18)} ... ${name.slice(-17)}` : name);

// "dead" is said beside its recipient only: whoever hears it must be told whose it is.
function whose(id, name) {
  const [recipient, part] = id.split(".");
  return part && !name.startsWith(recipient) ? `${recipient} ${name}` : name;
}

function spoken(now, pending) {
  const lanes = now.recipients.map((each) => `${each.recipient}: ${shown(each.ready)} ready, ${shown(each.dead)} dead, ${shown(each.receipts?.applied)} applied`);
  const parked = now.parked ? ` ${shown(now.parked.ready)} parked beside the exchange.` : "";
  const more = now.listeners?.shown.length ? ` ${shown(now.listeners.shown.length + now.listeners.more)} more queues on the exchange.` : "";
  return `Outbox: ${shown(pending)} pending.${parked} ${lanes.join(". ")}.${more}`;
}
