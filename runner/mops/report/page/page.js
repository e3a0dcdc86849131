"use strict";
const root = document.documentElement;
root.classList.add("has-script");

// Theme: that of the system, until the reader chooses another one.
const toggle = document.getElementById("theme");
const isDark = () => root.dataset.theme
  ? root.dataset.theme === "dark"
  : matchMedia("(prefers-color-scheme: dark)").matches;
const nameToggle = () => { toggle.textContent = isDark() ? "Light theme" : "Dark theme"; };
toggle.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  nameToggle();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameToggle);
nameToggle();

// Parallel coordinates: a drag along an axis keeps the sets that cross the dragged part. Ranges are shares of an axis.
class Filter {
  constructor(figure) {
    this.figure = figure;
    this.axes = JSON.parse(figure.querySelector("script").textContent).axes;
    this.n = Number(figure.dataset.filter);
    this.sets = [...figure.querySelectorAll(".set")].map((line) => ({
      line,
      at: line.dataset.at.split(" ").map((share) => (share === "-" ? null : Number(share))),
    }));
    // With several rankings, each figure has its table after it.
    this.table = [...document.querySelectorAll("table[data-shown]")].find((table) =>
      figure.compareDocumentPosition(table) & Node.DOCUMENT_POSITION_FOLLOWING);
    this.caption = this.table.querySelector("[data-caption]");
    this.ofAll = this.caption.textContent;
    this.ranges = this.axes.map(() => null);
    this.areas = [...figure.querySelectorAll(".brush-area")];
    this.shown = [...figure.querySelectorAll(".brush-range")];
    this.inputs = this.axes.map((_, i) => [...figure.querySelectorAll(`input[data-axis="${i}"]`)]);
    this.areas.forEach((area, i) => this.listen(area, i));
    this.inputs.forEach((pair, i) => pair.forEach((input) => input.addEventListener("input", () => this.type(i))));
    figure.querySelector("[data-clear]").addEventListener("click", () => this.clear());
    this.show();
  }

  listen(area, i) {
    const share = (event) => {
      const box = area.getBoundingClientRect();
      return Math.min(Math.max(1 - (event.clientY - box.top) / box.height, 0), 1);
    };
    let from = null;
    area.addEventListener("pointerdown", (event) => {
      area.setPointerCapture(event.pointerId);
      from = share(event);
    });
    area.addEventListener("pointermove", (event) => {
      if (from === null) return;
      const to = share(event);
      this.set(i, Math.abs(to - from) < 0.01 ? null : [Math.min(from, to), Math.max(from, to)]);
    });
    area.addEventListener("pointerup", (event) => {
      if (from !== null && Math.abs(share(event) - from) < 0.01) this.set(i, null);
      from = null;
    });
    area.addEventListener("pointercancel", () => { from = null; });
  }

  set(i, range) {
    this.ranges[i] = range;
    this.inputs[i].forEach((input, end) => {
      input.value = range === null ? "" : Number(this.value(i, range[end]).toPrecision(4));
    });
    this.show();
  }

  type(i) {
    const [low, high] = this.inputs[i].map((input) => (input.value === "" ? null : this.share(i, Number(input.value))));
    const slack = 1e-9;  // a value that the reader copies from the table lies inside
    this.ranges[i] = low === null && high === null ? null : [(low ?? 0) - slack, (high ?? 1) + slack];
    this.show();
  }

  value(i, share) {
    const { low, high, log } = this.axes[i];
    return log ? low * (high / low) ** share : low + (high - low) * share;
  }

  share(i, value) {
    const { low, high, log } = this.axes[i];
    if (low === high) return value < low ? 0 : value > low ? 1 : 0.5;  // the axis draws its only value in the middle
    if (log) return value > 0 ? Math.log(value / low) / Math.log(high / low) : -1;
    return (value - low) / (high - low);
  }

  clear() {
    this.ranges.forEach((_, i) => this.set(i, null));
  }

  show() {
    const crosses = (at) => this.ranges.every((range, i) =>
      range === null || (at[i] !== null && at[i] >= range[0] && at[i] <= range[1]));
    const kept = this.sets.filter(({ line, at }) => {
      const inside = crosses(at);
      line.classList.toggle("out", !inside);
      return inside;
    });
    this.showRows(new Set(kept.map(({ line }) => line.dataset.set)));
    this.nameRows(kept.length);
    this.ranges.forEach((range, i) => {
      const area = this.areas[i], shown = this.shown[i];
      const [low, high] = range ? [Math.max(range[0], 0), Math.min(range[1], 1)] : [0, 0];
      shown.setAttribute("y", Number(area.getAttribute("y")) + (1 - high) * area.getAttribute("height"));
      shown.setAttribute("height", Math.max(high - low, 0) * area.getAttribute("height"));
    });
    this.figure.querySelector("[data-count]").textContent =
      `${kept.length.toLocaleString("en")} of ${this.n.toLocaleString("en")} parameter sets shown`;
  }

  // The table lists the best of the sets that the filter keeps.
  showRows(kept) {
    let left = Number(this.table.dataset.shown);
    for (const row of this.table.tBodies[0].rows) {
      row.hidden = !kept.has(row.dataset.set) || left <= 0;
      if (!row.hidden) left -= 1;
    }
  }

  nameRows(n) {
    const most = Math.min(n, Number(this.table.dataset.shown));
    const where = this.sets.length < this.n ? " in this page" : "";
    this.caption.textContent = this.ranges.every((range) => range === null) ? this.ofAll
      : n === 0 ? "The filter keeps no parameter set."
      : `The best ${most} of the ${n.toLocaleString("en")} parameter sets${where} that the filter keeps.`;
  }
}
document.querySelectorAll("figure[data-filter]").forEach((figure) => new Filter(figure));
