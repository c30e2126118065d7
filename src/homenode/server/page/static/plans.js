// Plans: who would run where on a recorded host, under each strategy. Nothing is changed by looking.

import { askJson } from "./api.js";
import { bytes, cpuList, h, parseCpus, plural, say, setOptions, show } from "./dom.js";
import { withCode } from "./machine.js";
import { drawMap } from "./map.js";

export class PlansView {
  constructor(root) {
    this.root = root;
    this.host = undefined; // this machine
    this.name = "this machine";
    this.build();
  }

  build() {
    this.strategy = h("select", { id: "strategy", onchange: () => this.plan() },
      h("option", { value: "fair" }, "fair"));
    this.model = h("select", { id: "planned-model", onchange: () => this.plan() }, h("option", { value: "" }, "none"));
    this.input = h("input", {
      type: "file", id: "host", class: "unseen", tabindex: "-1", "aria-label": "Recorded host",
      onchange: () => this.take(this.input.files)
    });
    this.line = h("input", {
      type: "text", id: "line", placeholder: "2s/4n/64c/smt2", spellcheck: "false",
      onchange: () => this.line.value.trim() && this.use(this.line.value.trim(), this.line.value.trim())
    });
    this.title = h("p", { class: "help", role: "status" });
    this.error = h("p", { class: "error", role: "alert", hidden: true });
    this.result = h("div", {});
    show(this.root, h("div", { class: "wrap" },
      h("form", { class: "controls", onsubmit: (event) => event.preventDefault() },
        h("div", { class: "field" }, h("label", { for: "strategy" }, "Strategy"), this.strategy),
        h("div", { class: "field" }, h("label", { for: "planned-model" }, "Model"), this.model),
        h("div", { class: "field" }, h("label", { for: "line" }, "Host in one line"), this.line),
        h("div", { class: "field" }, h("span", { class: "labelled" }, "Recorded host"),
          h("button", { type: "button", class: "plain", onclick: () => this.input.click() }, "Choose a file"),
          this.input),
        h("div", { class: "field" }, h("span", { class: "labelled" }, "Or"), h("button", {
          type: "button", class: "plain", onclick: () => this.use(undefined, "this machine")
        }, "This machine"))),
      h("p", { class: "help" },
        "Drop a file here that ", h("code", {}, "homenode host record FILE"),
        " has made on any machine. The plan is that of ", h("code", {}, "homenode plan --from FILE --strategy S"),
        "; nothing is changed."),
      this.title, this.error, this.result));
    this.root.addEventListener("dragover", (event) => event.preventDefault());
    this.root.addEventListener("drop", (event) => {
      event.preventDefault();
      this.take(event.dataTransfer?.files);
    });
  }

  enter() {
    if (!this.entered) this.offer();
    this.entered = true;
  }

  leave() {}

  async offer() {
    try {
      const { strategies, models } = await askJson("overview");
      setOptions(this.model, [["", "none"], ...models.map(({ name }) => [name, name])]);
      setOptions(this.strategy, strategies.map((name) => [name, name]));
      this.plan();
    } catch (error) {
      this.entered = false;
      this.refuse(error.message);
    }
  }

  async take(files) {
    const file = files?.[0];
    if (!file) return;
    const text = await file.text();
    this.input.value = "";
    this.use(text, text.length < 200 ? text.trim() : file.name);
  }

  use(host, name) {
    this.host = host;
    this.name = name;
    this.plan();
  }

  async plan() {
    const asked = (this.asked = (this.asked ?? 0) + 1);
    try {
      const body = { strategy: this.strategy.value };
      if (this.host !== undefined) body.host = this.host;
      if (this.model.value) body.model = this.model.value;
      const answer = await askJson("plan", { body });
      if (asked === this.asked) this.draw(answer);
    } catch (error) {
      if (asked === this.asked) this.refuse(error.message);
    }
  }

  refuse(message) {
    show(this.result);
    say(this.title, "");
    this.error.hidden = false;
    say(this.error, message);
  }

