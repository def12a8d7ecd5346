"use strict";
// State, address, keys: what ties list and views together.

const NO_FILTERS = { update: "", group: "", type: "", sign: "", cause: "", text: "", failed: false };
const SEARCH_DELAY = 200; // milliseconds after the last key

const source = makeSource();
const $ = (id) => document.getElementById(id);
const list = new RolloutList((at) => go({ at, step: null }));
const state = { filters: { ...NO_FILTERS }, at: null, view: "rollout", step: null, a: LOGGED, b: "grpo", observing: false };
const shown = { record: null, group: null, observed: null, choices: null, values: null, failure: null };
let turn = 0; // answers to older questions are dropped
let found = null; // places that have the text, null without a text
let index = null;

// --- the address ---------------------------------------------------------------------------------

function address() {
  const { filters, at } = state;
  const parts = new URLSearchParams();
  if (at) parts.set("at", `${at.update}/${at.group}/${at.rollout}`);
  if (state.view !== "rollout") parts.set("view", state.view);
  if (state.step !== null) parts.set("step", state.step);
  if (state.observing) parts.set("observed", "1");
  if (state.view === "methods") { parts.set("a", state.a); parts.set("b", state.b); }
  for (const [name, value] of Object.entries(filters)) if (value) parts.set(`f.${name}`, value === true ? "1" : value);
  return `#${parts}`;
}

function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const at = (parts.get("at") ?? "").match(/^(\d+)\/(\d+)\/(\d+)$/);
  state.at = at ? { update: Number(at[1]), group: Number(at[2]), rollout: Number(at[3]) } : null;
  state.view = ["group", "methods"].includes(parts.get("view")) ? parts.get("view") : "rollout";
  state.step = /^\d+$/.test(parts.get("step") ?? "") ? Number(parts.get("step")) : null;
  state.observing = parts.get("observed") === "1";
  state.a = parts.get("a") ?? state.a;
  state.b = parts.get("b") ?? state.b;
  for (const name of Object.keys(NO_FILTERS)) {
    const value = parts.get(`f.${name}`);
    state.filters[name] = name === "failed" ? value === "1" : value ?? "";
  }
}

function remember(push) {
  if (address() === location.hash) return;
  history[push ? "pushState" : "replaceState"](null, "", address());
}

// --- filters -------------------------------------------------------------------------------------

function fillSelect(select, options, value) {
  select.replaceChildren(...options.map((o) => o.group
    ? el("optgroup", { label: o.group }, ...o.options.map((p) => el("option", p)))
    : el("option", o)));
  select.value = value;
}

function fillFilters() {
  const { filters } = state;
  const { rows, texts, labels } = index;
  fillSelect($("update"), [{ value: "all", text: "all" }, ...index.updates.toReversed().map((u) => ({ value: u, text: u }))], filters.update);
  const groups = new Map();
  if (filters.update !== "all") rows.update.forEach((u, i) => { if (u === Number(filters.update)) groups.set(rows.group[i], list.text(rows.type[i])); });
  fillSelect($("group"), [{ value: "", text: filters.update === "all" ? "choose an update first" : "all" }, ...[...groups].map(([g, type]) => ({ value: g, text: `${g}: ${type}` }))], filters.group);
  $("group").disabled = filters.update === "all";
  const types = [...new Set(rows.type)].map((code) => texts[code]).filter(Boolean).sort();
  fillSelect($("type"), [{ value: "", text: "all" }, ...types.map((t) => ({ value: t, text: t }))], filters.type);
  const causes = (of, codes) => [...new Set(codes)].map((code) => list.text(code)).filter(Boolean).sort()
    .map((c) => ({ value: `${of}:${c}`, text: c.replaceAll("_", " "), title: labels[of][c] ?? "" }));
  fillSelect($("cause"), [{ value: "", text: "any or no cause" }, { value: "lost:", text: "the rollout was lost" },
    { group: "the whole rollout got nothing", options: causes("rollout", rows.cause) },
    { group: "an atom got nothing", options: causes("atom", rows.atom_causes.flat()) }], filters.cause);
  $("sign").value = filters.sign;
  $("text").value = filters.text;
  $("failed").checked = filters.failed;
}

