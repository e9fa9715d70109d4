// Messages on their way: a dot runs along the pipes once for each message that moved.
import { draw } from "./dom.js";

const MOST = 70;
const AT_ONCE = 6; // for one move; a burst is a train of dots, not a flood
const SPEED = 0.55; // viewBox units a millisecond
const calm = matchMedia("(prefers-reduced-motion: reduce)");

export class Dots {
  constructor(svg, pipes) {
    this.svg = svg;
    this.pipes = pipes;
    this.running = [];
    this.frame = 0;
  }

  send(route, count, kind = "") {
    if (count <= 0 || calm.matches || document.hidden) return;
    const pipes = route.map((id) => this.pipes.get(id)).filter(Boolean);
    for (let n = 0; n < Math.min(count, AT_ONCE) && this.running.length < MOST; n += 1) {
      const dot = draw("circle", { r: 7, class: `dot ${kind}`, visibility: "hidden" });
      this.svg.append(dot);
      this.running.push({ dot, pipes, begun: performance.now() + n * 70 });
    }
    if (!this.frame && this.running.length) this.frame = requestAnimationFrame((now) => this.step(now));
  }

  step(now) {
    this.running = this.running.filter((each) => this.place(each, now));
    this.frame = this.running.length ? requestAnimationFrame((next) => this.step(next)) : 0;
  }

  place({ dot, pipes, begun }, now) {
    let way = (now - begun) * SPEED;
    if (way < 0) return true;
    for (const { path, length } of pipes) {
      if (way <= length) {
        const point = path.getPointAtLength(way);
        dot.setAttribute("cx", point.x);
        dot.setAttribute("cy", point.y);
        dot.setAttribute("visibility", "visible");
        return true;
      }
      way -= length;
    }
    dot.remove();
    return false;
  }
}
