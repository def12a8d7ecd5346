"use strict";
// One rollout, step by step.

const SIDE_WORDS = {
  1: "better than its group, so the question is what won it",
  0: "as good as its group, so there is nothing to explain",
  "-1": "worse than its group, so the question is what it got right and what it lacked",
};

const END_WORDS = { context: "a full context: there was no room for another step", step_cap: "the step cap", env_error: "an error of the environment", env_timeout: "a time-out of the environment" };

/** The whole view. `context` has `step` (selected or null), `observed` (edges or null), `choose(step)`. */
function rolloutView(record, context) {
  const most = Math.max(...record.steps.flatMap((s) => [s.base, s.correction, s.advantage]).map((v) => Math.abs(v ?? 0)), 0);
  return el("div", { class: "rollout" },
    rolloutTitle(record), unreadable(record.problems), rolloutFacts(record), sentenceList(record, context),
    stepTable(record, context, most), legend(), atomTable(record), edgeTable(record));
}

function rolloutTitle(record) {
  const { update, group, rollout, task, type } = record;
  return el("div", { class: "title" },
    el("h2", { text: `Update ${update} · group ${group} · rollout ${rollout}` }),
    outcomeTag(record.outcome, record.score),
    el("span", { class: "muted text", text: [type, task].filter(Boolean).join(" · ") }));
}

function rolloutFacts(record) {
  const facts = el("dl", { class: "facts" });
  const add = (name, ...nodes) => facts.append(el("dt", { text: name }), el("dd", {}, ...nodes));
  if (record.end) add("Ended by", el("span", { text: `${END_WORDS[record.end] ?? record.end}, after ${record.steps.length} steps` }));
  if (record.base !== null && record.base !== undefined) {
    const side = record.side === null ? "" : `: ${SIDE_WORDS[record.side]}`;
    add("Base advantage", el("span", { class: signClass(record.base), text: signed(record.base), data: { of: "base" } }), el("span", { text: side }));
  }
  if (record.proved) {
    add("Core", ...(record.core.length
      ? record.core.map((name) => el("span", { class: "tag atom", text: name }))
      : [el("span", { class: "muted", text: "none accepted" })]));
  } else if (record.atoms.length) {
    add("Core", el("span", { class: "muted", text: `the method ${record.method ?? "of this run"} gives no proofs, so there is no core` }));
  }
  if (record.abstains) {
    add("No credit because", el("strong", { text: record.abstains.cause.replaceAll("_", " ") }),
      el("span", { text: `: ${record.abstains.why} ` }), el("span", { class: "next", text: `Next: ${record.abstains.next}` }));
  }
  return facts;
}

function sentenceList(record, context) {
  if (!record.sentences.length) return null;
  const correction = new Map(record.steps.map((step) => [step.step, step.correction]));
  return el("section", {}, el("h3", { text: "Why these steps were corrected" }),
    el("ul", { class: "sentences" }, ...record.sentences.map(({ step, text }) => el("li", { class: correction.get(step) > 0 ? "up" : "down" },
      el("a", { href: `#step-${step}`, data: { step }, text, on: { click: (event) => { event.preventDefault(); context.choose(step); } } })))));
}

function edgesByStep(record, observed) {
  const of = new Map();
  const push = (step, edge) => of.set(step, [...(of.get(step) ?? []), edge]);
  const credited = new Set(record.edges.map((e) => `${e.step} ${e.relation} ${e.atom_id}`));
  for (const edge of record.edges) push(edge.step, edge);
  for (const [step, j, relation] of observed ?? []) {
    const atom = record.atoms[j];
    if (atom && !credited.has(`${step} ${relation} ${atom.atom_id}`)) push(step, { step, atom_id: atom.atom_id, relation, uncredited: true });
  }
  return of;
}

function atomHead(atom) {
  const about = [atom.core === null ? null : atom.core ? "in the core" : "not in the core", atom.unusable ? `switched off: ${atom.unusable}` : null];
  return el("th", { class: "atom-head", scope: "col", title: [`atom ${atom.atom_id}`, ...about].filter(Boolean).join(", ") },
    el("span", {}, ...breakable(atom.atom_id)), el("br"),
    el("span", { class: "muted small", text: atom.unusable ? "off" : atom.core ? "★ core" : "" }));
}

