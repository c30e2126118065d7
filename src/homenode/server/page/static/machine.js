// The machine, live: where threads and memory are against where they were planned, who runs and who waits for what.

import { askJson } from "./api.js";
import { bar, chart } from "./charts.js";
import { bytes, cpuList, h, number, plural, say, seconds, share, show } from "./dom.js";
import { drawMap } from "./map.js";

const USES = { weights: "Weights", kv: "KV memory", scratch: "Threads' own" };
const HOUR = 3600;

export class MachineView {
  constructor(root) {
    this.root = root;
    this.host = null;
    this.hour = [];
    this.open = false;
    this.drawn = {};
    this.build();
    document.addEventListener("visibilitychange", () => this.open && !document.hidden && this.look());
  }

  build() {
    const part = (name, title, ...more) => {
      this[name] = h("div", {});
      return h("section", { class: `part part-${name}`, "aria-label": title }, h("h2", {}, title, ...more), this[name]);
    };
    this.head = h("p", { class: "machinehead" });
    this.tiles = h("div", { class: "tiles" });
    this.findings = h("div", { class: "findings", role: "alert" });
    show(this.root, h("div", { class: "wrap" }, this.head, this.findings, this.tiles,
      h("div", { class: "columns" },
        h("div", {}, part("map", "Where threads run"), part("memory", "Where memory lies")),
        h("div", {}, part("requests", "Requests"), part("limits", "What holds it up"))),
      part("charts", "The last hour")));
  }

  enter() {
    if (this.open) return;
    this.open = true;
    this.look();
  }

  leave() {
    this.open = false;
    clearTimeout(this.timer);
  }

  async look() {
    clearTimeout(this.timer);
    if (!this.open || document.hidden) return;
    let again = 2;
    try {
      const since = this.hour.at(-1)?.at ?? 0;
      const query = new URLSearchParams({
        ...(this.host ? { known: this.fingerprint } : {}), ...(since ? { since } : {})
      });
      const seen = await askJson(`overview${query.size ? `?${query}` : ""}`);
      again = seen.ask_again_s;
      this.take(seen);
      this.draw(seen);
      this.lost = false;
    } catch (error) {
      if (error.status === 401) return;
      this.lost = true;
      say(this.head, error.message || "The server cannot be reached.");
    }
    clearTimeout(this.timer);
    if (this.open) this.timer = setTimeout(() => this.look(), again * 1000);
  }

  take(seen) {
    if (seen.host) {
      this.host = seen.host;
      this.fingerprint = seen.machine.fingerprint;
    }
    const last = this.hour.at(-1)?.at ?? 0;
    this.hour = [...this.hour, ...seen.hour.filter(({ at }) => at > last)].filter(({ at }) => at > seen.at - HOUR);
  }

  draw(seen) {
    this.drawHead(seen);
    this.drawFindings(seen);
    this.drawTiles(seen);
    this.drawMap(seen);
    this.drawMemory(seen);
    this.drawRequests(seen);
    this.drawLimits(seen);
    this.drawCharts(seen);
  }

  /** Draw a part anew only if what it shows has changed: a reader and a pointer keep their place. */
  changed(name, facts) {
    const text = JSON.stringify(facts);
    if (this.drawn[name] === text) return false;
    this.drawn[name] = text;
    return true;
  }

  drawHead({ models, version, machine }) {
    const placed = models.map(({ name, details }) => [
      name, details.architecture, details.weight_bytes && `${bytes(details.weight_bytes)} of weights`,
      details.threads && `${plural(details.threads, "thread")}${placeWords(details)}`,
      details.level, details.numa && `--numa ${details.numa}`,
    ].filter(Boolean).join(", "));
    const text = `${this.host.model || this.host.machine} · homenode ${version} · ${placed.join("; ")}`;
    say(this.head, machine.known ? text : `${text} · no plan of an engine was found here, so threads are not judged`);
  }

