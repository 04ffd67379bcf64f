"use strict";

// Lists: filter, open and close all. What needs this script is hidden until it runs.
for (const each of document.querySelectorAll("[data-needs-script]")) each.hidden = false;

function openAll(section, open) {
  for (const each of document.querySelectorAll(`#${section} details:not([hidden])`)) each.open = open;
}
for (const button of document.querySelectorAll("[data-open]")) {
  button.addEventListener("click", () => openAll(button.dataset.open, true));
}
for (const button of document.querySelectorAll("[data-close]")) {
  button.addEventListener("click", () => openAll(button.dataset.close, false));
}

const filter = document.getElementById("filter");
if (filter) {
  const rows = [...document.querySelectorAll("[data-rows] > details")];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, index) => {
      row.hidden = !words.every((word) => texts[index].includes(word));
      shown += row.hidden ? 0 : 1;
    });
    document.getElementById("found").textContent = words.length ? `${shown} of ${rows.length}` : "";
  });
}

// On paper everything is open.
let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const each of closed) each.open = true;
});
addEventListener("afterprint", () => {
  for (const each of closed) each.open = false;
});

// The timeline: slices narrower than a pixel are drawn as one, so that any number of them is drawn at once.
const SVG = "http://www.w3.org/2000/svg";
const LEFT = 96, LANE = 22, GAP = 10, TOP = 24, NARROW = 1;

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function timeText(microseconds) {
  if (microseconds === 0) return "0";
  if (microseconds < 1) return `${(microseconds * 1000).toPrecision(3)} ns`;
  if (microseconds < 1000) return `${Number(microseconds.toPrecision(4))} us`;
  if (microseconds < 1e6) return `${Number((microseconds / 1e3).toPrecision(4))} ms`;
  return `${Number((microseconds / 1e6).toPrecision(4))} s`;
}

class Timeline {
  constructor(box, data) {
    this.box = box;
    this.data = data;
    this.whole = Math.max(data.seconds * 1e6, 1e-3);
    this.from = 0;
    this.span = this.whole;
    this.rows = [];
    let top = TOP;
    for (const track of data.tracks) {
      this.rows.push(top);
      top += track.lanes * LANE + GAP;
    }
    this.height = top;
    this.listen();
    this.draw();
  }

  get width() {
    return Math.max(this.box.clientWidth, 320);
  }

  x(time) {
    return LEFT + ((time - this.from) / this.span) * (this.width - LEFT - 8);
  }

  show(from, span) {
    this.span = Math.min(Math.max(span, this.whole / 1e6), this.whole);
    this.from = Math.min(Math.max(from, 0), this.whole - this.span);
    if (!this.pending) {
      this.pending = true;
      requestAnimationFrame(() => {
        this.pending = false;
        this.draw();
      });
    }
  }

  zoom(factor, at = this.from + this.span / 2) {
    const span = Math.min(Math.max(this.span * factor, this.whole / 1e6), this.whole);
    this.show(at - ((at - this.from) / this.span) * span, span);
  }

  does(what) {
    const steps = {
      in: () => this.zoom(0.5),
      out: () => this.zoom(2),
      left: () => this.show(this.from - this.span / 4, this.span),
      right: () => this.show(this.from + this.span / 4, this.span),
      all: () => this.show(0, this.whole),
    };
    steps[what]();
  }