  draw({ plan, host, weights }) {
    this.error.hidden = true;
    const found = `${plural(plan.workers.length, "worker")}, ${plural(plan.findings.length, "finding")}`;
    say(this.title, `${this.name}, ${plan.strategy}: ${found}`);
    show(this.result, drawPlan(plan, host), weights && drawWeights(this.model.value, weights));
  }
}

function drawPlan(plan, host) {
  const owners = new Map();
  plan.workers.forEach((worker, at) => worker.bound && parseCpus(worker.cpus).forEach((cpu) =>
    owners.set(cpu, [...(owners.get(cpu) ?? []), at])));
  const kept = new Map();
  for (const place of plan.processes) for (const cpu of parseCpus(place.cpus)) kept.set(cpu, place.name);
  const cell = (cpu) => {
    const of = owners.get(cpu);
    if (of) {
      const named = of.map((at) => `worker ${plan.workers[at].local_rank}`).join(", ");
      return { hue: of[0] % 8, state: of.length > 1 ? "shared" : "", title: `CPU ${cpu}: ${named}` };
    }
    return { mark: kept.has(cpu) ? "kept" : "", title: `CPU ${cpu}: ${kept.get(cpu) ?? "nobody"}` };
  };
  const roles = ["irq", "main", "acl", "release"].filter((role) => plan.workers.some((worker) => worker.roles[role]));
  const head = ["", "Worker", "Device", "CPUs", ...roles, "Memory", "Why"];
  const row = (worker, at) => h("tr", {
    data: { worker: worker.local_rank, cpus: worker.cpus, memoryNode: worker.memory_node ?? "None" }
  },
    h("td", {}, h("span", { class: "swatch", data: { hue: at % 8 } })),
    h("th", { scope: "row" }, `${worker.local_rank}`), h("td", {}, `${worker.device}`),
    h("td", {}, worker.bound ? worker.cpus : "not bound"),
    roles.map((role) => h("td", {}, worker.roles[role] ?? "")), h("td", {}, nodes(worker.memory_nodes)),
    h("td", { class: "whyplan" }, worker.why));
  const beside = (place) => h("tr", {},
    h("td"), h("th", { scope: "row" }, place.name), h("td"), h("td", {}, place.cpus || "not bound"),
    roles.map(() => h("td")), h("td", {}, nodes(place.memory_nodes)), h("td", { class: "whyplan" }, place.why));
  return [
    h("div", { class: "findings" }, plan.findings.map(({ severity, message, remedy }) =>
      h("div", { class: `finding ${severity}` },
        h("strong", {}, ...withCode(message)), remedy && " ", ...withCode(remedy)))),
    drawMap(host, cell),
    h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Workers" }, h("table", { class: "lines" },
      h("thead", {}, h("tr", {}, head.map((text) => (text ? h("th", { scope: "col" }, text) : h("td"))))),
      h("tbody", {}, plan.workers.map(row), plan.processes.map(beside)))),
  ];
}

/** Where a model's weights would lie, how fast that would be, and why. */
function drawWeights(model, { policy, why, nodes: kept, total_bytes: total }) {
  const row = ([node, { bytes: here, free }]) => h("tr", { data: { weightNode: node, bytes: here } },
    h("th", { scope: "row" }, node < 0 ? "all in turn" : `node ${node}`), h("td", {}, bytes(here)),
    h("td", {}, free ? bytes(free) : ""),
    h("td", {}, h("meter", { min: 0, max: Math.max(total, 1), value: here, "aria-label": `Share of node ${node}` })));
  const head = ["Node", "Weights", "Free before", "Share"];
  return h("section", { "aria-label": "Weights", data: { policy } },
    h("h2", {}, `Weights of ${model}: ${policy}, ${bytes(total)}`),
    h("p", { class: "whyplan" }, ...withCode(why)),
    h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Weights by node" },
      h("table", { class: "lines" },
        h("thead", {}, h("tr", {}, head.map((text) => h("th", { scope: "col" }, text)))),
        h("tbody", {}, Object.entries(kept).map(row)))));
}

const nodes = (list) => (list.length ? `node ${cpuList(list)}` : "");