  drawFindings({ machine, models }) {
    const told = [
      ...machine.findings, ...models.filter(({ state }) => state !== "ok").map(({ name, why }) =>
        ({ severity: "error", message: `${name}: ${why}`, remedy: "" }))
    ];
    if (!this.changed("findings", told)) return;
    show(this.findings, told.map(({ severity, message, remedy }) => h("div", { class: `finding ${severity}` },
      h("strong", {}, ...withCode(sentence(message))), remedy && h("span", {}, " ", ...withCode(remedy)))));
  }

  drawTiles({ models }) {
    const sum = (pick) => models.reduce((total, model) => total + (pick(model) ?? 0), 0);
    const last = this.hour.at(-1);
    const looked = sum(({ counters }) => counters.prefix_queries);
    const hits = sum(({ counters }) => counters.prefix_hits);
    const blocks = sum((model) => model.blocks);
    const used = sum((model) => model.blocks * model.gauges.kv_usage);
    const drafted = sum(({ counters }) => counters.drafted_tokens);
    const tiles = [
      ["Running", number(sum(({ gauges }) => gauges.running)),
        `${number(sum(({ gauges }) => gauges.waiting))} waiting`],
      ["Generated", last ? `${number(last.generated_tokens)} tok/s` : "–",
        `${number(sum(({ counters }) => counters.generation_tokens))} tokens so far`],
      ["First token", seconds(last?.first_token?.[0]), "median of 15 s"],
      ["Between tokens", seconds(last?.between_tokens?.[0]), "median of 15 s"],
      ["KV blocks", share(blocks ? used / blocks : 0), `${number(used)} of ${number(blocks)}`],
      ["Found in cache", looked ? share(hits / looked) : "–", `${number(hits)} of ${number(looked)} tokens`],
      drafted > 0 && ["Drafts", share(sum(({ counters }) => counters.accepted_tokens) / drafted),
        "of guessed tokens right"],
    ].filter(Boolean);
    if (this.changed("tiles", tiles)) show(this.tiles, tiles.map(([name, value, more]) => h("div", { class: "tile" },
      h("p", { class: "name" }, name), h("p", { class: "value" }, value), h("p", { class: "more" }, more))));
  }

  drawMap({ machine, models }) {
    const lost = Object.assign({}, ...models.map((model) => model.lost_cpu));
    const busy = models.some(({ gauges }) => gauges.running > 0);
    const lines = models.flatMap(({ memory }) => memory).filter(({ present }) => present > 0);
    if (!this.changed("map", [machine.threads, lost, this.fingerprint, busy, lines])) return;
    const threads = new Map(machine.threads.map((thread) => [thread.cpu, thread]));
    const cell = (cpu) => {
      const thread = threads.get(cpu);
      if (!thread) return { title: `CPU ${cpu}: no compute thread` };
      if (thread.state === "stray") return { state: "stray", title: `CPU ${cpu}: ${strayWords(thread)}` };
      const away = lost[cpu] ?? 0;
      const lacked = away > 0 ? `; it lacked its CPU ${share(away)} of the time` : "";
      return {
        state: "home", mark: away > 0.05 ? "lost" : busy ? "busy" : "",
        title: `CPU ${cpu}: a compute thread of engine ${thread.engine}, as planned${lacked}`
      };
    };
    const strays = machine.threads.filter(({ state }) => state === "stray");
    show(this.map, this.host && drawMap(this.host, cell, (id, memory) => nodeFoot(lines, id, memory)),
      h("ul", { class: "legend" },
        h("li", { class: "is-home" }, "compute thread, as planned"),
        h("li", { class: "is-lost" }, "lacks its CPU more than 5 % of the time"),
        h("li", { class: "is-stray" }, "strayed"), h("li", { class: "is-free" }, "no compute thread")),
      strays.length > 0 && h("ul", { class: "strays" }, strays.map((thread) => h("li", {},
        `CPU ${thread.cpu}: ${strayWords(thread)}. Compare with: homenode verify --pid ${thread.engine}`))));
  }

