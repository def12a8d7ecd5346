"use strict";
// Building blocks of the page. Everything that comes from a log goes through textContent, never into markup.

const FOLD_AT = 400; // longer texts are folded

/** An element with attributes, `class`, `text`, `on` handlers and children. */
function el(name, options = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "text") node.textContent = visible(value);
    else if (key === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    else if (key === "data") Object.assign(node.dataset, value);
    else if (key === "title") node.title = visible(value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** A text with control, formatting and lone surrogate characters written out (line breaks and tabs stay). */
function visible(text) {
  return String(text).replace(/(?![\n\t])[\p{C}\u2028\u2029]/gu, (c) => {
    const code = c.codePointAt(0);
    return code < 256 ? "\\x" + code.toString(16).padStart(2, "0") : "\\u{" + code.toString(16) + "}";
  });
}

/** A text in full if it is short, else its beginning with a button that shows the rest. */
function foldable(text, className) {
  const shown = text === null || text === undefined ? "" : String(text);
  if (shown.length <= FOLD_AT) return el("span", { class: `text ${className}`, text: shown });
  const body = el("span", { class: "text", text: shown.slice(0, FOLD_AT) + "…" });
  const button = el("button", {
    type: "button", class: "fold", "aria-expanded": "false", text: `show all ${shown.length.toLocaleString("en")} characters`,
  });
  button.addEventListener("click", (event) => {
    event.stopPropagation();
    const open = button.getAttribute("aria-expanded") !== "true";
    button.setAttribute("aria-expanded", String(open));
    body.classList.toggle("unfolded", open);
    body.textContent = visible(open ? shown : shown.slice(0, FOLD_AT) + "…");
    button.textContent = open ? "show less" : `show all ${shown.length.toLocaleString("en")} characters`;
  });
  return el("span", { class: `foldable ${className}` }, body, " ", button);
}

/** With its sign and three digits, as `vict_jax.audit --explain` prints it; a dash for what is not known. */
function signed(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  return (value > 0 ? "+" : "−") + Math.abs(value).toFixed(3);
}

function signClass(value) {
  return value > 0 ? "positive" : value < 0 ? "negative" : "muted";
}

/** A table cell with a number and a bar from the middle: to the right for more than 0, to the left for less. */
function barCell(value, most, name) {
  const cell = el("td", {
    class: `number bar-cell ${signClass(value)}`, data: { value: value ?? "", of: name },
    title: value === null || value === undefined ? "not in the log" : `${name} ${value}`,
  });
  if (value) {
    const bar = el("span", { class: value > 0 ? "bar right" : "bar left" });
    bar.style.width = `${(50 * Math.min(1, Math.abs(value) / (most || 1))).toFixed(1)}%`;
    cell.append(bar);
  }
  cell.append(el("span", { class: "value", text: signed(value) }));
  return cell;
}

const STATUS = [
  { name: "unknown", mark: "?", className: "muted" },
  { name: "satisfied", mark: "✓", className: "positive" },
  { name: "unsatisfied", mark: "○", className: "muted" },
  { name: "violated", mark: "✗", className: "negative" },
];
const RELATION_MARK = { write: "W", reveal: "R", commit: "C", violate: "V" };
const RELATION_WORDS = {
  write: "wrote its evidence", reveal: "was the first to show its evidence",
  commit: "committed it", violate: "broke it for good",
};

const OUTCOME = {
  success: { mark: "✓", word: "succeeded", className: "good" },
  failed: { mark: "✗", word: "failed", className: "problem" },
  lost: { mark: "⌀", word: "lost", className: "warning" },
  unknown: { mark: "?", word: "outcome not readable", className: "warning" },
};
const LOST_ENDS = ["env_error", "env_timeout"];

/** `success`, `failed`, `lost` or `unknown`, as `vict_jax.viewer.record.outcome`. */
function outcomeOf(end, score) {
  if (end) return LOST_ENDS.includes(end) ? "lost" : end === "success" ? "success" : "failed";
  return score === null ? "unknown" : score >= 1 ? "success" : "failed";
}

function outcomeTag(outcome, score) {
  const { mark, word, className } = OUTCOME[outcome];
  const points = score === null || score === undefined ? "" : `, score ${Number(score.toPrecision(4))}`;
  return el("span", { class: `tag ${className}`, text: `${mark} ${word}${points}` });
}

/** A table; one that is `free` scrolls with the page, so that its titles stay in sight. */
function tableOf(titles, rows, className = "", free = false) {
  const head = el("tr", {}, ...titles.map((t) => (t instanceof Node ? t : el("th", { text: t, scope: "col" }))));
  return el("div", { class: free ? "free" : "scroll" },
    el("table", { class: className }, el("thead", {}, head), el("tbody", {}, ...rows)));
}

/** A name that may break after its underscores, dots, colons and slashes, but not before a short ending. */
function breakable(name) {
  return visible(name).split(/(?<=[_.:/-])(?=.{3})/).flatMap((part, i) => (i ? [el("wbr"), part] : [part]));
}

function notice(text, className = "panel") {
  return el("p", { class: className, text });
}

/** The files that could not be read for what is shown. */
function unreadable(problems) {
  if (!problems.length) return null;
  return el("div", { class: "panel unreadable", role: "alert" },
    el("strong", { text: "Not everything of this update is readable; the rest is shown." }),
    el("ul", {}, ...problems.map((p) => el("li", {}, el("code", { text: p.file }), " ", el("span", { text: p.why })))));
}
