"use strict";
// Where the values come from: the server that served the page, or the page itself if it was exported.

class NotAvailable extends Error {}

/** Asks the server. */
class ServerSource {
  constructor() { this.offline = false; }

  async ask(name, query = {}) {
    let response;
    try {
      response = await fetch(`api/${name}?${new URLSearchParams(query)}`);
    } catch {
      throw new NotAvailable("The viewer's server does not answer. Is the command still running?");
    }
    const body = await response.json();
    if (!response.ok || body.error) throw new NotAvailable(body.error);
    return body;
  }

  index() { return this.ask("index"); }
  rollout(at) { return this.ask("rollout", at); }
  group({ update, group }) { return this.ask("group", { update, group }); }
  search(text, update) { return this.ask("search", update === null ? { text } : { text, update }); }
  methods({ update }) { return this.ask("methods", { update }); }
  advantages(at, names) { return this.ask("advantages", { ...at, methods: names.join(",") }); }
  observed(at) { return this.ask("observed", at); }
}

/** Reads what `--export` put into the page. */
class ExportSource {
  constructor(data) { this.offline = true; this.data = data; }

  record({ update, group, rollout }) {
    const found = this.data.rollouts[`${update}/${group}/${rollout}`];
    if (!found) throw new NotAvailable("This rollout was left out of the exported page.");
    return found;
  }

  async index() { return this.data.index; }
  async rollout(at) { return this.record(at).record; }
  async observed(at) { return this.record(at).observed; }

  async group({ update, group }) {
    const found = this.data.groups[`${update}/${group}`];
    if (!found) throw new NotAvailable("This group was left out of the exported page.");
    return found;
  }

  async methods() { return this.data.methods; }

  async advantages(at, names) {
    const { advantages } = this.record(at);
    const missing = names.find((name) => !(name in advantages));
    if (missing !== undefined) throw new NotAvailable(`The method ${missing} was not computed for this page.`);
    return Object.fromEntries(names.map((name) => [name, advantages[name]]));
  }

  async search(text, update) {
    const wanted = text.toLowerCase();
    const found = [];
    for (const { record } of Object.values(this.data.rollouts)) {
      if (update !== null && record.update !== update) continue;
      const texts = [record.task, record.type, ...record.steps.flatMap((step) => [step.action, step.observation])];
      if (texts.some((t) => t && t.toLowerCase().includes(wanted))) found.push([record.update, record.group, record.rollout]);
    }
    return { found, problems: [] };
  }
}

function makeSource() {
  const data = document.getElementById("export-data");
  return data ? new ExportSource(JSON.parse(data.textContent)) : new ServerSource();
}
