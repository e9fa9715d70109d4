// The presenter's panel: in the demo only. Every action carries the token of this page.
import { $, make, say, tone } from "./dom.js";
import { startDead } from "./dead.js";

const MESSAGES = [
  ["burst", "Burst of 100", "B"],
  ["old-revision", "Old revision, late", "O"],
  ["duplicate", "Duplicate", "D"],
  ["failing", "Fails in the catalog", "F"],
  ["heal", "Heal the catalog", "H"],
  ["poison", "Poison", "X"],
  ["unroutable", "Unroutable", "U"],
  ["mend", "Mend its key", "M"],
];

const SLOW = 500; // ms after which an action that goes on says so

export function startStage(token) {
  const dead = startDead(token ? act : null);
  $("main").classList.toggle("plain", !token);
  if (!token) return { show: (now) => dead.show(now) };
  document.querySelector("[data-demo]").hidden = false;
  const buttons = new Map();
  const button = (action, text, key, order = () => ({})) => {
    const made = make("button", { type: "button", "data-action": action, onclick: () => act(action, order(), made) }, text);
    if (key) made.append(make("kbd", {}, key));
    buttons.set(action, made);
    return made;
  };
  const title = () => ({ title: $("title").value });
  $("messages").append(...MESSAGES.map(([action, text, key]) => button(action, text, key, ["failing", "poison"].includes(action) ? title : undefined)));
  $("whole").append(button("restart-broker", "Restart the broker"), button("ledger", "Count every id"), button("reset", "Reset everything", "R"));
  $("publish").addEventListener("submit", (event) => {
    event.preventDefault();
    act("one", title(), event.submitter);
  });
  document.addEventListener("keydown", (event) => {
    if (!$("keys").checked || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
    if (event.target.closest("input:not([type=checkbox]), textarea, select, dialog")) return;
    const pressed = event.key.toUpperCase();
    if (pressed === "P") act("one", title(), null);
    for (const made of buttons.values()) if (made.querySelector("kbd")?.textContent === pressed) made.click();
  });
  const cast = new Map();
  let orphan = null; // the row whose pressed button is gone, and whose next one is not there yet

  async function act(action, order = {}, pressed = null) {
    if (pressed) pressed.disabled = true;
    const name = pressed?.getAttribute("aria-label") ?? pressed?.firstChild.textContent.trim() ?? action;
    const before = [$("said").textContent, $("said").dataset.tone];
    const working = setTimeout(() => tell(`${name}: working on it ...`, "warn"), SLOW);
    try {
      const answer = await fetch(`/stage/${action}`, {
        method: "POST",
        headers: { "Content-Type": "application/json", "X-Stage-Token": token },
        body: JSON.stringify(order),
      });
      const told = await answer.json();
      clearTimeout(working);
      if (answer.ok && !told.said) tellAgain(before);
      else tell(answer.ok ? told.said : told.detail, answer.ok ? "good" : "bad");
      return answer.ok ? told : null;
    } catch {
      tell("The server does not answer.", "bad");
      return null;
    } finally {
      clearTimeout(working);
      if (pressed) pressed.disabled = pressed.dataset.never === "";
      if (pressed && document.activeElement === document.body) pressed.focus({ preventScroll: true }); // disabling took it
    }
  }

  // What has nothing to say leaves no "working on it", and what was said before stays.
  function tellAgain([text, kind]) {
    if ($("said").dataset.tone === "warn") tell(kind === "warn" ? "" : text, kind);
  }

  function tell(text, kind) {
    say($("said"), text);
    tone($("said"), kind);
  }

  function player(name, line) {
    const make_one = (action, text) => make("button", { type: "button", "data-action": `${action} ${name}`, "aria-label": `${text} ${name}`, onclick: async (event) => {
      await act(action, { name }, event.currentTarget);
      if (document.activeElement === document.body) focusOn(all); // the button is hidden by now
    } }, text);
    const all = { start: make_one("start", "Start"), pause: make_one("pause", "Pause"), kill: make_one("kill", "Kill"), cut: make_one("cut", "Cut line") };
    const state = make("td");
    const row = make("tr", {}, make("th", { scope: "row" }, name), state, make("td", {}, all.start, all.pause, all.kill, ...(line ? [all.cut] : [])));
    $("cast").tBodies[0].append(row);
    return { state, all };
  }

  // Not on "Kill": who presses the key once more must not break what has just been started.
  function focusOn(all) {
    const safe = [all.start, all.pause].find((made) => !made.hidden);
    orphan = safe ? null : all;
    safe?.focus({ preventScroll: true });
  }

  function show(now) {
    dead.show(now);
    for (const each of now.cast) {
      if (!cast.has(each.name)) cast.set(each.name, player(each.name, each.line));
      const { state, all } = cast.get(each.name);
      const focused = Object.values(all).find((made) => made === document.activeElement);
      say(state, each.state);
      tone(state, { running: "good", starting: "warn", paused: "warn", ended: "bad" }[each.state]);
      all.start.hidden = !["paused", "ended"].includes(each.state);
      say(all.start, each.state === "paused" ? "Go on" : "Start");
      all.pause.hidden = each.state !== "running";
      all.kill.hidden = each.state === "ended";
      all.cut.hidden = each.state === "ended";
      const waits = orphan === all && document.activeElement === document.body;
      if (focused?.hidden || waits) focusOn(all);
    }
    buttons.get("heal").hidden = !now.trouble;
    buttons.get("mend").hidden = !now.outbox?.pending?.returned;
    const never = !now.restartable;
    if (never) Object.assign(buttons.get("restart-broker"), { disabled: true, title: "This broker was given to the demo: it is not ours to restart." }).dataset.never = "";
  }

  return { show };
}
