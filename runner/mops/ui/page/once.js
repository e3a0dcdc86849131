// A form is sent once: a second click would make a second job.
"use strict";

const form = document.querySelector("form");
form.addEventListener("submit", () => { form.querySelector("button").disabled = true; });
