"use strict";
// The rollouts of a group side by side: a column each.

function groupView(group, context) {
  const corner = (text) => el("th", { class: "corner", scope: "row" }, ...breakable(text));
  const columns = group.rollouts;
  const steps = Math.max(...columns.map((r) => r.steps.length), 0);
  const head = [el("th", { class: "corner", text: "" }), ...columns.map((r) => el("th", { scope: "col", class: r.rollout === context.rollout ? "selected" : null },
    el("a", { href: "#", data: { rollout: r.rollout }, text: `Rollout ${r.rollout}`, on: { click: (event) => { event.preventDefault(); context.choose(r.rollout); } } })))];
  const row = (title, cell, className = "") => el("tr", { class: className }, corner(title), ...columns.map(cell));
  const rows = [
    row("Outcome", (r) => el("td", {}, outcomeTag(r.outcome, r.score))),
    row("Base advantage", (r) => el("td", { class: `number ${signClass(r.base)}`, text: signed(r.base) })),
    row("No credit because", (r) => el("td", { class: "small", text: r.abstains ? r.abstains.cause.replaceAll("_", " ") : "", title: r.abstains ? r.abstains.why : "" })),
    ...group.atoms.map((name) => row(name, (r) => atomSummary(name, r.atoms[name]), "atom-row")),
  ];
  for (let t = 0; t < steps; t++) rows.push(row(`Step ${t}`, (r) => stepSummary(r, t, context), "step-row"));
  return el("div", { class: "group-view" },
    el("div", { class: "title" }, el("h2", { text: `Update ${group.update} · group ${group.group}` }), el("span", { class: "muted text", text: [group.type, group.task].filter(Boolean).join(" · ") })),
    unreadable(group.problems),
    el("p", { class: "muted", text: "A column for each rollout. Atoms (one row each): status at the end, ★ in the core, and how it stands in its group. Steps: the action and its final advantage, with the correction in it." }),
    tableOf(head, rows, "side-by-side", true));
}

function atomSummary(name, atom) {
  if (!atom) return el("td", { class: "muted", text: "–" });
  const status = STATUS.find((s) => s.name === atom.status) ?? STATUS[0];
  return el("td", { title: `${name}: ${atom.status}${atom.cause ? `, no credit: ${atom.cause.replaceAll("_", " ")}` : ""}` },
    el("span", { class: status.className, text: status.mark }), " ",
    el("span", { text: atom.core ? "★ " : "" }),
    el("span", { class: signClass(atom.marginal_norm), text: atom.marginal_norm ? signed(atom.marginal_norm) : "" }));
}

function stepSummary(rollout, t, context) {
  const step = rollout.steps[t];
  if (!step) return el("td", { class: "none" });
  const corrected = step.correction !== 0 && step.correction !== null;
  return el("td", {
    class: corrected ? (step.correction > 0 ? "positive-bg" : "negative-bg") : "",
    data: { rollout: rollout.rollout, step: step.step, value: step.advantage ?? "" },
    title: `base ${signed(step.base)}, correction ${signed(step.correction)}, final ${signed(step.advantage)}`,
    on: { click: () => context.choose(rollout.rollout, step.step) },
  },
  el("div", { class: "small clamp text", text: step.taken ? step.action : `(not seen) ${step.action}` }),
  el("span", { class: `number ${signClass(step.advantage)}`, text: signed(step.advantage) }),
  corrected ? el("span", { class: `small ${signClass(step.correction)}`, text: ` ${step.correction > 0 ? "▲" : "▼"}${signed(step.correction)}` }) : null);
}
