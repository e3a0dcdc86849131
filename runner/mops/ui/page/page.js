// Puts the parts of the page that the server sends into their places.
"use strict";

const connection = document.getElementById("connection");
const usual = connection.textContent;

function replace(name, html) {
  const part = document.querySelector(`[data-part="${name}"]`);
  if (!part) return;
  const open = new Set([...part.querySelectorAll("details[open]")].map((one) => one.dataset.key));
  const log = part.querySelector(".log");
  const atEnd = !log || log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
  const top = log ? log.scrollTop : 0;
  part.innerHTML = html;
  for (const one of part.querySelectorAll("details")) one.open = open.has(one.dataset.key);
  const next = part.querySelector(".log");
  if (next) next.scrollTop = atEnd ? next.scrollHeight : top;
}

for (const log of document.querySelectorAll(".log")) log.scrollTop = log.scrollHeight;

// A link that is replaced while the pointer is down on it gets no click, so parts wait until the pointer is up.
let isDown = false;
const waiting = new Map();

function show(name, html) {
  if (isDown) waiting.set(name, html);
  else replace(name, html);
}

function released() {
  isDown = false;
  for (const [name, html] of waiting) replace(name, html);
  waiting.clear();
}

document.addEventListener("pointerdown", () => { isDown = true; });
for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, () => setTimeout(released));

// Browsers allow six connections to a host, so a page that nobody sees must hold none.
let source = null;

function follow() {
  if (source || document.hidden) return;
  source = new EventSource(document.body.dataset.events);
  source.addEventListener("parts", (event) => {
    for (const [name, html] of Object.entries(JSON.parse(event.data))) show(name, html);
  });
  source.onopen = () => { connection.textContent = usual; document.body.classList.add("live"); };
  source.onerror = () => {
    connection.textContent = "no connection to mops ui; the page is not up to date";
    document.body.classList.remove("live");
  };
}

function leave() {
  if (source) source.close();
  source = null;
}

document.addEventListener("visibilitychange", () => (document.hidden ? leave() : follow()));
window.addEventListener("pagehide", leave);
window.addEventListener("pageshow", follow);
follow();
