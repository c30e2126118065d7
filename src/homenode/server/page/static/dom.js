// Elements by name, properties and children. Text is always set as text: nothing here takes markup.

const SVG = "http://www.w3.org/2000/svg";
const MATH = "http://www.w3.org/1998/Math/MathML";

export const h = (name, properties, ...children) => fill(document.createElement(name), properties, children);
export const svg = (name, properties, ...children) => fill(document.createElementNS(SVG, name), properties, children);
export const math = (name, properties, ...children) => fill(document.createElementNS(MATH, name), properties, children);

function fill(element, properties, children) {
  for (const [key, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "data") Object.assign(element.dataset, value);
    else if (key === "style") for (const [name, text] of Object.entries(value)) element.style.setProperty(name, text);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Replace what an element holds, if it is not the same already. */
export function show(parent, ...children) {
  parent.replaceChildren(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
}

/** Set text only where it differs: a screen reader is not told twice, and a selection stays. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Set the options of a list, [value, text] each. Those that stay are the same elements, so that whoever has just
 * opened the list keeps it, and what is chosen stays so.
 */
export function setOptions(list, entries) {
  const before = new Map([...list.options].map((option) => [option.value, option]));
  entries.forEach(([value, text], at) => {
    const option = before.get(value) ?? h("option", { value });
    say(option, text);
    if (list.options[at] !== option) list.insertBefore(option, list.options[at] ?? null);
    before.delete(value);
  });
  for (const gone of before.values()) gone.remove();
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(count) {
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) [value, unit] = [value / 1024, unit + 1];
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1).replace(/\.0$/, "")} ${UNITS[unit]}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.0995) return `${(value * 1000).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  if (value < 90) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  return `${(value / 3600).toFixed(1)} h`;
}

export const number = (value) => Math.round(value).toLocaleString("en").replace(/,/g, "\u202f");
export const share = (value) => `${(100 * value).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`;
export const plural = (count, word, words = `${word}s`) => `${number(count)} ${count === 1 ? word : words}`;

/** "0-3,8" from [0, 1, 2, 3, 8]. */
export function cpuList(cpus) {
  const sorted = [...cpus].sort((a, b) => a - b);
  const parts = [];
  for (const cpu of sorted) {
    const last = parts.at(-1);
    if (last && last[1] === cpu - 1) last[1] = cpu;
    else parts.push([cpu, cpu]);
  }
  return parts.map(([first, end]) => (first === end ? `${first}` : `${first}-${end}`)).join(",");
}

/** [0, 1, 2, 3, 8] from "0-3,8". */
export function parseCpus(text) {
  return text.split(",").filter(Boolean).flatMap((part) => {
    const [first, end = first] = part.split("-").map(Number);
    return Array.from({ length: end - first + 1 }, (_, at) => first + at);
  });
}