function applyFilters() {
  list.filter(state.filters, found);
  const all = list.length === 1 ? "1 rollout" : `${list.length.toLocaleString("en")} rollouts`;
  $("count").textContent = `${list.shown.length.toLocaleString("en")} of ${all}`;
  list.select(state.at);
}

async function search() {
  const { text, update } = state.filters;
  if (!text) found = null;
  else {
    try {
      const answer = await source.search(text, update === "all" ? null : Number(update));
      if (text !== state.filters.text || update !== state.filters.update) return;
      found = new Set(answer.found.map((at) => at.join("/")));
    } catch (error) {
      if (!(error instanceof NotAvailable)) throw error;
      fail(error.message);
    }
  }
  applyFilters();
}

function setFilter(name, value) {
  const { filters } = state;
  filters[name] = value;
  if (name === "update") { filters.group = ""; fillFilters(); }
  remember(false);
  if (filters.text && (name === "update" || name === "text")) search();
  else { if (name === "text") found = null; applyFilters(); }
}

// --- views ---------------------------------------------------------------------------------------

function fail(message) { $("content").replaceChildren(notice(message, "panel unreadable")); }

/** Change the state and show what it says. */
function go(changes, push = true) {
  const moved = changes.at !== undefined;
  Object.assign(state, changes);
  remember(push);
  if (moved) list.select(state.at);
  show();
}

async function show() {
  const mine = ++turn;
  for (const tab of document.querySelectorAll("#tabs [role=tab]")) tab.setAttribute("aria-selected", String(tab.dataset.view === state.view));
  if (!state.at) { $("content").replaceChildren(notice(index.updates.length ? "No rollout is chosen." : "This directory has no logged update yet. Training writes one after each update; press r to look again.")); return; }
  if (list.find(state.at) < 0) { fail(`There is no rollout ${state.at.group}/${state.at.rollout} in update ${state.at.update} of this run.`); return; }
  try {
    if (state.view === "group") await showGroup(mine);
    else if (state.view === "methods") await showMethods(mine);
    else await showRollout(mine);
  } catch (error) {
    if (!(error instanceof NotAvailable)) throw error;
    if (mine === turn) fail(error.message);
  }
}

async function rollout() {
  const { update, group, rollout: n } = state.at;
  const { record } = shown;
  if (record && record.update === update && record.group === group && record.rollout === n) return record;
  Object.assign(shown, { observed: null, values: null });
  return source.rollout(state.at);
}

function place(view) {
  const another = $("content").firstElementChild?.className !== view.className;
  $("content").replaceChildren(view);
  if (another) $("main").scrollTo(0, 0);
  $("content").dataset.at = address();
}

async function showRollout(mine) {
  const record = await rollout();
  if (mine !== turn) return;
  const before = shown.record;
  shown.record = record;
  const context = rolloutContext();
  const old = $("content").firstElementChild;
  if (record === before && old?.classList.contains("rollout") && old.observed === shown.observed && old.observing === state.observing) markStep(old, record, context);
  else {
    const view = rolloutView(record, context);
    Object.assign(view, { observed: shown.observed, observing: state.observing });
    markStep(view, record, context);
    place(view);
    if (record !== before) $("main").scrollTop = 0;
  }
  $("content").dataset.at = address();
  for (const name of ["tr.detail", "tr.step.selected"]) document.querySelector(name)?.scrollIntoView({ block: "nearest" });
  if (state.observing && shown.observed === null) {
    const observed = await source.observed(state.at);
    if (mine !== turn) return;
    shown.observed = observed;
    showRollout(mine);
  }
}

function rolloutContext() {
  return {
    step: state.step, observing: state.observing, observed: state.observing ? shown.observed : null,
    choose: (step) => go({ step }, false),
    observe: (on) => go({ observing: on }, false),
  };
}

async function showGroup(mine) {
  const group = await source.group(state.at);
  if (mine !== turn) return;
  place(groupView(group, {
    rollout: state.at.rollout,
    choose: (n, step = null) => go({ at: { ...state.at, rollout: n }, view: "rollout", step }),
  }));
}

