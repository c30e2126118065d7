// Markdown as models write it, drawn as elements. No text ever becomes markup: whatever is not understood is text, a
// picture is a link, and a link leads to a web or mail address or is none.

import { h } from "./dom.js";
import { formula } from "./math.js";

const DEEPEST = 12; // quotes and lists within each other, and emphasis within emphasis
const LINK = /^(https?:\/\/|mailto:)/i;
const BRACKETED = /^<(https?:\/\/[^\s<>]{1,2000})>/i;
const ADDRESS = /^(https?:\/\/[^\s<>"'`]{1,2000}[^\s<>"'`.,;:!?)\]}*_])/i;
// None of these looks at a run of blanks from more than one place: a line of a hundred thousand takes no time either.
const FENCE = /^( {0,3})(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(\s.*)?$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +(.*)|)$/;
const ROW_RULE = /^ {0,3}\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const QUOTE = /^ {0,3}> ?/;

/** The source cut into blocks: {kind, text, ...}. Two sources that begin alike have equal blocks there. */
export function blocks(source, depth = 0) {
  const lines = source.replace(/\r\n?/g, "\n").replace(/\t/g, "    ").split("\n");
  const out = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    if (!line.trim()) {
      at += 1;
      continue;
    }
    const begin = at;
    const add = (kind, rest) => out.push({ kind, source: lines.slice(begin, at).join("\n"), ...rest });
    const fence = FENCE.exec(line);
    if (fence) {
      const [, indent, marks, info] = fence;
      const closing = new RegExp(`^ {0,3}${marks[0]}{${marks.length},}\\s*$`);
      const content = [];
      for (at += 1; at < lines.length && !closing.test(lines[at]); at += 1)
        content.push(lines[at].replace(new RegExp(`^ {0,${indent.length}}`), ""));
      const closed = at < lines.length;
      at += closed ? 1 : 0;
      add("code", { language: info.trim().split(/\s+/)[0], text: content.join("\n"), closed });
      continue;
    }
    const display = displayed(lines, at);
    if (display) {
      at = display.end;
      add("math", { text: display.text });
      continue;
    }
    const heading = HEADING.exec(line);
    if (heading) {
      at += 1;
      add("heading", { level: heading[1].length, text: withoutClosing((heading[2] ?? "").trim()) });
      continue;
    }
    if (RULE.test(line)) {
      at += 1;
      add("rule", {});
      continue;
    }
    if (QUOTE.test(line)) {
      const content = [];
      for (; at < lines.length && lines[at].trim() && (QUOTE.test(lines[at]) || !startsBlock(lines, at)); at += 1)
        content.push(lines[at].replace(QUOTE, ""));
      const text = content.join("\n");
      add("quote", { blocks: depth < DEEPEST ? blocks(text, depth + 1) : [{ kind: "text", source: "", text }] });
      continue;
    }
    if (line.includes("|") && ROW_RULE.test(lines[at + 1] ?? "") && lines[at + 1].includes("-")) {
      const head = cells(line);
      const aligns = cells(lines[at + 1]).map((cell) =>
        (/^:-+:$/.test(cell) ? "center" : /-:$/.test(cell) ? "right" : ""));
      const rows = [];
      for (at += 2; at < lines.length && lines[at].includes("|") && lines[at].trim(); at += 1)
        rows.push(cells(lines[at]));
      add("table", { head, aligns, rows });
      continue;
    }
    if (ITEM.test(line)) {
      const found = list(lines, at, depth);
      at = found.end;
      add("list", found.list);
      continue;
    }
    if (line.startsWith("    ") && out.at(-1)?.kind !== "text") {
      const content = [];
      for (; at < lines.length && (lines[at].startsWith("    ") || !lines[at].trim()); at += 1)
        content.push(lines[at].slice(4));
      add("code", { language: "", text: content.join("\n").trimEnd(), closed: true });
      continue;
    }
    for (at += 1; at < lines.length && lines[at].trim() && !startsBlock(lines, at); at += 1);
    add("text", { text: lines.slice(begin, at).map((each) => each.replace(/^ +/, "")).join("\n") });
  }
  return out;
}

/** The text of a heading without the marks that may close it. */
function withoutClosing(text) {
  let end = text.length;
  while (end > 0 && text[end - 1] === "#") end -= 1;
  return end < text.length && (end === 0 || /\s/.test(text[end - 1])) ? text.slice(0, end).trimEnd() : text;
}

/** A formula that has lines of its own from line `at` on; null where it has no end, or text behind it. */
function displayed(lines, at) {
  const open = /^ {0,3}(\$\$|\\\[)/.exec(lines[at]);
  if (!open) return null;
  const mark = open[1] === "$$" ? "$$" : "\\]";
  const content = [];
  for (let line = at; line < lines.length && (line === at || lines[line].trim()); line += 1) {
    const text = line === at ? lines[line].slice(open[0].length) : lines[line];
    const close = text.indexOf(mark);
    if (close >= 0) {
      content.push(text.slice(0, close));
      return text.slice(close + 2).trim() ? null : { text: content.join("\n"), end: line + 1 };
    }
    content.push(text);
  }
  return null;
}

function startsBlock(lines, at) {
  const line = lines[at];
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || displayed(lines, at)
    || /^ {0,3}([-*+]|1[.)]) +\S/.test(line)
    || (line.includes("|") && ROW_RULE.test(lines[at + 1] ?? "") && lines[at + 1].includes("-"));
}

/** A list from line `at` on, and the line behind it. */
function list(lines, at, depth) {
  const ordered = /\d/.test(ITEM.exec(lines[at])[2]);
  const base = ITEM.exec(lines[at])[1].length;
  const start = ordered ? parseInt(ITEM.exec(lines[at])[2], 10) : 1;
  const items = [];
  let loose = false;
  while (at < lines.length) {
    const item = ITEM.exec(lines[at]);
    if (item && item[1].length < base + 2 && item[1].length >= base - 1 && /\d/.test(item[2]) === ordered
      && !RULE.test(lines[at])) {
      const width = item[1].length + item[2].length + 1;
      const content = [item[3] ?? ""];
      for (at += 1; at < lines.length; at += 1) {
        const line = lines[at];
        const indent = line.length - line.trimStart().length;
        if (!line.trim()) {
          let next = at + 1;
          while (next < lines.length && !lines[next].trim()) next += 1;
          if (next === lines.length
            || lines[next].length - lines[next].trimStart().length < Math.min(width, base + 2)) break;
          content.push("");
          at = next - 1;
        } else if (indent >= Math.min(width, base + 2)) content.push(line.slice(Math.min(width, indent)));
        else if (ITEM.test(line) || startsBlock(lines, at)) break;
        else content.push(line.trim());
      }
      items.push(content.join("\n"));
      continue;
    }
    const next = lines[at].trim() ? null : ITEM.exec(lines[at + 1] ?? "");
    if (next && next[1].length < base + 2 && /\d/.test(next[2]) === ordered) {
      loose = true;
      at += 1;
      continue;
    }
    break;
  }
  const inside = items.map((text) => {
    const task = /^\[([ xX])\] +/.exec(text);
    const rest = task ? text.slice(task[0].length) : text;
    const within = depth < DEEPEST ? blocks(rest, depth + 1) : [{ kind: "text", source: rest, text: rest }];
    return { task: task ? task[1] !== " " : null, blocks: within };
  });
  return { list: { ordered, start, loose, items: inside }, end: at };
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replace(/\\\|/g, "|"));
}

