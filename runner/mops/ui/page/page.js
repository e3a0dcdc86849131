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

// The server answers 304 if nothing has changed. A page that nobody sees asks for nothing.
const SECONDS = 2;
const shown = new Map();
let tag = null;
let timer = null;
let isAsking = false;

async function poll() {
  clearTimeout(timer);
  if (isAsking || document.hidden) return;
  isAsking = true;
  try {
    const headers = tag ? { "If-None-Match": tag } : {};
    const answer = await fetch(document.body.dataset.parts, { headers, cache: "no-store" });
    if (answer.status === 200) {
      for (const [name, html] of Object.entries(await answer.json())) {
        if (shown.get(name) !== html) show(name, html);
        shown.set(name, html);
      }
      tag = answer.headers.get("ETag");
    } else if (answer.status !== 304) {
      throw new Error(answer.statusText);
    }
    connection.textContent = usual;
    document.body.classList.add("live");
  } catch {
    connection.textContent = "no connection to mops ui; the page is not up to date";
    document.body.classList.remove("live");
  }
  isAsking = false;
  timer = setTimeout(poll, 1000 * SECONDS);
}

document.addEventListener("visibilitychange", poll);
window.addEventListener("pageshow", poll);  // also at the first load