function statusCell(record, t, j, edges) {
  const cell = el("td", { class: "atom-cell" });
  const now = record.status === null ? null : STATUS[record.status[t][j]];
  const before = record.status === null || t === 0 ? null : record.status[t - 1][j];
  if (now) {
    const changed = before !== null && before !== record.status[t][j];
    cell.dataset.status = now.name;
    cell.title = visible(`${record.atoms[j].atom_id}: ${now.name}${changed ? `, was ${STATUS[before].name}` : ""}`);
    cell.append(el("span", { class: `status ${now.className}${changed ? " changed" : ""}`, text: now.mark }));
  }
  for (const edge of edges.filter((e) => e.atom_id === record.atoms[j].atom_id)) {
    cell.append(el("span", {
      class: `edge ${edge.uncredited ? "uncredited muted" : signClass(edge.contribution)}`,
      text: RELATION_MARK[edge.relation] + (edge.uncredited ? "" : signed(edge.contribution)),
      title: `this step ${RELATION_WORDS[edge.relation]}${edge.uncredited ? ", but got no credit for it" : `: share ${edge.contribution} before scaling`}`,
    }));
  }
  return cell;
}

function stepTable(record, context, most) {
  const edges = edgesByStep(record, context.observed);
  const rows = [];
  if (record.status !== null && record.steps.length && record.atoms.length) {
    rows.push(el("tr", { class: "start" }, el("td", { text: "" }), el("td", { class: "muted", text: "before the first step", colspan: 4 }),
      ...record.atoms.map((_, j) => statusCell(record, 0, j, []))));
  }
  for (const step of record.steps) {
    rows.push(stepRow(record, step, edges.get(step.step) ?? [], context, most));
  }
  const section = el("section", {}, el("div", { class: "section-title" }, el("h3", { text: "The conversation" }), observedSwitch(context)));
  if (!record.steps.length) section.append(notice(emptyText(record)));
  else {
    section.append(tableOf(["#", "The agent saw, and did", numberHead("Base"), numberHead("Correction"), numberHead("Final"), ...record.atoms.map(atomHead)], rows, "steps", true));
    if (record.status === null && record.atoms.length) section.append(notice("The statuses of the atoms over time are in the file of arrays, which is not readable.", "muted"));
  }
  return section;
}

function emptyText(record) {
  return record.problems.length ? "The steps of this rollout are not readable." : "No action was taken in this rollout.";
}

function numberHead(text) { return el("th", { class: "number", scope: "col", text }); }

function observedSwitch(context) {
  const input = el("input", { type: "checkbox", id: "observed", on: { change: () => context.observe(input.checked) } });
  input.checked = context.observing;
  return el("label", { class: "check" }, input, " also evidence that was touched without credit",
    context.observing && context.observed === null ? el("span", { class: "muted", text: " (looking for it …)" }) : null);
}

function stepRow(record, step, edges, context, most) {
  const flags = [];
  if (!step.taken) flags.push(el("span", { class: "tag warning", text: "not seen by the environment" }));
  else if (!step.valid) flags.push(el("span", { class: "tag warning", text: "not accepted" }));
  return el("tr", {
    class: `step${step.correction ? " corrected" : ""}`, id: `step-${step.step}`, data: { step: step.step },
    on: { click: () => { if (!String(window.getSelection())) context.choose(step.step === context.step ? null : step.step); } },
  },
  el("td", { class: "number muted", text: step.step }),
  el("td", { class: "talk" }, foldable(step.observation, "observation"), el("div", { class: "did" }, el("span", { class: "arrow", text: "▸ " }), foldable(step.action, "action"), ...flags)),
  barCell(step.base, most, "base"), barCell(step.correction, most, "correction"), barCell(step.advantage, most, "final"),
  ...record.atoms.map((_, j) => statusCell(record, step.step + 1, j, edges)));
}

/** Mark the selected step in a view that is already there, with its detail under it; the rest stays as it is. */
function markStep(view, record, context) {
  for (const old of view.querySelectorAll("tr.detail")) old.remove();
  for (const row of view.querySelectorAll("tr.step")) row.classList.toggle("selected", Number(row.dataset.step) === context.step);
  const row = view.querySelector("tr.step.selected");
  if (!row) return;
  const step = record.steps.find((s) => s.step === context.step);
  const edges = edgesByStep(record, context.observed).get(step.step) ?? [];
  row.after(el("tr", { class: "detail" }, el("td", {}), el("td", { colspan: 4 + record.atoms.length }, stepDetail(record, step, edges))));
}

