// TeX as models write it, drawn as MathML. What is not known is shown as it was written.

import { math } from "./dom.js";

const LETTERS = {
  alpha: "α", beta: "β", gamma: "γ", delta: "δ", epsilon: "ϵ", varepsilon: "ε", zeta: "ζ", eta: "η", theta: "θ",
  vartheta: "ϑ", iota: "ι", kappa: "κ", lambda: "λ", mu: "μ", nu: "ν", xi: "ξ", pi: "π", varpi: "ϖ", rho: "ρ",
  varrho: "ϱ", sigma: "σ", varsigma: "ς", tau: "τ", upsilon: "υ", phi: "ϕ", varphi: "φ", chi: "χ", psi: "ψ",
  omega: "ω", Gamma: "Γ", Delta: "Δ", Theta: "Θ", Lambda: "Λ", Xi: "Ξ", Pi: "Π", Sigma: "Σ", Upsilon: "Υ",
  Phi: "Φ", Psi: "Ψ", Omega: "Ω", infty: "∞", partial: "∂", nabla: "∇", ell: "ℓ", hbar: "ℏ", Re: "ℜ", Im: "ℑ",
  emptyset: "∅", varnothing: "∅", aleph: "ℵ", imath: "ı", jmath: "ȷ", degree: "°", prime: "′",
};
const OPERATORS = {
  times: "×", cdot: "⋅", div: "÷", pm: "±", mp: "∓", ast: "∗", star: "⋆", circ: "∘", bullet: "∙", oplus: "⊕",
  otimes: "⊗", odot: "⊙", leq: "≤", le: "≤", geq: "≥", ge: "≥", neq: "≠", ne: "≠", equiv: "≡", approx: "≈",
  sim: "∼", simeq: "≃", cong: "≅", propto: "∝", ll: "≪", gg: "≫", prec: "≺", succ: "≻", in: "∈", notin: "∉",
  ni: "∋", subset: "⊂", subseteq: "⊆", supset: "⊃", supseteq: "⊇", cup: "∪", cap: "∩", setminus: "∖", land: "∧",
  wedge: "∧", lor: "∨", vee: "∨", lnot: "¬", neg: "¬", forall: "∀", exists: "∃", nexists: "∄", to: "→",
  rightarrow: "→", leftarrow: "←", leftrightarrow: "↔", Rightarrow: "⇒", implies: "⟹", Leftarrow: "⇐",
  Leftrightarrow: "⇔", iff: "⟺", mapsto: "↦", uparrow: "↑", downarrow: "↓", longrightarrow: "⟶", mid: "∣",
  parallel: "∥", perp: "⊥", angle: "∠", therefore: "∴", because: "∵", ldots: "…", dots: "…", cdots: "⋯",
  vdots: "⋮", ddots: "⋱", colon: ":", lbrace: "{", rbrace: "}", langle: "⟨", rangle: "⟩", lfloor: "⌊",
  rfloor: "⌋", lceil: "⌈", rceil: "⌉", vert: "|", Vert: "‖", backslash: "∖", "{": "{", "}": "}", "|": "‖",
  "%": "%", "#": "#", "&": "&", $: "$", _: "_",
};
const LARGE = {
  sum: "∑", prod: "∏", coprod: "∐", int: "∫", iint: "∬", iiint: "∭", oint: "∮", bigcup: "⋃", bigcap: "⋂",
  bigoplus: "⨁", bigotimes: "⨂", bigvee: "⋁", bigwedge: "⋀",
};
const INTEGRALS = new Set(["int", "iint", "iiint", "oint"]);
const FUNCTIONS = new Set(
  ("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp lim limsup liminf max min sup inf det dim "
  + "ker deg gcd Pr arg argmax argmin mod").split(" "),
);
const BELOW = new Set("lim limsup liminf max min sup inf det gcd Pr argmax argmin".split(" "));
const ACCENTS = {
  hat: "^", widehat: "^", bar: "¯", overline: "¯", tilde: "~", widetilde: "~", vec: "→", dot: "˙", ddot: "¨",
  check: "ˇ"
};
const SPACES = {
  ",": "0.17em", ":": "0.22em", ";": "0.28em", "!": "-0.17em", " ": "0.25em", quad: "1em", qquad: "2em"
};
const STYLES = {
  mathbb: "double-struck", mathbf: "bold", mathcal: "script", mathfrak: "fraktur", mathrm: "normal",
  mathsf: "sans-serif", mathtt: "monospace", boldsymbol: "bold-italic", bm: "bold-italic", operatorname: "normal"
};
const FIRST = {
  "double-struck": [0x1d538, 0x1d552, 0x1d7d8], bold: [0x1d400, 0x1d41a, 0x1d7ce], script: [0x1d49c, 0x1d4b6],
  fraktur: [0x1d504, 0x1d51e], "sans-serif": [0x1d5a0, 0x1d5ba, 0x1d7e2], monospace: [0x1d670, 0x1d68a, 0x1d7f6],
  "bold-italic": [0x1d468, 0x1d482]
};
const HOLES = {
  ℂ: "double-struckC", ℍ: "double-struckH", ℕ: "double-struckN", ℙ: "double-struckP", ℚ: "double-struckQ",
  ℝ: "double-struckR", ℤ: "double-struckZ", ℬ: "scriptB", ℰ: "scriptE", ℱ: "scriptF", ℋ: "scriptH", ℐ: "scriptI",
  ℒ: "scriptL", ℳ: "scriptM", ℛ: "scriptR", ℭ: "frakturC", ℌ: "frakturH", ℑ: "frakturI", ℜ: "frakturR", ℨ: "frakturZ"
};
const HOLE_OF = Object.fromEntries(Object.entries(HOLES).map(([letter, name]) => [name, letter]));
const FENCES = {
  pmatrix: ["(", ")"], bmatrix: ["[", "]"], Bmatrix: ["{", "}"], vmatrix: ["|", "|"], Vmatrix: ["‖", "‖"],
  cases: ["{", ""]
};
// A name such as `constructor` is in none of them.
for (const table of [LETTERS, OPERATORS, LARGE, ACCENTS, SPACES, STYLES, FENCES]) Object.setPrototypeOf(table, null);
const DEEPEST = 40;
const LONGEST = 4000;

