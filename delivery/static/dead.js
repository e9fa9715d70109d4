// The dead: counted always, opened only when somebody asks, replayed only with a plan and a reason.
import { $, clock, make, say, shown, tone } from "./dom.js";

export function startDead(act) {
  const places = new Map();

  function build(name) {
    const count = make("b");
    const list = make("div", { class: "dead-list" });
    const place = { name, count, list, note: make("p", { class: "small" }) };
    const head = make("div", { class: "title" }, make("h3", {}, `${name}: `, count, " dead"));
    if (act) {
      const plan = make("button", { type: "button", "data-action": `plan ${name}`, onclick: () => open(place, plan) }, `Open and plan ${name}'s dead`);
      head.append(plan);
      place.plan = plan;
    } else head.append(make("code", {}, `delivery dead list ${name}`));
    $("dead").append(make("div", {}, head, place.note, list));
    places.set(name, place);
    return place;
  }

  async function open(place, pressed) {
    say(place.note, "");
    const told = await act("plan", { name: place.name }, pressed);
    if (!told) repeat(place);
    if (told) list(place, told.found);
  }

  // Where the buttons are, too: the panel that says it may be out of sight.
  function repeat(place) {
    say(place.note, $("said").textContent);
    tone(place.note, $("said").dataset.tone);
  }

  function list(place, found) {
    if (!found.total) return place.list.replaceChildren(make("p", { class: "small" }, "Nothing is dead."));
    const why = make("input", { type: "text", value: "shown live", maxlength: 300, id: `why-${place.name}` });
    const decide = (action, keys, text) =>
      make("button", { type: "button", "data-action": `${action} ${keys ? keys[0] : "all"} ${place.name}`, onclick: async (event) => {
        const done = await act(action, { name: place.name, keys, reason: why.value }, event.currentTarget);
        if (done) await open(place, place.plan);
        repeat(place);
        if (done && document.activeElement === document.body) place.plan.focus({ preventScroll: true }); // the row is gone
      } }, text);
    const groups = found.groups.map((each) => make("li", {}, `${shown(each.count)} ${each.reason}: ${each.prospect}`));
    const rows = found.messages.map((each) => make("tr", {},
      make("td", {}, make("details", {}, make("summary", {}, each.key), make("pre", { tabindex: 0 }, `${each.body}\n\n${each.traceback}`))),
      make("td", { "data-label": "why" }, `${each.reason}: ${each.error}`),
      make("td", { "data-label": "when" }, `attempt ${each.attempts}, ${clock(each.parked_at)}`),
      make("td", { "data-label": "expect of a replay" }, each.prospect),
      make("td", {}, decide("replay", [each.key], "Replay"), " ", decide("drop", [each.key], "Drop"))));
    const more = found.total - found.messages.length;
    const head = ["Message", "Why it is dead", "When", "What to expect of a replay", ""];
    place.list.replaceChildren(
      make("ul", {}, ...groups),
      make("div", { class: "buttons" }, make("label", { for: why.id }, "Reason "), why, decide("replay", null, `Replay all ${shown(found.total)}`), make("button", { type: "button", onclick: () => place.list.replaceChildren() }, "Close")),
      make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `${place.name}'s dead messages` },
        make("table", {}, make("thead", {}, make("tr", {}, ...head.map((each) => (each ? make("th", { scope: "col" }, each) : make("td"))))), make("tbody", {}, ...rows))),
      ...(more > 0 ? [make("p", { class: "small" }, `and ${shown(more)} more`)] : []));
  }

  return {
    show(now) {
      for (const each of now.recipients) {
        const place = places.get(each.recipient) ?? build(each.recipient);
        say(place.count, shown(each.dead));
      }
    },
  };
}