  drawMemory({ models }) {
    const rows = models.flatMap(({ name, memory }) => memory.map((line) =>
      ({ model: models.length > 1 ? name : "", ...line }))).filter(({ present }) => present > 0);
    if (!this.changed("memory", rows)) return;
    if (!rows.length) return show(this.memory, h("p", { class: "help" },
      "This kernel, or its container, does not tell where pages are."));
    const most = Math.max(...rows.map(({ present }) => present));
    show(this.memory, h("table", { class: "lines" },
      h("thead", {}, h("tr", {}, ["Of", "Planned for", "There", "At home", ""].map((text) =>
        (text ? h("th", { scope: "col" }, text) : h("td"))))),
      h("tbody", {}, rows.map(({ model, use, node, present, local }) => h("tr",
        { class: local < present ? "off" : false },
        h("th", { scope: "row" }, [model, USES[use] ?? use].filter(Boolean).join(": ")),
        h("td", {}, node < 0 ? "all nodes in turn" : `node ${node}`), h("td", {}, bytes(present)),
        h("td", {}, share(local / present)), h("td", { class: "grow" },
          bar(present / most, `${bytes(local)} of ${bytes(present)} where they belong`, (present - local) / most)))))));
  }

  drawRequests({ models }) {
    const rows = models.flatMap((model) => model.requests.map((request) =>
      ({ model: models.length > 1 ? model.name : "", ...request })));
    const left = models.reduce((sum, model) => sum + model.left_out, 0);
    if (!this.changed("requests", [rows, left])) return;
    if (!rows.length) return show(this.requests, h("p", { class: "help" }, "Nothing runs and nobody waits."));
    show(this.requests, h("ul", { class: "rows", tabindex: "0", "aria-label": "Requests" }, rows.map((row) =>
      h("li", { data: { request: row.id, state: row.state } },
        h("span", { class: "dot", "aria-hidden": "true" }), h("span", { class: "what" }, words(row)),
        h("span", { class: "age" }, seconds(row.age_s)),
        row.why && h("span", { class: "why" }, `waits: ${row.why}`)))),
    left > 0 && h("p", { class: "help" }, `and ${number(left)} more`));
  }

  drawLimits({ machine, models }) {
    const { throttled } = machine;
    const shares = models.flatMap(({ lost_cpu: lost }) => Object.values(lost));
    const worst = Math.max(0, ...shares);
    const now = { at: performance.now(), periods: throttled?.periods ?? 0, count: throttled?.throttled ?? 0 };
    const before = this.quota ?? now;
    if (!this.quota || now.at - before.at > 10_000) this.quota = now;
    const recent = now.periods - before.periods;
    const mean = shares.reduce((sum, part) => sum + part, 0) / shares.length;
    const lines = [
      ["CPU quota", throttled ? quotaWords(throttled, recent, now.count - before.count) : "none, or never used up"],
      shares.length > 0 && ["Threads lack their CPU",
        `${share(worst)} of the time at worst, ${share(mean)} on average`],
      ...models.filter(({ barrier_wait: wait }) => wait !== null).map(({ name, barrier_wait: wait }) => [
        "Barrier wait", `${share(wait)} of a step threads wait for each other${models.length > 1 ? `, ${name}` : ""}`]),
      ...models.flatMap(({ stages }) => stages.map((stage) => [`Stage ${stage.stage}`,
        `${share(stage.wait_s / Math.max(1e-9, stage.wait_s + stage.busy_s))} of the time a bubble`])),
      ["Preempted", plural(models.reduce((sum, { counters }) => sum + counters.preemptions, 0), "time")],
      ...models.flatMap(({ engines }) => engines.map(({ number: each, node, state, restarts }) => [`Engine ${each}`,
        `${state}${node === null ? "" : `, node ${node}`}${restarts ? `, ${plural(restarts, "restart")}` : ""}`])),
      ...models.flatMap(({ details }) => (details.neighbours ?? []).map((text) => ["Beside it", text])),
    ].filter(Boolean);
    if (this.changed("limits", lines)) show(this.limits, h("ul", { class: "facts" }, lines.map(([name, text]) =>
      h("li", {}, h("span", { class: "name" }, name), h("span", { class: "value" }, text)))));
  }