async function showMethods(mine) {
  const record = await rollout();
  if (mine !== turn) return;
  shown.record = record;
  const draw = (values, failure = null) => {
    if (mine === turn) place(methodsView(record, { a: state.a, b: state.b, choices: shown.choices, values, failure, choose: (side, name) => go({ [side]: name }, false) }));
  };
  draw(null);
  try {
    shown.choices ??= await source.methods(state.at);
    if (mine !== turn) return;
    if (source.offline && ![LOGGED, ...shown.choices.map((c) => c.name)].includes(state.b)) state.b = shown.choices[0]?.name ?? LOGGED;
    draw(null);
    const names = [...new Set([state.a, state.b])].filter((name) => name !== LOGGED);
    const computed = names.length && record.steps.length ? await source.advantages(state.at, names) : {};
    draw({ [LOGGED]: record.steps.map((step) => step.advantage), ...computed });
  } catch (error) {
    if (!(error instanceof NotAvailable)) throw error;
    draw(null, error.message);
  }
}

// --- start ---------------------------------------------------------------------------------------

function showProblems() {
  const { problems } = index;
  $("problems-button").hidden = !problems.length;
  $("problems-button").textContent = problems.length === 1 ? "1 file not readable" : `${problems.length} files not readable`;
  $("problems").replaceChildren(el("p", { text: "These files of the run are missing or not readable; everything else is shown." }),
    el("ul", {}, ...problems.map((p) => el("li", {}, el("code", { text: p.file }), el("span", { text: ` ${p.why}` })))));
  if (!problems.length) $("problems").hidden = true;
}

/** The update to begin with: the newest one with a failed rollout that has a raised step, or else the newest. */
function openingUpdate() {
  const { update, raised } = index.rows;
  const newest = update.findLastIndex((_, i) => list.outcome[i] === "failed" && raised[i]);
  return newest < 0 ? index.updates.at(-1) : update[newest];
}

/** Where to begin: a failed rollout with a raised step, or else any corrected one, or else the first. */
function beginning() {
  const { raised, lowered } = index.rows;
  const first = list.shown.find((i) => list.outcome[i] === "failed" && raised[i])
    ?? list.shown.find((i) => raised[i] || lowered[i]) ?? list.shown[0];
  return first === undefined ? null : list.place(first);
}

async function load() {
  try {
    index = await source.index();
  } catch (error) {
    if (!(error instanceof NotAvailable)) throw error;
    fail(error.message);
    return;
  }
  Object.assign(shown, { record: null, values: null, choices: null });
  $("run").textContent = visible([index.workdir, index.method && `method ${index.method}`].filter(Boolean).join(" · ")) + (source.offline ? ` · ${index.note}` : "");
  list.setIndex(index);
  showProblems();
  await open();
}

/** Show what the address says. */
async function open() {
  readAddress();
  const updates = index.updates.map(String);
  if (!["all", ...updates].includes(state.filters.update)) state.filters.update = String(state.at?.update ?? openingUpdate() ?? "all");
  fillFilters();
  await search();
  if (!state.at) state.at = beginning();
  remember(false);
  list.select(state.at);
  await show();
  document.body.dataset.ready = "1";
}

function connect() {
  for (const name of ["update", "group", "type", "sign", "cause"]) $(name).addEventListener("change", (event) => setFilter(name, event.target.value));
  $("failed").addEventListener("change", (event) => setFilter("failed", event.target.checked));
  let timer;
  $("text").addEventListener("input", (event) => {
    clearTimeout(timer);
    timer = setTimeout(() => setFilter("text", event.target.value), SEARCH_DELAY);
  });
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  $("clear").addEventListener("click", clearFilters);
  $("reload").addEventListener("click", load);
  $("reload").hidden = source.offline;
  $("help-button").addEventListener("click", toggleHelp);
  $("problems-button").addEventListener("click", () => { $("problems").hidden = !$("problems").hidden; });
  for (const tab of document.querySelectorAll("#tabs [role=tab]")) tab.addEventListener("click", () => go({ view: tab.dataset.view }));
  window.addEventListener("popstate", () => { if (index) open(); });
  document.addEventListener("keydown", onKey);
}

function clearFilters() {
  state.filters = { ...NO_FILTERS, update: state.filters.update };
  found = null;
  fillFilters();
  remember(false);
  applyFilters();
}

connect();
load();
