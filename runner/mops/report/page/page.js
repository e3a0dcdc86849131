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

// A link opens the section to which it leads, and paper shows all of them.
const sections = [...document.querySelectorAll("section > details")];
const openTarget = () => {
  const section = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (section) section.querySelector("details").open = true;
};
addEventListener("hashchange", openTarget);
addEventListener("beforeprint", () => sections.forEach((section) => { section.open = true; }));
openTarget();

// Parallel coordinates: Vega filters the lines, by a drag and by numbers, and the table follows.
class Filter {
  constructor(figure, view, signals) {
    this.figure = figure;
    this.view = view;
    this.signals = signals;
    this.n = Number(figure.dataset.filter);
    // With several rankings, each figure has its table after it.
    this.table = [...document.querySelectorAll("table[data-shown]")].find((table) =>
      figure.compareDocumentPosition(table) & Node.DOCUMENT_POSITION_FOLLOWING);
    this.caption = this.table.querySelector("[data-caption]");
    this.ofAll = this.caption.textContent;
    // The rows behind the filters: Vega-Lite gives a name to their table.
    this.lines = Object.keys(view.getState({ data: () => true, signals: () => false }).data)
      .filter((name) => /^data_\d+$/.test(name) && "n_outside" in (view.data(name)[0] ?? {})).pop();
    this.nShown = this.kept().size;
    const later = () => requestAnimationFrame(() => this.show());
    [...signals, "brush"].forEach((name) => view.addSignalListener(name, later));
    figure.querySelector("[data-clear]").addEventListener("click", () => this.clear());
    this.show();
  }

  kept() {
    return new Set(this.view.data(this.lines).map((row) => String(row.set)));
  }

  clear() {
    this.signals.forEach((name) => this.view.signal(name, ""));
    this.view.signal("brush_x", [0, 0]).signal("brush_y", [0, 0]).runAsync();
  }

  show() {
    const kept = this.kept();
    this.figure.querySelector("[data-count]").textContent =
      `${kept.size.toLocaleString("en")} of ${this.n.toLocaleString("en")} parameter sets shown`;
    let left = Number(this.table.dataset.shown);
    for (const row of this.table.tBodies[0].rows) {
      row.hidden = !kept.has(row.dataset.set) || left <= 0;
      if (!row.hidden) left -= 1;
    }
    const most = Math.min(kept.size, Number(this.table.dataset.shown));
    const where = this.nShown < this.n ? " in this page" : "";
    this.caption.textContent = kept.size === this.nShown ? this.ofAll
      : kept.size === 0 ? "The filter keeps no parameter set."
      : `The best ${most} of the ${kept.size.toLocaleString("en")} parameter sets${where} that the filter keeps.`;
  }
}

document.querySelectorAll("figure[data-filter]").forEach(async (figure) => {
  const place = figure.querySelector(".canvas"), spec = JSON.parse(figure.querySelector("script").textContent);
  const still = place.querySelector("svg"), text = still.getAttribute("aria-label");
  spec.width = place.clientWidth;
  const bind = figure.querySelector(".filters");
  // The interpreter needs no permission to make code from texts, which the page does not give.
  const options = { ast: true, actions: false, renderer: "svg", defaultStyle: false, tooltip: false, bind };
  const { view } = await vegaEmbed(place, spec, options);
  // Vega gives roles to marks also without texts for them, which screen readers would announce.
  place.querySelector("svg").setAttribute("aria-hidden", "true");
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", text);
  new Filter(figure, view, spec.params.filter((one) => "value" in one).map((one) => one.name));
});
