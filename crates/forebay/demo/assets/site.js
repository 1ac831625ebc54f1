// Remembers the colours and shows how long the page took. The site works without it.
"use strict";

const root = document.documentElement;
const button = document.getElementById("theme");

function stored() {
  try {
    return localStorage.getItem("theme");
  } catch {
    return null; // Storage may be forbidden.
  }
}

function show(theme) {
  root.dataset.theme = theme;
  button.textContent = theme === "dark" ? "Light" : "Dark";
}

const preferred = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
show(stored() ?? preferred);
button.hidden = false;
button.addEventListener("click", () => {
  const theme = root.dataset.theme === "dark" ? "light" : "dark";
  show(theme);
  try {
    localStorage.setItem("theme", theme);
  } catch {
    // Then it lasts for this page.
  }
});

addEventListener("load", () => {
  const [entry] = performance.getEntriesByType("navigation");
  if (entry) {
    const wait = (entry.responseStart - entry.requestStart).toFixed(1);
    document.getElementById("timing").textContent = `The server answered within ${wait} ms.`;
    root.dataset.ready = "yes";
  }
});
