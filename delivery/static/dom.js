// Everything that comes from outside enters the page as text: no function here takes markup.
export const $ = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) set(node, name, value);
  node.append(...children);
  return node;
}

export function draw(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function set(node, name, value) {
  if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
  else if (value === true) node.setAttribute(name, "");
  else if (value !== false && value !== undefined) node.setAttribute(name, value);
}

// Touch the document only for what differs: an update must stay cheap.
export function say(node, text) {
  const now = String(text);
  if (node.textContent !== now) node.textContent = now;
}

export const tone = (node, value) => {
  if (node.dataset.tone !== value) node.dataset.tone = value;
};

export const shown = (count) => (count === null || count === undefined ? "?" : count.toLocaleString("en"));

export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");

export const sum = (list) => list.reduce((total, each) => total + each, 0);
