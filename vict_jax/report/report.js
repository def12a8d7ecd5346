// Search in tables of settings, and links to sections that open what is folded. Without it everything shows.
"use strict";

for (const box of document.querySelectorAll("[data-search]")) {
  const rows = document.querySelectorAll(`#${box.dataset.search} tbody tr`);
  const words = box.querySelector("input[type=search]");
  const only = box.querySelector("input[type=checkbox]");
  const count = box.querySelector("output");
  const filter = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const fits = wanted.every((word) => text.includes(word)) && (!only.checked || row.dataset.changed === "yes");
      row.hidden = !fits;
      shown += fits;
    }
    count.textContent = `${shown} of ${rows.length}`;
  };
  words.addEventListener("input", filter);
  only.addEventListener("change", filter);
  box.hidden = false;
  filter();
}

const open = () => {
  for (let node = document.getElementById(location.hash.slice(1)); node; node = node.parentElement) {
    if (node instanceof HTMLDetailsElement) node.open = true;
  }
};
window.addEventListener("hashchange", open);
open();
