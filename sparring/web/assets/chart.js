"use strict";
// Line charts in SVG: bands, seeds, alerts, a read-out by pointer and by keys, and a table of the numbers.

const SVG = "http://www.w3.org/2000/svg";

// An element with attributes and children; text is always text.
function make(name, attributes = {}, ...children) {
  const svg = make.svg.has(name);
  const node = svg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
make.svg = new Set(["svg", "g", "path", "line", "rect", "circle", "text", "title"]);

const view = { axis: "steps", root: false, hidden: new Set() };

// -- numbers ------------------------------------------------------------------------------------------------

const bend = (y) => (view.root ? Math.sign(y) * Math.sqrt(Math.abs(y)) : y);
const unbend = (y) => (view.root ? Math.sign(y) * y * y : y);

// A number in few characters; counts in thousands from `thousands` on.
function short(value, thousands = 1e4) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e15)) return Number(value.toPrecision(3)).toExponential();
  for (const [from, unit, word] of [[1e12, 1e12, "T"], [1e9, 1e9, "G"], [1e6, 1e6, "M"], [thousands, 1e3, "k"]]) {
    if (size >= from) return trim(value / unit) + word;
  }
  return trim(value);
}

const trim = (value) => String(Number(value.toPrecision(4)));

function clock(seconds) {
  if (seconds === null) return "–";
  const [unit, word] = seconds < 120 ? [1, " s"] : seconds < 7200 ? [60, " min"] : [3600, " h"];
  return Number((seconds / unit).toPrecision(3)) + word;
}

const where = (x) => (view.axis === "steps" ? short(x, 1e3) : clock(x));