/** Draws a text that grows, piece by piece: what has not changed stays as it is, with its selection. */
export class Drawing {
  constructor(element) {
    this.element = element;
    this.sources = [];
  }

  draw(source) {
    const found = blocks(source);
    let same = 0;
    while (same < found.length && same < this.sources.length && found[same].source === this.sources[same]) same += 1;
    while (this.element.children.length > same) this.element.lastElementChild.remove();
    for (const block of found.slice(same)) this.element.append(draw(block));
    this.sources = found.map((block) => block.source);
  }
}

function draw(block) {
  switch (block.kind) {
    case "code": return code(block);
    case "math": return h("p", { class: "formula", tabindex: "0" }, formula(block.text, true));
    case "heading": return h(`h${Math.min(6, block.level + 1)}`, {}, ...inline(block.text));
    case "rule": return h("hr");
    case "quote": return h("blockquote", {}, ...block.blocks.map(draw));
    case "table": return table(block);
    case "list": return items(block);
    default: return h("p", {}, ...inline(block.text));
  }
}

function items({ ordered, start, loose, items: all }) {
  const draws = ({ task, blocks: within }) => {
    const tight = !loose && within.length > 0 && within[0].kind === "text";
    const first = tight ? inline(within[0].text) : [];
    const mark = task === null ? []
      : [h("span", { class: "task", role: "img", "aria-label": task ? "done" : "to do" }, task ? "☑ " : "☐ ")];
    return h("li", { class: task === null ? false : "tasks" }, ...mark, ...first,
      ...within.slice(tight ? 1 : 0).map(draw));
  };
  return h(ordered ? "ol" : "ul", ordered && start !== 1 ? { start } : {}, ...all.map(draws));
}

