// The machine as a map: sockets, in them nodes, last-level caches, cores, CPUs.

import { bytes, h } from "./dom.js";

const FEW = 16; // CPUs, up to which they are drawn large...
const SOME = 160; // ...and show their numbers

/** The map as an element. `cell` says more of each CPU: {state, hue, title, words}. */
export function drawMap(host, cell, nodeFoot = () => null) {
  const count = host.sockets.flatMap(({ nodes }) => nodes).flatMap(({ caches }) => caches.flat(2)).length;
  const numbers = count <= SOME;
  const draw = (cpu) => {
    const { state, hue, title, mark } = cell(cpu);
    return h("span", {
      class: "cpu", title,
      data: { cpu, ...(state ? { state } : {}), ...(hue === undefined ? {} : { hue }), ...(mark ? { mark } : {}) }
    }, numbers ? `${cpu}` : h("span", { class: "unseen" }, `${cpu}`));
  };
  const cache = (cores) => h("div", { class: "cache" },
    cores.map((cpus) => h("span", { class: "core" }, cpus.map(draw))));
  const nodeOf = ({ id, memory, caches = [] }) => h("div",
    { class: "node", ...(id === null ? {} : { data: { node: id } }) },
    h("p", { class: "label" }, id === null ? "CPUs" : `Node ${id}`, memory ? h("span", {}, bytes(memory)) : null),
    caches.length ? h("div", { class: "caches" }, caches.map(cache)) : h("p", { class: "help" }, "memory without CPUs"),
    nodeFoot(id, memory));
  const sockets = host.sockets.map(({ id, nodes }) => h("div", { class: "socket" },
    h("p", { class: "label" }, `Socket ${id}`), h("div", { class: "nodes" }, nodes.map(nodeOf))));
  const rest = host.memory_nodes.length > 0 && h("div", { class: "socket" },
    h("p", { class: "label" }, "Memory alone"), h("div", { class: "nodes" }, host.memory_nodes.map(nodeOf)));
  return h("div", { class: `map ${count <= FEW ? "few" : numbers ? "some" : "dense"}` }, sockets, rest);
}