// Round numbers that cover a range; hours and minutes are round in their own way.
function ticks(low, high, wanted, seconds = false) {
  const raw = (high - low) / wanted;
  if (!(raw > 0)) return [low];
  let step;
  if (seconds && raw > 1) {
    const round = [2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
    step = round.find((s) => s >= raw) || Math.ceil(raw / 86400) * 86400;
  } else {
    const power = 10 ** Math.floor(Math.log10(raw));
    step = [1, 2, 5, 10].find((s) => s * power >= raw * 0.999) * power;
  }
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

// On the bent axis: even places, each at a number with as few digits as still give three of them, zero among
// them where it belongs, and none too close to another.
function bentTicks(low, high, wanted) {
  for (let digits = 1; ; digits++) {
    const found = low <= 0 && high >= 0 ? [0] : [];
    for (let i = 0; i <= wanted; i++) {
      const value = Number(unbend(low + ((high - low) * i) / wanted).toPrecision(digits)), place = bend(value);
      const room = found.every((other) => Math.abs(bend(other) - place) > (high - low) / (2 * wanted));
      if (room && place >= low && place <= high) found.push(value);
    }
    if (found.length >= 3 || digits > 5) return found;
  }
}

// The index of the element nearest to x in a growing list.
function nearest(list, x) {
  let low = 0, high = list.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (list[middle] < x) low = middle; else high = middle;
  }
  return Math.abs(list[low] - x) <= Math.abs(list[high] - x) ? low : high;
}

// -- paths --------------------------------------------------------------------------------------------------

function linePath(xs, ys, px, py) {
  let path = "", pen = false;
  for (let i = 0; i < xs.length; i++) {
    if (ys[i] === null) { pen = false; continue; }
    path += (pen ? "L" : "M") + px(xs[i]) + " " + py(ys[i]);
    pen = true;
  }
  return path;
}

// A band is drawn in stretches, because a value that is not a number interrupts it.
function bandPath(xs, low, high, px, py) {
  let path = "", start = null;
  for (let i = 0; i <= xs.length; i++) {
    const whole = i < xs.length && low[i] !== null && high[i] !== null;
    if (whole && start === null) start = i;
    if (!whole && start !== null) {
      const there = [], back = [];
      for (let j = start; j < i; j++) {
        there.push(px(xs[j]) + " " + py(high[j]));
        back.unshift(px(xs[j]) + " " + py(low[j]));
      }
      path += "M" + there.concat(back).join("L") + "Z";
      start = null;
    }
  }
  return path;
}

// Calls back when an element's width has changed, in the next frame: drawing may change its height.
function onWidth(element, callback) {
  let width = 0;
  new ResizeObserver(() => {
    if (element.clientWidth === width) return;
    width = element.clientWidth;
    requestAnimationFrame(callback);
  }).observe(element);
}

// -- a chart ------------------------------------------------------------------------------------------------

class Chart {
  constructor(metric, runs, options = {}) {
    this.metric = metric;
    this.runs = runs;
    this.marks = options.marks || [];
    this.height = options.height || 190;
    this.at = null;
    this.svg = make("svg", { tabindex: 0, role: "img", height: this.height });
    this.tip = make("div", { class: "tip", hidden: true, role: "status" });
    this.plot = make("div", { class: "plot" }, this.svg, this.tip);
    this.table = make("div", { class: "scroll", tabindex: 0 });
    const numbers = make("details", { class: "numbers" }, make("summary", {}, "Numbers"), this.table);
    numbers.addEventListener("toggle", () => { if (numbers.open) this.fillTable(); });
    const caption = make("figcaption", {}, make("b", {}, metric.name), make("p", {}, this.subtitle()));
    this.figure = make("figure", { class: "chart", "data-metric": metric.name }, caption, this.plot, numbers);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerdown", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.read(null));
    this.svg.addEventListener("blur", () => this.read(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    onWidth(this.plot, () => this.draw());
  }

  subtitle() {
    const counts = [...new Set(this.metric.series.map((s) => s.n))];
    const seeds = "n = " + counts.join(", ") + (counts.length === 1 && counts[0] === 1 ? " seed" : " seeds");
    return (this.metric.meaning ? this.metric.meaning + " " : "") + "(" + seeds + ")";
  }

  get shown() { return this.metric.series.filter((s) => !view.hidden.has(s.run)); }

  draw() {
    const width = this.plot.clientWidth;
    if (!width) return;
    const shown = this.shown;
    this.svg.setAttribute("viewBox", "0 0 " + width + " " + this.height);
    this.svg.setAttribute("aria-label", this.label(shown));
    this.at = null;
    this.tip.hidden = true;
    const ys = shown.flatMap((s) => [s.middle, s.low || [], s.high || [], ...(s.seeds || []).map((c) => c.middle), ...(s.fan || []).flat()].flat());
    let low = Infinity, high = -Infinity, right = 0;
    for (const y of ys) if (y !== null) { low = Math.min(low, y); high = Math.max(high, y); }
    for (const s of shown) right = Math.max(right, s[view.axis][s[view.axis].length - 1]);
    if (low > high) {
      this.svg.replaceChildren(make("text", { x: width / 2, y: this.height / 2, "text-anchor": "middle" }, "nothing to show"));
      this.scale = null;
      return;
    }
    [low, high] = [bend(low), bend(high)];
    const pad = high > low ? (high - low) * 0.05 : Math.abs(high) * 0.1 || 1;
    [low, high] = [low - pad, high + pad];
    const marginal = view.root ? bentTicks(low, high, 4) : ticks(low, high, this.height > 220 ? 6 : 4);
    const left = 12 + Math.max(...marginal.map((t) => short(t).length)) * 6.4;
    const top = this.marks.length ? 20 : 8, bottom = this.height - 22, end = width - 14;
    const px = (x) => Number((left + (right > 0 ? x / right : 0) * (end - left)).toFixed(1));
    const py = (y) => Number((bottom - ((bend(y) - low) / (high - low)) * (bottom - top)).toFixed(1));
    this.scale = { left, right, top, bottom, end, px, py };
    const parts = [];
    for (const t of marginal) {
      parts.push(make("line", { class: "tick", x1: left, x2: end, y1: py(t), y2: py(t) }));
      parts.push(make("text", { x: left - 6, y: py(t) + 4, "text-anchor": "end" }, short(t)));
    }
    parts.push(make("line", { class: "base", x1: left, x2: end, y1: bottom, y2: bottom }));
    for (const t of ticks(0, right, Math.max(Math.floor((end - left) / 90), 2), view.axis === "times")) {
      const anchor = px(t) > end - 16 ? "end" : "middle";
      parts.push(make("line", { class: "base", x1: px(t), x2: px(t), y1: bottom, y2: bottom + 4 }));
      parts.push(make("text", { x: Math.min(px(t), width - 2), y: bottom + 16, "text-anchor": anchor }, where(t)));
    }
    for (const mark of this.marks) {
      if (view.hidden.has(mark.run)) continue;
      const x = px(mark[view.axis][0]);
      if (x > end + 1) continue;
      parts.push(make("line", { class: "mark " + mark.level, x1: x, x2: x, y1: top, y2: bottom }));
      parts.push(flag(mark, x, 9));
    }
    for (const s of shown) parts.push(this.drawSeries(s, px, py));
    this.cross = make("g", { visibility: "hidden" });
    this.svg.replaceChildren(...parts, this.cross);
  }

  drawSeries(s, px, py) {
    const xs = s[view.axis], group = make("g", { class: "series c" + s.run });
    for (const [low, high] of s.fan || []) group.append(make("path", { class: "band", d: bandPath(xs, low, high, px, py) }));
    if (s.low) group.append(make("path", { class: "band", d: bandPath(xs, s.low, s.high, px, py) }));
    for (const c of s.seeds || []) group.append(make("path", { class: "seed", d: linePath(c[view.axis], c.middle, px, py) }));
    group.append(make("path", { class: "line", d: linePath(xs, s.middle, px, py) }));
    if (xs.length <= 30) {
      xs.forEach((x, i) => { if (s.middle[i] !== null) group.append(make("circle", { class: "dot", cx: px(x), cy: py(s.middle[i]), r: 2.3 })); });
    }
    return group;
  }

  label(shown) {
    const ends = shown.map((s) => this.runs[s.run].label + " ends at " + short(s.middle[s.middle.length - 1]));
    return "Chart of " + this.metric.name + ". " + ends.join("; ") + ". Arrow keys read values; the table below has them too.";
  }

  // -- the read-out --

  point(event) {
    if (!this.scale) return;
    const box = this.svg.getBoundingClientRect(), { left, end, right } = this.scale;
    const share = (event.clientX - box.left - left) / (end - left);
    this.read(Math.min(Math.max(share, 0), 1) * right);
  }

  key(event) {
    if (!this.scale) return;
    const all = [...new Set(this.shown.flatMap((s) => s[view.axis]))].sort((a, b) => a - b);
    const now = this.at === null ? -1 : nearest(all, this.at), stride = event.shiftKey ? 10 : 1;
    const next = { ArrowRight: now + stride, ArrowLeft: now < 0 ? all.length - 1 : now - stride, Home: 0, End: all.length - 1 }[event.key];
    if (event.key === "Escape") this.read(null);
    if (next === undefined || !all.length) return;
    event.preventDefault();
    this.read(all[Math.min(Math.max(next, 0), all.length - 1)]);
  }

  read(x) {
    if (!this.scale || x === null) {
      this.at = null;
      this.tip.hidden = true;
      if (this.cross) this.cross.setAttribute("visibility", "hidden");
      return;
    }
    const { px, py, top, bottom } = this.scale, rows = [], dots = [];
    let head = "";
    const close = this.shown.map((s) => s[view.axis][nearest(s[view.axis], x)]);
    this.at = close.reduce((best, c) => (Math.abs(c - x) < Math.abs(best - x) ? c : best));
    for (const s of this.shown) {
      const xs = s[view.axis], i = nearest(xs, this.at), y = s.middle[i];
      if (this.at > xs[xs.length - 1] && i === xs.length - 1 && xs[i] !== this.at) continue;
      if (xs[i] === this.at) head = "step " + s.steps[i].toLocaleString("en") + " · " + clock(s.times[i]);
      const range = s.low && s.low[i] !== null ? [s.low[i], s.high[i]] : s.fan ? [s.fan[0][0][i], s.fan[0][1][i]] : null;
      const name = this.runs.length > 1 ? this.runs[s.run].label : "";
      rows.push(make("div", {}, key(s.run), make("b", {}, short(y)), make("span", {}, (range ? "[" + short(range[0]) + ", " + short(range[1]) + "] " : "") + name)));
      if (y !== null) dots.push(make("circle", { class: "dot c" + s.run, cx: px(xs[i]), cy: py(y), r: 3.5 }));
    }
    const here = px(this.at);
    for (const mark of this.marks) {
      if (!view.hidden.has(mark.run) && Math.abs(px(mark[view.axis][0]) - here) < 7) rows.push(make("div", {}, "#" + mark.number + " " + mark.rule));
    }
    this.cross.replaceChildren(make("line", { class: "cross", x1: here, x2: here, y1: top, y2: bottom }), ...dots);
    this.cross.setAttribute("visibility", "visible");
    this.tip.replaceChildren(make("div", {}, make("span", {}, head)), ...rows);
    this.tip.hidden = false;
    const width = this.plot.clientWidth, own = this.tip.offsetWidth;
    this.tip.style.left = (here + own + 16 > width ? Math.max(here - own - 10, 0) : here + 10) + "px";
  }

  // At most thirteen rows of every run: even steps, and where it was lowest and highest.
  fillTable() {
    const rows = [];
    for (const s of this.metric.series) {
      const finite = s.middle.map((y, i) => [y, i]).filter(([y]) => y !== null);
      const chosen = new Set();
      for (let i = 0; i <= 10; i++) chosen.add(Math.round((i * (s.steps.length - 1)) / 10));
      if (finite.length) {
        chosen.add(finite.reduce((a, b) => (b[0] < a[0] ? b : a))[1]);
        chosen.add(finite.reduce((a, b) => (b[0] > a[0] ? b : a))[1]);
      }
      for (const i of [...chosen].sort((a, b) => a - b)) {
        const range = s.low ? "[" + short(s.low[i]) + ", " + short(s.high[i]) + "]" : "–";
        const cells = [s.steps[i].toLocaleString("en"), clock(s.times[i]), short(s.middle[i]), range];
        rows.push(make("tr", {}, make("th", { scope: "row" }, this.runs[s.run].label), ...cells.map((c) => make("td", {}, c))));
      }
    }
    const head = ["run", "step", "time", "value", "95 % interval"].map((word) => make("th", { scope: "col" }, word));
    this.table.replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)));
  }
}

const key = (run) => make("svg", { class: "swatch c" + run, viewBox: "0 0 22 10", "aria-hidden": "true" }, make("line", { class: "line", x1: 0, y1: 5, x2: 22, y2: 5 }));

// The numbered flag of an alert.
function flag(mark, x, y) {
  return make("g", {},
    make("circle", { class: "flag " + mark.level, cx: x, cy: y, r: 7 }),
    make("text", { class: "number", x, y: y + 3.4 }, String(mark.number)),
    make("title", {}, "#" + mark.number + " " + mark.rule));
}