function stepDetail(record, step, edges) {
  const sentence = record.sentences.find((s) => s.step === step.step);
  const next = record.steps.find((s) => s.step === step.step + 1);
  return el("div", { class: "step-detail" },
    el("p", { class: "why", text: sentence ? sentence.text : whyNot(record, edges) }),
    el("p", { class: "mono", text: `base ${signed(step.base)}  correction ${signed(step.correction)}  final ${signed(step.advantage)}` }),
    el("div", { class: "answer" }, el("strong", { text: "Answer: " }), next ? foldable(next.observation, "observation")
      : el("span", { class: "muted", text: "the answer to the last action is not in the log" })),
    edges.some((e) => !e.uncredited) ? tableOf(EDGE_TITLES.slice(2), edges.filter((e) => !e.uncredited).map((e) => el("tr", {}, ...edgeCells(e).slice(2)))) : null);
}

function whyNot(record, edges) {
  if (record.method === null && !record.proved) return "Nothing was corrected here.";
  if (!record.proved) return `The method ${record.method} corrects nothing with proofs.`;
  const touched = edges.filter((e) => e.uncredited);
  if (touched.length) {
    const reasons = touched.map((e) => {
      const why = record.atoms.find((a) => a.atom_id === e.atom_id).why;
      return `${e.atom_id}: the step ${RELATION_WORDS[e.relation]}. ${why ? why.why : "What it is worth here is ordinary for its group."}`;
    });
    return `No correction. ${reasons.join(" ")}`;
  }
  if (record.abstains) return `No correction: the whole rollout got none. ${record.abstains.why}`;
  return "No correction: this step touched no evidence of an atom that was credited.";
}

function legend() {
  return el("p", { class: "legend muted" },
    ...STATUS.map((s) => el("span", {}, el("span", { class: `status ${s.className}`, text: s.mark }), ` ${s.name}`)),
    el("span", {}, el("span", { class: "status changed", text: "✓" }), " changed by this step"),
    ...Object.entries(RELATION_MARK).map(([name, mark]) => el("span", {}, el("span", { class: "edge", text: mark }), ` ${RELATION_WORDS[name]}`)),
    el("span", { text: "the number beside a letter is the share in the step's correction before scaling" }));
}

function atomTable(record) {
  if (!record.atoms.length) return null;
  const rows = record.atoms.map((a) => el("tr", {},
    el("td", {}, el("code", { text: a.atom_id }), a.atom_family !== a.atom_id ? el("span", { class: "muted", text: ` family ${a.atom_family}` }) : null),
    el("td", {}, el("span", { class: (STATUS.find((s) => s.name === a.status) ?? STATUS[0]).className, text: `${(STATUS.find((s) => s.name === a.status) ?? STATUS[0]).mark} ${a.status}` })),
    el("td", { text: a.core === null ? "–" : a.core ? "★ yes" : "no" }),
    el("td", { class: `number ${signClass(a.marginal)}`, text: signed(a.marginal) }),
    el("td", { class: `number ${signClass(a.marginal_norm)}`, text: signed(a.marginal_norm) }),
    el("td", { class: "why-cell" }, a.why ? el("span", {}, el("strong", { text: a.why.cause.replaceAll("_", " ") }), el("span", { text: `: ${a.why.why} ` }), el("span", { class: "next", text: `Next: ${a.why.next}` })) : null)));
  return el("section", {}, el("h3", { text: "The atoms: facts that the score is made of" }),
    tableOf(["Atom", "At the end", "In the core", numberHead("Marginal"), numberHead("In its group"), "Why it got no credit"], rows, "atoms"));
}

const EDGE_TITLES = ["Step", "Action", "Relation", "Atom", "Evidence", "Before", "After", "Marginal", "In its group", "Weight", "Share"];

function edgeCells(e) {
  return [
    el("td", { class: "number", text: e.step }), el("td", {}, foldable(e.action, "action")), el("td", { text: e.relation }),
    el("td", {}, el("code", { text: e.atom_id })), el("td", {}, foldable(e.variable, "mono")), el("td", {}, foldable(e.before, "")), el("td", {}, foldable(e.after, "")),
    ...["marginal", "marginal_norm", "weight", "contribution"].map((name) => el("td", { class: `number ${name === "weight" ? "" : signClass(e[name])}`, data: { of: name, value: e[name] }, text: name === "weight" && e[name] !== null ? e[name].toFixed(3) : signed(e[name]) })),
  ];
}

function edgeTable(record) {
  if (!record.edges.length) return null;
  const core = record.edges[0].core_id;
  return el("section", {}, el("h3", { text: "The proof: from steps to atoms" }),
    el("p", { class: "muted", text: `Core ${core}, task ${record.edges[0].conformance}. A step's correction is λ · (sum of its shares, clipped).` }),
    tableOf(EDGE_TITLES, record.edges.map((e) => el("tr", { class: "edge-row" }, ...edgeCells(e))), "edges"));
}