  listen() {
    const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all", Home: "all" };
    this.box.addEventListener("keydown", (event) => {
      if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      this.does(keys[event.key]);
    });
    for (const button of document.querySelectorAll("[data-zoom]")) {
      button.addEventListener("click", () => this.does(button.dataset.zoom));
    }
    this.box.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const share = (event.clientX - this.box.getBoundingClientRect().left - LEFT) / (this.width - LEFT - 8);
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.from + this.span * Math.min(Math.max(share, 0), 1));
    }, { passive: false });
    let drag = null;
    this.box.addEventListener("pointerdown", (event) => {
      drag = { x: event.clientX, from: this.from };
    });
    addEventListener("pointermove", (event) => {
      if (drag === null) return;
      this.show(drag.from - ((event.clientX - drag.x) / (this.width - LEFT - 8)) * this.span, this.span);
    });
    addEventListener("pointerup", () => {
      drag = null;
    });
    addEventListener("resize", () => this.show(this.from, this.span));
    addEventListener("beforeprint", () => this.draw());
  }

  draw() {
    const svg = element("svg", { height: this.height, role: "img", "aria-label": "slices of the predicted step by resource" });
    this.ticks(svg);
    for (const fold of this.data.folds) this.fold(svg, fold);
    this.data.tracks.forEach((track, index) => {
      svg.append(element("text", { x: 8, y: this.rows[index] + LANE / 2 + 4 }, track.name));
      this.track(svg, track, index);
    });
    this.box.replaceChildren(svg);
  }

  ticks(svg) {
    const wanted = this.span / Math.max(Math.floor((this.width - LEFT) / 110), 1);
    const power = 10 ** Math.floor(Math.log10(wanted));
    const every = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= wanted);
    for (let count = Math.ceil(this.from / every); count * every <= this.from + this.span; count++) {
      const x = this.x(count * every);
      svg.append(element("line", { x1: x, x2: x, y1: TOP - 6, y2: this.height, class: "grid" }));
      svg.append(element("text", { x: x + 3, y: 14, class: "tick" }, timeText(count * every)));
    }
  }

  fold(svg, [name, start, length, iterations]) {
    const from = Math.max(this.x(start), LEFT), to = Math.min(this.x(start + length), this.width);
    if (to - from < NARROW) return;
    const said = `iterations 2 to ${iterations} of ${this.data.names[name]} are like the first, and are not drawn`;
    this.data.tracks.forEach((track, index) => {
      if (track.name === "loops") return;
      const place = { x: from, y: this.rows[index], width: to - from, height: track.lanes * LANE - 3 };
      const made = element("rect", { ...place, class: "fold" });
      made.append(element("title", {}, said));
      svg.append(made);
    });
    const shown = `iterations 2 to ${iterations} alike`;
    if (to - from > shown.length * 6.5) svg.append(element("text", { x: from + 4, y: TOP + 14, class: "tick" }, shown));
  }

  track(svg, track, index) {
    const merged = new Map();
    const flush = (lane) => {
      const run = merged.get(lane);
      if (!run) return;
      merged.delete(lane);
      this.rectangle(svg, index, lane, run.from, Math.max(run.to - run.from, NARROW),
        run.count === 1 ? run.slice : null, run.count);
    };
    for (const slice of track.slices) {
      const [lane, , start, length] = slice;
      if (start > this.from + this.span || start + length < this.from) continue;
      const from = Math.max(this.x(start), LEFT), to = Math.min(this.x(start + length), this.width);
      const run = merged.get(lane);
      if (to - from >= NARROW) {
        flush(lane);
        this.rectangle(svg, index, lane, from, to - from, slice, 1);
      } else if (run && from - run.from < 2 * NARROW) {
        run.to = Math.max(run.to, to);
        run.count += 1;
      } else {
        flush(lane);
        merged.set(lane, { from, to, slice, count: 1 });
      }
    }
    for (const lane of [...merged.keys()]) flush(lane);
  }

  rectangle(svg, index, lane, x, width, slice, count) {
    const y = this.rows[index] + lane * LANE;
    const said = slice ? this.said(slice) : `${count} slices, too short to draw at this scale`;
    const colour = { fill: `var(--k${index % 8})`, class: "slice", "data-count": count };
    const made = element("rect", { x, y, width, height: LANE - 3, rx: 2, ...colour });
    made.append(element("title", {}, said));
    made.addEventListener("click", () => {
      for (const each of svg.querySelectorAll(".chosen")) each.classList.remove("chosen");
      made.classList.add("chosen");
      document.getElementById("slice").textContent = said;
    });
    svg.append(made);
    const characters = Math.floor((width - 8) / 6.5);
    if (slice && characters >= 4) {
      const name = this.data.names[slice[1]];
      const shown = name.length > characters ? `${name.slice(0, characters - 1)}…` : name;
      svg.append(element("text", { x: x + 4, y: y + 14, class: "label" }, shown));
    }
  }

  said([, name, start, length, executions]) {
    const often = executions > 1 ? `, executed ${executions} times: ${timeText(executions * length)} in all` : "";
    return `${this.data.names[name]}: ${timeText(length)} from ${timeText(start)}${often}`;
  }
}

const timelineData = document.getElementById("timeline-data");
if (timelineData) new Timeline(document.getElementById("timeline"), JSON.parse(timelineData.textContent));
