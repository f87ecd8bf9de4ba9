// The page: charts into their groups, the health strip, and the switches.

const story = JSON.parse(document.getElementById("data").textContent);
const marks = [];
story.runs.forEach((run, index) => {
  for (const alert of run.alerts || []) marks.push({ ...alert, run: index, number: marks.length + 1 });
});

const charts = [];
for (const metric of story.metrics) {
  const place = document.querySelector('[data-group="' + metric.group + '"]');
  const headline = metric.group === "return";
  const chart = new Chart(metric, story.runs, headline ? { marks, height: 270 } : {});
  charts.push(chart);
  place.append(chart.figure);
}

// One bar per run: well, or the colour of what was wrong, for as long as it was.
class Strip {
  constructor(place) {
    this.place = place;
    this.svg = make("svg", { role: "img" });
    place.append(make("h3", {}, "Health"), this.svg, make("p", { class: "note" }, "Numbers lead to the alerts below."));
    onWidth(place, () => this.draw());
  }

  draw() {
    const width = this.svg.clientWidth, row = 44;
    if (!width) return;
    const runs = story.runs.map((run, index) => ({ ...run, index })).filter((run) => !view.hidden.has(run.index));
    const length = (run) => (view.axis === "steps" ? run.steps : run.seconds) || 0;
    const right = Math.max(...runs.map(length), 1e-9), px = (x) => (x / right) * (width - 18) + 9;
    const parts = [];
    runs.forEach((run, i) => {
      const y = i * row + 30, mine = marks.filter((mark) => mark.run === run.index);
      const state = run.alerts === null ? "none" : "good";
      const word = run.alerts === null ? "not recorded" : mine.length ? mine.length + (mine.length > 1 ? " alerts" : " alert") : "no alerts";
      parts.push(make("text", { class: "label", x: 9, y: y - 18 }, run.label + ": " + word));
      parts.push(make("rect", { class: "bar " + state, x: 9, y: y - 7, width: Math.max(px(length(run)) - 9, 2), height: 14, rx: 3 }));
      for (const level of ["note", "warn", "error"]) {
        for (const mark of mine.filter((m) => m.level === level)) {
          const [from, to] = mark[view.axis].map(px);
          parts.push(make("rect", { class: "bar " + level, x: from, y: y - 7, width: Math.max(to - from, 3), height: 14, rx: 2, opacity: 0.55 }));
        }
      }
      for (const mark of mine) parts.push(flag(mark, px(mark[view.axis][0]), y));
    });
    const height = runs.length * row;
    this.svg.setAttribute("height", height);
    this.svg.setAttribute("viewBox", "0 0 " + width + " " + Math.max(height, 1));
    this.svg.setAttribute("aria-label", runs.map((run) => run.label + ": " + (run.alerts === null ? "health not recorded" : run.alerts.length + " alerts")).join("; "));
    this.svg.replaceChildren(...parts);
  }
}

const strip = new Strip(document.querySelector("[data-strip]"));

function redraw() {
  for (const chart of charts) chart.draw();
  strip.draw();
}

const toolbar = document.querySelector(".toolbar");
toolbar.hidden = false;
for (const input of toolbar.querySelectorAll('[name="axis"]')) {
  input.addEventListener("change", () => { view.axis = input.value; redraw(); });
}
document.getElementById("root").addEventListener("change", (event) => { view.root = event.target.checked; redraw(); });
for (const button of toolbar.querySelectorAll("[data-run]")) {
  button.addEventListener("click", () => {
    const run = Number(button.dataset.run), hide = !view.hidden.has(run);
    view.hidden[hide ? "add" : "delete"](run);
    button.setAttribute("aria-pressed", String(!hide));
    redraw();
  });
}
// A browser may bring switches back as they were when the page was left.
view.axis = toolbar.querySelector('[name="axis"]:checked').value;
view.root = document.getElementById("root").checked;
document.documentElement.dataset.ready = "yes";
