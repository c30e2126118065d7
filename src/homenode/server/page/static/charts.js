// Small charts of the last hour. A chart says in words what it shows.

import { h, svg } from "./dom.js";

const WIDTH = 320;
const HEIGHT = 84;
const PAD = 4;
const HOUR = 3600;

/** `series`: [{name, points: [[time, value or null]]}]; `unit` turns a value into words. */
export function chart(title, now, series, unit) {
  const values = series.flatMap(({ points }) => points.map(([, value]) => value))
    .filter((value) => value !== null && value !== undefined);
  const most = niceAbove(Math.max(0, ...values));
  const x = (time) => PAD + ((WIDTH - 2 * PAD) * (time - (now - HOUR))) / HOUR;
  const y = (value) => HEIGHT - PAD - ((HEIGHT - 2 * PAD) * value) / (most || 1);
  const lines = series.map(({ points }, at) => svg("path", { class: `line l${at}`, d: pathOf(points, x, y) }));
  const last = series.map(({ name, points }) => {
    const value = points.at(-1)?.[1];
    return `${name ? `${name} ` : ""}${value === null || value === undefined ? "–" : unit(value)}`;
  });
  const words = `${title}, last hour: ${last.join(", ")} now; the scale ends at ${unit(most)}`;
  return h("figure", { class: "chart" },
    h("figcaption", {}, h("span", {}, title), h("span", { class: "now" },
      ...last.map((text, at) => h("span", { class: `key k${at}` }, text)))),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": words, preserveAspectRatio: "none" },
      svg("path", {
        class: "axis", d: [0, 0.5, 1].map((part) => `M${PAD} ${y(part * most)}H${WIDTH - PAD}`).join("")
      }), ...lines),
    h("p", { class: "scale" }, h("span", {}, "1 h ago"),
      h("span", {}, most ? `up to ${unit(most)}` : "nothing yet"), h("span", {}, "now")));
}

function pathOf(points, x, y) {
  let text = "";
  let pen = false;
  points.forEach(([time, value], at) => {
    if (value === null || value === undefined) {
      pen = false;
      return;
    }
    const alone = !pen && (at === points.length - 1 || points[at + 1][1] === null || points[at + 1][1] === undefined);
    text += `${pen ? "L" : "M"}${x(time).toFixed(1)} ${y(value).toFixed(1)}${alone ? "h2" : ""}`;
    pen = true;
  });
  return text;
}

/** A round number at or above a value. */
function niceAbove(value) {
  if (value <= 0) return 0;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

/** A bar that is full at 1; `part`: how much of it is as it should be. */
export function bar(value, words, bad = 0) {
  const width = (part) => ({ width: `${Math.max(0, Math.min(100, 100 * part)).toFixed(2)}%` });
  return h("span", { class: "meter", role: "img", "aria-label": words },
    h("span", { class: "full", style: width(value) }), bad > 0 && h("span", { class: "bad", style: width(bad) }));
}
