// Where the picture's boxes and pipes are: a wide one for a room, a tall one for a phone.
const box = (x, y, w, h) => ({ x, y, w, h, cx: x + w / 2, cy: y + h / 2, right: x + w, bottom: y + h });
const line = (...points) => `M${points.map((p) => p.join(",")).join(" L")}`;
const bend = ([x1, y1], [x2, y2]) => `M${x1},${y1} C${(x1 + x2) / 2},${y1} ${(x1 + x2) / 2},${y2} ${x2},${y2}`;
const drop = ([x1, y1], [x2, y2]) => `M${x1},${y1} C${x1},${(y1 + y2) / 2} ${x2},${(y1 + y2) / 2} ${x2},${y2}`;

function share(x, y, width, height, count) {
  const gap = 8;
  const each = (width - gap * (count - 1)) / count;
  return Array.from({ length: count }, (_, n) => box(x + n * (each + gap), y, each, height));
}

// Beside the exchange, on an exchange that has one: where what no queue wants is parked.
function park(plan, place, way) {
  plan.nodes.parked = place;
  plan.edges["exchange>parked"] = way;
  return plan;
}

// Below all: queues of others that the exchange routes to, each by its own way off one pipe.
function hang(plan, places, way) {
  places.forEach((place, n) => {
    plan.nodes[`listener-${n}`] = place;
    plan.edges[`exchange>listener-${n}`] = line(...way(place));
  });
  if (places.length) plan.height = places.at(-1).bottom + plan.name + 10;
  return plan;
}

export function wide(recipients, retries, parking, listeners) {
  const lane = 226, middle = (lane * recipients.length) / 2;
  const nodes = { api: box(6, middle - 58, 130, 116), outbox: box(164, middle - 58, 130, 116), relay: box(322, middle - 58, 130, 116), exchange: box(482, middle - 46, 166, 92) };
  const edges = {
    "api>outbox": line([136, middle], [164, middle]),
    "outbox>relay": line([294, middle], [322, middle]),
    "relay>exchange": line([452, middle], [482, middle]),
  };
  recipients.forEach((name, index) => {
    const top = 6 + index * lane;
    const queue = box(706, top, 190, 104), process = box(936, top, 162, 104), store = box(1122, top, 152, 104);
    const dead = box(936, top + 132, 162, 62);
    Object.assign(nodes, { [`${name}.queue`]: queue, [name]: process, [`${name}.store`]: store, [`${name}.dead`]: dead });
    edges[`exchange>${name}.queue`] = bend([648, middle], [706, queue.cy]);
    edges[`${name}.queue>${name}`] = line([queue.right, queue.cy], [process.x, queue.cy]);
    edges[`${name}>${name}.store`] = line([process.right, queue.cy], [store.x, queue.cy]);
    edges[`${name}>${name}.dead`] = line([process.cx + 20, process.bottom], [process.cx + 20, dead.y]);
    edges[`${name}.dead>${name}.queue`] = `M${dead.x},${dead.cy + 14} C846,${dead.cy + 60} 686,${dead.cy + 60} 681,${queue.cy + 60} C679,${queue.cy + 30} 686,${queue.cy + 20} ${queue.x},${queue.cy + 20}`;
    share(queue.x, top + 132, queue.w, 62, retries).forEach((retry, n) => {
      nodes[`${name}.retry.${n + 1}`] = retry;
      edges[`${name}>${name}.retry.${n + 1}`] = `M${process.x + 22},${process.bottom} C${process.x + 22},${retry.cy} ${process.x - 8},${retry.cy} ${retry.right},${retry.cy}`;
      edges[`${name}.retry.${n + 1}>${name}.queue`] = line([retry.cx, retry.y], [retry.cx, queue.bottom]);
    });
  });
  const plan = { width: 1280, height: lane * recipients.length, nodes, edges, name: 17, count: 42, small: 28 };
  if (parking) park(plan, box(482, middle + 84, 166, 62), line([565, middle + 46], [565, middle + 84]));
  const places = Array.from({ length: listeners }, (_, n) => box(482 + (n % 2) * 404, plan.height + 20 + Math.floor(n / 2) * 100, 388, 62));
  return hang(plan, places, (to) => [[504, middle + 46], [467, middle + 66], [467, to.y - 12], [to.cx, to.y - 12], [to.cx, to.y]]);
}

export function tall(recipients, retries, parking, listeners) {
  const nodes = { api: box(4, 4, 112, 76), outbox: box(139, 4, 112, 76), relay: box(274, 4, 112, 76), exchange: box(110, 112, 170, 58) };
  const edges = {
    "api>outbox": line([116, 42], [139, 42]),
    "outbox>relay": line([251, 42], [274, 42]),
    "relay>exchange": drop([330, 80], [240, 112]),
  };
  const width = 390 / recipients.length - 8;
  recipients.forEach((name, index) => {
    const left = 4 + index * (390 / recipients.length);
    const queue = box(left, 214, width, 78), process = box(left, 408, width, 76);
    const way = left + width - 16;
    const dead = box(left, 518, width / 2 - 6, 66), store = box(left + width / 2 + 6, 518, width / 2 - 6, 66);
    Object.assign(nodes, { [`${name}.queue`]: queue, [name]: process, [`${name}.store`]: store, [`${name}.dead`]: dead });
    edges[`exchange>${name}.queue`] = drop([195 + (index - 0.5) * 60, 170], [queue.cx, queue.y]);
    edges[`${name}.queue>${name}`] = line([way, queue.bottom], [way, process.y]);
    edges[`${name}>${name}.store`] = line([store.cx, process.bottom], [store.cx, store.y]);
    edges[`${name}>${name}.dead`] = line([dead.cx, process.bottom], [dead.cx, dead.y]);
    edges[`${name}.dead>${name}.queue`] = line([dead.cx, dead.y], [dead.cx, queue.bottom]);
    share(left, 322, width - 34, 56, retries).forEach((retry, n) => {
      nodes[`${name}.retry.${n + 1}`] = retry;
      edges[`${name}>${name}.retry.${n + 1}`] = line([retry.cx, process.y], [retry.cx, retry.bottom]);
      edges[`${name}.retry.${n + 1}>${name}.queue`] = line([retry.cx, retry.y], [retry.cx, queue.bottom]);
    });
  });
  const plan = { width: 390, height: 608, nodes, edges, name: 13, count: 27, small: 20 };
  if (parking) park(plan, box(304, 112, 82, 58), line([280, 141], [304, 141]));
  const places = Array.from({ length: listeners }, (_, n) => box(24, plan.height + 24 + n * 88, 362, 56));
  const gap = 390 / recipients.length, turn = plan.height + 8;
  return hang(plan, places, (to) => [[195, 170], [gap, 190], [gap, turn], [8, turn], [8, to.cy], [to.x, to.cy]]);
}
