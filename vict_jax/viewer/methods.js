"use strict";
// Two credit methods on the same rollout.

const LOGGED = "as logged";

/** `context` has `a`, `b`, `choices`, `values` ({name: advantages}, absent while computed), `failure`, `choose(side, name)`. */
function methodsView(record, context) {
  const view = el("div", { class: "methods-view" }, rolloutTitle(record), unreadable(record.problems),
    el("p", { class: "muted", text: "The final advantage of each step by two methods, on the same rollouts and with this run's options. “As logged” is what the run trained on." }),
    el("div", { class: "pickers" }, methodPicker("First method", "a", record, context), methodPicker("Second method", "b", record, context)));
  if (context.failure) view.append(notice(context.failure, "panel unreadable"));
  else if (!record.steps.length) view.append(notice(emptyText(record)));
  else if (!context.values) view.append(notice("Computing … the first time a method is compiled, which takes some seconds.", "panel computing"));
  else view.append(methodTable(record, context));
  return view;
}

function methodPicker(title, side, record, context) {
  const select = el("select", { id: `method-${side}`, on: { change: () => context.choose(side, select.value) } });
  const logged = record.method ? `${LOGGED} (${record.method})` : LOGGED;
  select.append(el("option", { value: LOGGED, text: logged }));
  for (const { name, why_not: why } of context.choices ?? []) {
    select.append(el("option", { value: name, text: why ? `${name} (not possible here)` : name, title: why, disabled: why !== "" }));
  }
  if (context[side] !== LOGGED && !(context.choices ?? []).some((c) => c.name === context[side])) select.append(el("option", { value: context[side], text: context[side] }));
  select.value = context[side];
  return el("label", {}, `${title} `, select);
}

function methodTable(record, context) {
  const a = context.values[context.a];
  const b = context.values[context.b];
  const most = Math.max(...a, ...b, ...a.map((v) => -v), ...b.map((v) => -v), 0);
  const opposite = a.filter((v, t) => v * b[t] < 0).length;
  const same = a.filter((v, t) => v === b[t]).length;
  const rows = record.steps.map((step, t) => {
    const difference = b[t] === null || a[t] === null ? null : b[t] - a[t];
    return el("tr", { data: { step: step.step }, class: a[t] * b[t] < 0 ? "opposite" : "" },
      el("td", { class: "number muted", text: step.step }), el("td", {}, foldable(step.action, "action")),
      barCell(a[t], most, "first"), barCell(b[t], most, "second"), barCell(difference, 2 * most, "difference"),
      el("td", { class: "small", text: a[t] * b[t] < 0 ? "opposite signs" : "" }));
  });
  return el("div", {},
    el("p", { class: "summary", text: `${a.length} steps: ${same} equal, ${opposite} with opposite signs.` }),
    tableOf(["#", "Action", numberHead(context.a), numberHead(context.b), numberHead("Second less first"), ""], rows, "methods"));
}
