"use strict";
// The filters and the list of rollouts. Only the rows in sight are in the page, so that length costs nothing.

const ROW_HEIGHT = 46;

class RolloutList {
  /** `choose(place)` is called with the rollout that the user picks. */
  constructor(choose) {
    this.choose = choose;
    this.box = document.getElementById("list");
    this.rows = document.getElementById("rows");
    this.shown = [];
    this.selected = -1;
    this.box.addEventListener("scroll", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.box);
    this.rows.addEventListener("click", (event) => {
      const row = event.target.closest("[data-i]");
      if (row) this.pick(Number(row.dataset.i));
    });
  }

  setIndex(index) {
    this.index = index;
    const { rows, texts } = index;
    this.length = rows.update.length;
    this.outcome = rows.end.map((end, i) => outcomeOf(end === null ? "" : texts[end], rows.score[i]));
    this.lower = texts.map((text) => text.toLowerCase());
  }

  place(i) {
    const { update, group, rollout } = this.index.rows;
    return { update: update[i], group: group[i], rollout: rollout[i] };
  }

  find(at) {
    const { update, group, rollout } = this.index.rows;
    return update.findIndex((u, i) => u === at.update && group[i] === at.group && rollout[i] === at.rollout);
  }

  text(code) { return code === null ? "" : this.index.texts[code]; }

  /** Places of the rows that pass. `found` is a set of "update/group/rollout" that has the text, or null. */
  filter(filters, found) {
    const { rows } = this.index;
    const wanted = this.index.texts.indexOf(filters.type);
    const [causeOf, cause] = filters.cause ? filters.cause.split(":") : ["", ""];
    const code = this.index.texts.indexOf(cause);
    const passes = (i) =>
      (filters.update === "all" || rows.update[i] === Number(filters.update)) &&
      (filters.group === "" || rows.group[i] === Number(filters.group)) &&
      (!filters.failed || this.outcome[i] === "failed") &&
      (filters.type === "" || rows.type[i] === wanted) &&
      (filters.sign === "" || (filters.sign === "up" && rows.raised[i]) || (filters.sign === "down" && rows.lowered[i]) ||
        (filters.sign === "none" && !rows.raised[i] && !rows.lowered[i])) &&
      (causeOf === "" || (causeOf === "rollout" && rows.cause[i] === code) ||
        (causeOf === "atom" && rows.atom_causes[i].includes(code)) || (causeOf === "lost" && this.outcome[i] === "lost")) &&
      (found === null || found.has(`${rows.update[i]}/${rows.group[i]}/${rows.rollout[i]}`));
    this.withUpdate = filters.update === "all";
    this.shown = [];
    for (let i = 0; i < this.length; i++) if (passes(i)) this.shown.push(i);
    this.rows.style.height = `${this.shown.length * ROW_HEIGHT}px`;
    this.box.scrollTop = 0;
    this.draw();
  }

  /** Mark a rollout and bring it into sight; nothing is marked if it does not pass the filters. */
  select(at) {
    this.selected = at === null ? -1 : this.find(at);
    const place = this.shown.indexOf(this.selected);
    if (place >= 0) {
      const top = place * ROW_HEIGHT;
      if (top < this.box.scrollTop) this.box.scrollTop = top;
      const under = top + ROW_HEIGHT - this.box.clientHeight;
      if (under > this.box.scrollTop) this.box.scrollTop = under;
    }
    this.draw();
  }

  pick(i) { this.choose(this.place(i)); }

  /** The next rollout of the list, or the one before. */
  move(by) {
    if (!this.shown.length) return;
    const now = this.shown.indexOf(this.selected);
    const next = now < 0 ? (by > 0 ? 0 : this.shown.length - 1) : Math.min(this.shown.length - 1, Math.max(0, now + by));
    this.pick(this.shown[next]);
  }

  draw() {
    if (!this.index) return;
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW_HEIGHT) - 4);
    const last = Math.min(this.shown.length, Math.ceil((this.box.scrollTop + this.box.clientHeight) / ROW_HEIGHT) + 4);
    const nodes = [];
    for (let k = first; k < last; k++) nodes.push(this.row(this.shown[k], k));
    this.rows.replaceChildren(...nodes);
    const marked = this.rows.querySelector(".selected");
    if (marked) this.box.setAttribute("aria-activedescendant", marked.id);
    else this.box.removeAttribute("aria-activedescendant");
  }

  row(i, k) {
    const { rows } = this.index;
    const { mark, className, word } = OUTCOME[this.outcome[i]];
    const update = this.withUpdate ? `update ${rows.update[i]} · ` : "";
    const title = el("span", { class: "row-title" },
      el("span", { class: `row-mark ${className}`, text: mark, title: word }),
      el("span", { text: `${update}group ${rows.group[i]} · rollout ${rows.rollout[i]}` }),
      el("span", { class: "spacer" }));
    if (rows.raised[i]) title.append(el("span", { class: "positive", text: `▲${rows.raised[i]}`, title: `${rows.raised[i]} steps raised, at most ${signed(rows.best[i])}` }));
    if (rows.lowered[i]) title.append(el("span", { class: "negative", text: `▼${rows.lowered[i]}`, title: `${rows.lowered[i]} steps lowered, at most ${signed(rows.worst[i])}` }));
    const cause = this.outcome[i] === "lost" ? "lost" : this.text(rows.cause[i]);
    const about = [this.text(rows.type[i]) || this.text(rows.task[i]), cause && `no credit: ${cause.replaceAll("_", " ")}`];
    const row = el("div", {
      class: `row${i === this.selected ? " selected" : ""}`, id: `row-${i}`, role: "option", data: { i },
      "aria-selected": String(i === this.selected), "aria-posinset": k + 1, "aria-setsize": this.shown.length,
    }, title, el("span", { class: "row-about muted", text: about.filter(Boolean).join(" · "), title: about.filter(Boolean).join(" · ") }));
    row.style.top = `${k * ROW_HEIGHT}px`;
    return row;
  }
}