/** A formula as an element; as text where it is longer than any formula. */
export function formula(text, block) {
  const root = math("math", { display: block ? "block" : "inline" });
  if (text.length > LONGEST) root.append(math("mtext", {}, text));
  else root.append(math("mrow", {}, ...new FormulaReader(text).row(() => false, 0)));
  return root;
}

class FormulaReader {
  constructor(text) {
    this.tokens = text.match(/\\[a-zA-Z]+\*?|\\[^a-zA-Z]|[0-9]+(?:\.[0-9]+)?|\s+|[^\s]/gu) ?? [];
    this.at = 0;
  }

  peek() {
    while (this.at < this.tokens.length && /^\s+$/.test(this.tokens[this.at])) this.at += 1;
    return this.tokens[this.at];
  }

  row(ends, depth) {
    const out = [];
    for (let token = this.peek(); token !== undefined && !ends(token); token = this.peek()) {
      const before = this.at;
      const made = this.scripted(depth);
      if (made) out.push(made);
      if (this.at === before) this.at += 1;
    }
    return out;
  }

  /** One thing with what stands above and below it. */
  scripted(depth) {
    const name = this.peek().slice(1);
    const large = name in LARGE;
    const base = this.peek() === "^" || this.peek() === "_" ? math("mrow") : this.single(depth);
    if (!base) return base;
    let above = null;
    let below = null;
    for (let token = this.peek(); token === "^" || token === "_" || token === "'"; token = this.peek()) {
      this.at += 1;
      if (token === "'") above = math("mrow", {}, ...(above ? [above] : []), math("mo", {}, "′"));
      else if (token === "^") above = this.argument(depth);
      else below = this.argument(depth);
    }
    if (!above && !below) return base;
    const limits = (large && !INTEGRALS.has(name)) || BELOW.has(name);
    if (above && below) return math(limits ? "munderover" : "msubsup", {}, base, below, above);
    if (above) return math(limits ? "mover" : "msup", {}, base, above);
    return math(limits ? "munder" : "msub", {}, base, below);
  }

  argument(depth) {
    const token = this.peek();
    if (token === undefined) return math("mrow");
    if (token === "{") return this.single(depth);
    if (/^[0-9]{2,}/.test(token)) {
      this.tokens[this.at] = token.slice(1); // x^23 is x squared, and 3
      return math("mn", {}, token[0]);
    }
    return this.single(depth) ?? math("mrow");
  }

  single(depth) {
    const token = this.peek();
    this.at += 1;
    if (depth > DEEPEST) return math("mtext", {}, token);
    if (token === "{") {
      const inside = this.row((next) => next === "}", depth + 1);
      this.at += 1;
      return math("mrow", {}, ...inside);
    }
    if (token === "}" || token === "&") return null;
    if (token.startsWith("\\")) return this.command(token.slice(1), depth + 1);
    if (/^[0-9]/.test(token)) return math("mn", {}, token);
    if (/^\p{L}$/u.test(token)) return math("mi", {}, token);
    return math("mo", {}, token === "-" ? "−" : token === "*" ? "∗" : token);
  }

