// Both sides of a proxy: which servers there are, how they are, and what is under way.

import { askJson } from "./api.js";
import { bytes, h, number, plural, say, seconds, share, show } from "./dom.js";

const SIDES = [["prefill", "Prefill servers"], ["decode", "Decode servers"]];
const WAYS = {
  handover: "prefilled elsewhere and handed over", local: "to be handed over, computed at the decoder",
  direct: "computed at the decoder"
};
const PHASES = {
  choosing: "wait for a server", prefilling: "prompts are computed", handed: "hand-overs",
  decoding: "answers are written"
};

export class ServersView {
  constructor(root) {
    this.root = root;
    this.head = h("p", { class: "machinehead", role: "status" });
    this.sides = h("div", { class: "sides" });
    this.facts = h("ul", { class: "facts" });
    show(root, h("div", { class: "wrap" }, this.head, this.sides,
      h("section", { class: "part", "aria-label": "Requests" }, h("h2", {}, "Requests"), this.facts)));
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
    if (!this.open) return;
    let again = 2;
    try {
      if (!document.hidden) {
        const seen = await askJson("overview");
        again = seen.ask_again_s;
        this.draw(seen);
      }
    } catch (error) {
      if (error.status === 401) return;
      say(this.head, error.message);
    }
    clearTimeout(this.timer);
    if (this.open) this.timer = setTimeout(() => this.look(), again * 1000);
  }

  draw({ servers, pairs, obstacles, phases, ways, version }) {
    const facts = [`homenode proxy ${version}`, `${plural(pairs, "pair")} can hand over`];
    say(this.head, [...facts, ...(obstacles.length ? [obstacles.join("; ")] : [])].join(" · "));
    show(this.sides, SIDES.map(([role, title]) => {
      const own = servers.filter((server) => server.role === role);
      return h("section", { class: "part", "aria-label": title }, h("h2", {}, title),
        own.length ? own.map(drawServer) : h("p", { class: "help" }, "none: decode servers compute prompts"));
    }));
    const lines = [
      ...Object.entries(phases).map(([name, count]) => [PHASES[name] ?? name, number(count)]),
      ...Object.entries(ways).map(([name, count]) => [`over, ${WAYS[name] ?? name}`, number(count)]),
    ];
    show(this.facts, lines.map(([name, text]) =>
      h("li", {}, h("span", { class: "name" }, name), h("span", { class: "value" }, text))));
  }
}

function drawServer({
  url, role, state, reason, since_s: since, requests, waiting_tokens: waiting, breaker_open: left, lives, engines, told
}) {
  const more = [
    plural(requests, "request"), waiting > 0 && `about ${number(waiting)} prompt tokens wait`,
    engines > 1 && plural(engines, "engine"), lives > 1 && `seen anew ${plural(lives - 1, "time")}`,
    left && "left alone for a while after failures", since > 0 && `for ${seconds(since)}`,
  ].filter(Boolean);
  return h("div", { class: `server ${state}`, data: { server: url } },
    h("p", { class: "url" }, url), h("p", {}, h("span", { class: "state" }, state), ` ${role}`),
    reason && h("p", { class: "help" }, reason), h("p", { class: "help" }, more.join(" · ")),
    told && h("p", { class: "help" }, toldWords(told)));
}

/** What a server says of itself, whoever its requests come from. */
function toldWords({ running, waiting, kv_usage: usage, handed_bytes: size, handed, failed, handing }) {
  return [
    `it runs ${number(running)}`, waiting > 0 && `${number(waiting)} wait`, `KV blocks ${share(usage)}`,
    handed > 0 && `${plural(handed, "hand-over")}, ${bytes(size)}`, failed > 0 && `${number(failed)} failed`,
    handing > 0 && `${plural(handing, "hand-over")} under way`,
  ].filter(Boolean).join(" · ");
}