  drawCharts({ at }) {
    if (!this.changed("charts", [this.hour.at(-1)?.at, this.hour.length])) return;
    const points = (pick) => this.hour.map((each) => [each.at, pick(each)]);
    const times = (name) => [["median", 0], ["95 %", 1]].map(([words, place]) =>
      ({ name: words, points: points((each) => each[name]?.[place] ?? null) }));
    show(this.charts, h("div", { class: "grid" },
      chart("Tokens per second", at, [
        { name: "answers", points: points((each) => each.generated_tokens) },
        { name: "prompts", points: points((each) => each.prompt_tokens) }
      ], (value) => number(value)),
      chart("Requests", at, [
        { name: "running", points: points((each) => each.running) },
        { name: "waiting", points: points((each) => each.waiting) }
      ], (value) => number(value)),
      chart("Time in the queue", at, times("queue"), seconds),
      chart("Time to first token", at, times("first_token"), seconds),
      chart("Time between tokens", at, times("between_tokens"), seconds),
      chart("KV blocks in use", at, [{ name: "", points: points((each) => each.kv_usage) }], share)));
  }
}

/** What lies on a node, below its CPUs. */
function nodeFoot(lines, id, memory) {
  const own = lines.filter(({ node }) => node === id);
  if (!own.length) return null;
  const total = own.reduce((sum, { present }) => sum + present, 0);
  const away = own.reduce((sum, { present, local }) => sum + present - local, 0);
  const parts = Object.keys(USES).map((use) =>
    [use, own.filter((line) => line.use === use).reduce((sum, { present }) => sum + present, 0)]
  ).filter(([, size]) => size > 0);
  return h("div", { class: "nodefoot" },
    bar(total / (memory || total), `${bytes(total)} of ${bytes(memory || total)} is the model's`,
      away / (memory || total)),
    h("p", {}, parts.map(([use, size]) => `${USES[use].toLowerCase().replace("kv memory", "KV")} ${bytes(size)}`)
      .join(" · "), away > 0 && ` · ${bytes(away)} of it elsewhere`));
}

function placeWords({ cpus, cpu_sets: sets }) {
  if (cpus) return ` on ${cpus.length === 1 ? "CPU" : "CPUs"} ${cpuList(cpus)}`;
  return sets ? ` on any of CPUs ${cpuList(sets)}` : "";
}

/** `recent`: the periods since one looked last, in `stopped` of which the quota was used up. */
function quotaWords({ periods, throttled, seconds: all }, recent, stopped) {
  const last = recent > 0 ? `, ${share(stopped / recent)} of the last ${number(recent)}` : "";
  return `stopped in ${share(periods ? throttled / periods : 0)} of all periods${last}; ${seconds(all)} in all`;
}

function strayWords({ elsewhere }) {
  const where = elsewhere.length ? `; a thread of the engine is bound to CPU ${cpuList(elsewhere)} instead` : "";
  return `the compute thread that was planned here is not bound to it any more${where}`;
}

function words({ model, prompt, computed, generated, cached, state, preemptions }) {
  const part = state === "running" && computed < prompt
    ? `${number(computed)} of ${number(prompt)} prompt tokens` : `${number(prompt)} prompt tokens`;
  return [
    model, part, cached > 0 && `${number(cached)} cached`,
    generated > 0 && `${plural(generated, "token")} of answer`,
    preemptions > 0 && `preempted ${plural(preemptions, "time")}`
  ].filter(Boolean).join(" · ");
}

/** Words between `backticks` are code. */
export const withCode = (text) => text.split("`").map((part, at) => (at % 2 ? h("code", {}, part) : part));

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