function table({ head, aligns, rows }) {
  const align = (at) => (aligns[at] ? { class: aligns[at] } : {});
  const cellsOf = (row, name, more = {}) => head.map((_, at) =>
    h(name, { ...align(at), ...more }, ...inline(row[at] ?? "")));
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Table" },
    h("table", {}, h("thead", {}, h("tr", {}, ...cellsOf(head, "th", { scope: "col" }))),
      h("tbody", {}, ...rows.map((row) => h("tr", {}, ...cellsOf(row, "td"))))));
}

function code({ language, text }) {
  const copy = h("button", { type: "button", class: "quiet", onclick: async () => {
    await navigator.clipboard?.writeText(text).catch(() => {});
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  } }, "Copy");
  return h("figure", { class: "code" }, h("figcaption", {}, h("span", {}, language || "text"), copy),
    h("pre", { tabindex: "0" }, h("code", {}, ...coloured(text, language))));
}

const WORDS = new Set(
  ("and as assert async await bool break case catch char class const continue def default del do elif else enum except "
  + "export extends false False finally fn for from func function global go if impl import in include int interface is "
  + "lambda let long match mod mut namespace new nil None not null or package pass private public pub raise return "
  + "self static struct super switch template this throw trait true True try type typedef typename undefined union "
  + "unsigned use using var void where while with yield").split(" "),
);
// Comments, texts, numbers and names, a group for each: `coloured` takes them in this order.
const TOKENS = new RegExp([
  /(\/\/[^\n]*|\/\*[\s\S]*?\*\/|(?:^|(?<=\s))#(?!include|define|if|endif)[^\n]*)/,
  /("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`)/,
  /\b(\d[\d_.]*(?:e[+-]?\d+)?|0x[\da-f]+)\b/,
  /([A-Za-z_][A-Za-z0-9_]*)/,
].map(({ source }) => source).join("|"), "gim");
const PLAIN = new Set(["", "text", "txt", "console", "output", "markdown", "md", "csv", "diff"]);

/** Code with its comments, texts, numbers and words told apart, well enough for any language. */
function coloured(text, language) {
  if (PLAIN.has(language.toLowerCase()) || text.length > 60_000) return [text];
  const out = [];
  let at = 0;
  for (const match of text.matchAll(TOKENS)) {
    const [whole, comment, string, digits, word] = match;
    const kind = comment ? "c" : string ? "s" : digits ? "n" : WORDS.has(word) ? "k" : null;
    if (!kind) continue;
    if (match.index > at) out.push(text.slice(at, match.index));
    out.push(h("span", { class: `t-${kind}` }, whole));
    at = match.index + whole.length;
  }
  out.push(text.slice(at));
  return out;
}

const ESCAPED = /[!-/:-@[-`{-~]/;

/** The elements and texts of one paragraph. */
export function inline(text, depth = 0) {
  const out = [];
  const missing = new Set(); // marks that are known to have no end any more, so that nobody looks twice
  let plain = "";
  let at = 0;
  const put = (element) => {
    if (plain) out.push(plain);
    plain = "";
    out.push(element);
  };
  const endOf = (mark, from) => {
    if (missing.has(mark)) return -1;
    const end = text.indexOf(mark, from);
    if (end < 0) missing.add(mark);
    return end;
  };
  while (at < text.length) {
    const letter = text[at];
    const next = text[at + 1] ?? "";
    if (letter === "\\" && (next === "(" || next === "[")) {
      const end = endOf(next === "(" ? "\\)" : "\\]", at + 2);
      if (end > 0) {
        put(formula(text.slice(at + 2, end), next === "["));
        at = end + 2;
        continue;
      }
    }
    if (letter === "\\" && ESCAPED.test(next)) {
      plain += next;
      at += 2;
      continue;
    }
    if (letter === "`") {
      const marks = /^`+/.exec(text.slice(at, at + 40))[0];
      const end = endOf(marks, at + marks.length);
      if (end > 0) {
        put(h("code", {}, text.slice(at + marks.length, end).replace(/\n/g, " ").replace(/^ (.*) $/, "$1")));
        at = end + marks.length;
        continue;
      }
      plain += marks;
      at += marks.length;
      continue;
    }
    if (letter === "$") {
      const mark = next === "$" ? "$$" : "$";
      const end = endOf(mark, at + mark.length + 1);
      const inside = end > 0 ? text.slice(at + mark.length, end) : "";
      // Prices are no formulas: a dollar that opens has no blank behind it, one that closes none before and no digit
      // behind.
      if (inside && (mark === "$$"
        || (!/^\s|\s$/.test(inside) && !/\d/.test(text[end + 1] ?? "") && !inside.includes("\n\n")))) {
        put(formula(inside, mark === "$$"));
        at = end + mark.length;
        continue;
      }
    }
    if ((letter === "*" || letter === "_" || (letter === "~" && next === "~")) && depth < DEEPEST) {
      const found = emphasis(text, at, endOf, depth);
      if (found) {
        put(found.element);
        at = found.end;
        continue;
      }
    }
    if (letter === "[" || (letter === "!" && next === "[")) {
      const found = link(text, letter === "!" ? at + 1 : at, endOf, depth);
      if (found) {
        put(found.element);
        at = found.end;
        continue;
      }
    }
    if (letter === "<" || letter === "h") {
      const found = BRACKETED.exec(text.slice(at, at + 2010))
        ?? (/\w/.test(text[at - 1] ?? "") ? null : ADDRESS.exec(text.slice(at, at + 2010)));
      if (found) {
        put(anchor(found[1], [found[1]]));
        at += found[0].length;
        continue;
      }
    }
    if (letter === "\n") {
      if (plain.endsWith("  ") || plain.endsWith("\\")) {
        plain = plain.endsWith("\\") ? plain.slice(0, -1) : plain.trimEnd();
        put(h("br"));
      } else plain += "\n";
      at += 1;
      continue;
    }
    plain += letter;
    at += 1;
  }
  if (plain) out.push(plain);
  return out;
}

function emphasis(text, at, endOf, depth) {
  const letter = text[at];
  const double = text[at + 1] === letter;
  const marks = double ? letter + letter : letter;
  const begin = at + marks.length;
  if (/\s/.test(text[begin] ?? " ")) return null;
  if (letter === "_" && /\w/.test(text[at - 1] ?? "")) return null;
  let end = begin;
  for (let tries = 0; tries < 8; tries += 1) {
    end = endOf(marks, end + 1);
    if (end < 0) return null;
    if (!double && (text[end + 1] === letter || text[end - 1] === letter)) {
      end += 1; // the end of a strong one within this
      continue;
    }
    if (/\s/.test(text[end - 1]) || (letter === "_" && /\w/.test(text[end + marks.length] ?? ""))) continue;
    while (double && text[end + 2] === letter) end += 1;
    const name = letter === "~" ? "s" : double ? "strong" : "em";
    return { element: h(name, {}, ...inline(text.slice(begin, end), depth + 1)), end: end + marks.length };
  }
  return null;
}

/** [words](address "title"); a picture is a link to it, which is loaded when somebody wants to. */
function link(text, open, endOf, depth) {
  if (depth >= DEEPEST) return null;
  const middle = endOf("](", open + 1);
  if (middle < 0 || middle - open > 1000) return null;
  let end = middle + 2;
  for (let inner = 0; end < text.length && end - middle < 3000; end += 1) {
    if (text[end] === "(") inner += 1;
    else if (text[end] === ")" && inner-- === 0) break;
    else if (text[end] === "\n") return null;
  }
  if (text[end] !== ")") return null;
  const words = text.slice(open + 1, middle);
  const address = text.slice(middle + 2, end).trim().split(/\s/, 1)[0].replace(/^<(.*)>$/, "$1");
  const inside = words.trim() ? inline(words, depth + 1) : [address];
  if (!LINK.test(address)) return { element: h("span", { class: "nolink" }, ...inside), end: end + 1 };
  return { element: anchor(address, inside), end: end + 1 };
}

function anchor(address, inside) {
  return h("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow" }, ...inside);
}