  command(name, depth) {
    if (name in LETTERS) return math("mi", {}, LETTERS[name]);
    if (name in OPERATORS) return math("mo", {}, OPERATORS[name]);
    if (name in LARGE) return math("mo", { largeop: "true", movablelimits: "false" }, LARGE[name]);
    if (FUNCTIONS.has(name)) return math("mi", { mathvariant: "normal" }, name);
    if (name in SPACES) return math("mspace", { width: SPACES[name] });
    if (name in ACCENTS) return math("mover", { accent: "true" }, this.argument(depth),
      math("mo", { stretchy: String(name.startsWith("wide") || name === "overline") }, ACCENTS[name]));
    if (name in STYLES) return this.styled(STYLES[name], name === "operatorname");
    switch (name) {
      case "frac": case "dfrac": case "tfrac": case "cfrac":
        return math("mfrac", {}, this.argument(depth), this.argument(depth));
      case "binom":
        return math("mrow", {}, math("mo", {}, "("),
          math("mfrac", { linethickness: "0" }, this.argument(depth), this.argument(depth)), math("mo", {}, ")"));
      case "sqrt": {
        if (this.peek() !== "[") return math("msqrt", {}, this.argument(depth));
        this.at += 1;
        const degree = math("mrow", {}, ...this.row((next) => next === "]", depth));
        this.at += 1;
        return math("mroot", {}, this.argument(depth), degree);
      }
      case "text": case "textrm": case "textbf": case "textit": case "mbox":
        return math("mtext", {}, this.raw());
      case "left": return this.fenced(depth);
      case "begin": return this.environment(depth);
      case "underbrace": return math("munder", {}, this.argument(depth), math("mo", { stretchy: "true" }, "⏟"));
      case "overbrace": return math("mover", {}, this.argument(depth), math("mo", { stretchy: "true" }, "⏞"));
      case "boxed": return math("mrow", { class: "boxed" }, this.argument(depth));
      case "\\": case "displaystyle": case "textstyle": case "limits": case "nolimits": case "right":
      case "big": case "Big": case "bigg": case "Bigg": case "bigl": case "bigr": case "Bigl": case "Bigr":
      case "middle":
        return null;
      case "not": return math("mo", {}, `${textOf(this.argument(depth))}\u0338`);
      default:
        return math("mtext", {}, `\\${name}`);
    }
  }

  /** The text of a group, blanks and all. */
  raw() {
    if (this.peek() !== "{") return this.tokens[this.at++] ?? "";
    let text = "";
    let open = 0;
    for (; this.at < this.tokens.length; this.at += 1) {
      const token = this.tokens[this.at];
      if (token === "{" && open++ === 0) continue;
      if (token === "}" && --open === 0) break;
      text += token;
    }
    this.at += 1;
    return text.replace(/ /g, "\u00a0");
  }

  styled(style, isName) {
    const text = this.raw().replace(/\u00a0/g, " ");
    return math("mi", { mathvariant: "normal" },
      isName || style === "normal" ? text : [...text].map((letter) => lettered(style, letter)).join(""));
  }

  delimiter() {
    const token = this.peek() ?? ".";
    this.at += 1;
    if (token === ".") return "";
    return token.startsWith("\\") ? (OPERATORS[token.slice(1)] ?? "") : token;
  }

  fenced(depth) {
    const open = this.delimiter();
    const inside = this.row((next) => next === "\\right", depth);
    this.at += 1;
    const close = this.delimiter();
    const fence = (text) => math("mo", { stretchy: "true", fence: "true" }, text);
    return math("mrow", {}, open && fence(open), ...inside, close && fence(close));
  }

  environment(depth) {
    const kind = this.raw().replace("*", "");
    if (kind === "array") this.raw();
    const rows = [[]];
    while (this.at < this.tokens.length) {
      const inside = this.row((next) => next === "&" || next === "\\\\" || next === "\\end", depth);
      rows.at(-1).push(math("mtd", {}, ...inside));
      const end = this.peek();
      this.at += 1;
      if (end === "\\\\") rows.push([]);
      if (end === "\\end" || end === undefined) break;
    }
    this.raw();
    if (rows.at(-1).every((cell) => !cell.hasChildNodes())) rows.pop();
    const [open, close] = FENCES[kind] ?? ["", ""];
    const fence = (text) => text && math("mo", { stretchy: "true", fence: "true" }, text);
    const aligned = /^(aligned|align|split|cases|gathered|eqnarray)$/.test(kind);
    const table = math("mtable", { class: aligned ? "aligned" : false },
      ...rows.map((cells) => math("mtr", {}, ...cells)));
    return math("mrow", {}, fence(open), table, fence(close));
  }
}

const textOf = (element) => element.textContent;

function lettered(style, letter) {
  const hole = HOLE_OF[`${style}${letter}`];
  if (hole) return hole;
  const [capitals, small, digits] = FIRST[style];
  const code = letter.charCodeAt(0);
  if (code >= 65 && code <= 90) return String.fromCodePoint(capitals + code - 65);
  if (code >= 97 && code <= 122) return String.fromCodePoint(small + code - 97);
  if (digits && code >= 48 && code <= 57) return String.fromCodePoint(digits + code - 48);
  return letter;
}
