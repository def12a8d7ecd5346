"use strict";
// Keys, and the help that lists them and says what the words mean.

const KEYS = [
  ["j", "k", "next / previous rollout of the list", () => list.move(1), () => list.move(-1)],
  ["]", "[", "next / previous task group", () => moveGroup(1), () => moveGroup(-1)],
  ["}", "{", "next / previous update", () => moveUpdate(1), () => moveUpdate(-1)],
  ["n", "p", "next / previous step", () => moveStep(1), () => moveStep(-1)],
  ["c", null, "next corrected step", () => nextCorrected()],
  ["1", null, "the rollout", () => go({ view: "rollout" })],
  ["2", null, "its group side by side", () => go({ view: "group" })],
  ["3", null, "two methods side by side", () => go({ view: "methods" })],
  ["o", null, "evidence touched without credit, on or off", () => go({ observing: !state.observing, view: "rollout" }, false)],
  ["f", null, "failed rollouts only, on or off", () => { $("failed").checked = !state.filters.failed; setFilter("failed", !state.filters.failed); }],
  ["/", null, "search for a text", () => { $("text").focus(); $("text").select(); }],
  ["x", null, "clear the filters", () => clearFilters()],
  ["r", null, "look for new updates", () => { if (!source.offline) load(); }],
  ["?", null, "this help", () => toggleHelp()],
];
const WORDS = [
  ["base advantage", "How much better the rollout scored than the others of its task group. All of its steps share it."],
  ["correction", "What a step gets on top, because the verifier's evidence shows what it did. Most steps get none."],
  ["final advantage", "Base and correction together: what training used for the step."],
  ["atom", "One fact that the task's own verifier checks, such as “the egg is hot”."],
  ["evidence", "A value that an atom reads. A step can write it, be the first to show it, commit it, or break it for good."],
  ["core", "The atoms that decided the score of this rollout."],
  ["marginal", "What an atom is worth: how much of the score goes without it. Positive if the rollout has it, negative if it lacks it."],
  ["in its group", "The marginal beside those of the other rollouts of the group: 0 is ordinary."],
  ["weight, share", "An atom's worth is shared by the steps that touched its evidence, by weight."],
  ["withheld", "No correction is made up: where the evidence does not settle it, a rollout or an atom gets nothing, and the viewer says why."],
];

function onKey(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || !index) return;
  if ($("help").open) return; // Escape closes a dialog by itself
  const typing = event.target.matches("input[type=search], select");
  if (event.key === "Escape" && typing) event.target.blur();
  if (typing) return;
  const inList = event.target.id === "list" && { ArrowDown: "j", ArrowUp: "k" }[event.key];
  const key = inList || event.key;
  for (const [forth, back, , onForth, onBack] of KEYS) {
    const action = key === forth ? onForth : key === back ? onBack : null;
    if (action) {
      event.preventDefault();
      action();
      return;
    }
  }
}

function moveGroup(by) {
  const now = list.shown.indexOf(list.selected);
  const { update, group } = index.rows;
  const other = (i) => update[i] !== update[list.selected] || group[i] !== group[list.selected];
  let k = Math.max(now, 0);
  while (k >= 0 && k < list.shown.length && !other(list.shown[k])) k += by;
  if (k < 0 || k >= list.shown.length) return;
  const target = list.shown[k];
  const first = list.shown.find((i) => update[i] === update[target] && group[i] === group[target]);
  list.pick(first);
}

function moveUpdate(by) {
  const now = index.updates.indexOf(state.filters.update === "all" ? state.at?.update : Number(state.filters.update));
  const next = index.updates[now + by];
  if (next === undefined) return;
  if (state.filters.update !== "all") setFilter("update", String(next));
  fillFilters();
  const first = list.shown.find((i) => index.rows.update[i] === next);
  if (first !== undefined) list.pick(first);
}

function moveStep(by) {
  const steps = shown.record?.steps.length ?? 0;
  if (!steps) return;
  const next = state.step === null ? (by > 0 ? 0 : steps - 1) : Math.min(steps - 1, Math.max(0, state.step + by));
  go({ step: next, view: "rollout" }, false);
}

function nextCorrected() {
  const corrected = (shown.record?.steps ?? []).filter((s) => s.correction).map((s) => s.step);
  if (!corrected.length) return;
  go({ step: corrected.find((t) => state.step === null || t > state.step) ?? corrected[0], view: "rollout" }, false);
}

function toggleHelp() {
  const help = $("help");
  if (help.open) { help.close(); return; }
  const kbd = (key) => el("kbd", { text: key });
  help.replaceChildren(
    el("form", { method: "dialog" }, el("button", { text: "Close" })),
    el("h2", { text: "Keys" }),
    el("table", {}, ...KEYS.map(([forth, back, words]) => el("tr", {}, el("td", {}, kbd(forth), ...(back ? [" ", kbd(back)] : [])), el("td", { text: words })))),
    el("h2", { text: "Words" }),
    el("dl", {}, ...WORDS.flatMap(([word, meaning]) => [el("dt", { text: word }), el("dd", { text: meaning })])));
  help.showModal();
}
