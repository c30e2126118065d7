// A conversation as a tree: who edits a question or asks for another answer begins a branch, and all branches stay.

export class Conversation {
  constructor(raw) {
    this.raw = raw ?? { id: newId(), title: "", changed: Date.now(), nodes: {}, roots: [], chosen: {} };
  }

  get id() {
    return this.raw.id;
  }

  get title() {
    return this.raw.title || "New conversation";
  }

  get empty() {
    return this.raw.roots.length === 0;
  }

  node(id) {
    return this.raw.nodes[id];
  }

  /** The messages that are shown, from the first to the last. */
  path() {
    const out = [];
    for (let id = this.chosenOf(""); id; id = this.chosenOf(id)) out.push(this.node(id));
    return out;
  }

  childrenOf(parent) {
    return parent ? this.node(parent).children : this.raw.roots;
  }

  chosenOf(parent) {
    const children = this.childrenOf(parent);
    return children.includes(this.raw.chosen[parent]) ? this.raw.chosen[parent] : children.at(-1);
  }

  /** Add a message behind `parent` ("": the first), and show it. */
  add(parent, message) {
    const node = { id: newId(), parent, children: [], ...message };
    this.raw.nodes[node.id] = node;
    this.childrenOf(parent).push(node.id);
    this.raw.chosen[parent] = node.id;
    if (!this.raw.title && node.role === "user") this.raw.title = titleOf(node);
    return node;
  }

  /** Where a message stands among those that could be in its place: [number from 0, how many]. */
  place(node) {
    const siblings = this.childrenOf(node.parent);
    return [siblings.indexOf(node.id), siblings.length];
  }

  turnTo(node, step) {
    const siblings = this.childrenOf(node.parent);
    this.raw.chosen[node.parent] = siblings[(siblings.indexOf(node.id) + step + siblings.length) % siblings.length];
  }

  /** What a server is sent to answer behind the message `last`. */
  messages(last, system) {
    const out = [];
    for (let node = last; node; node = this.node(node.parent)) {
      if (node.role === "user" || node.content) out.unshift({ role: node.role, content: contentOf(node) });
    }
    if (system) out.unshift({ role: "system", content: system });
    return out;
  }
}

/** Text files are part of the text, pictures are parts beside it. */
function contentOf({ content, files = [] }) {
  const texts = files.filter((file) => file.text !== undefined);
  const text = [content, ...texts.map(({ name, text: inside }) => `${name}:\n${fenced(inside)}`)]
    .filter(Boolean).join("\n\n");
  const pictures = files.filter((file) => file.url);
  if (!pictures.length) return text;
  return [{ type: "text", text }, ...pictures.map(({ url }) => ({ type: "image_url", image_url: { url } }))];
}

function fenced(text) {
  const longest = Math.max(2, ...(text.match(/`{3,}/g) ?? []).map((marks) => marks.length));
  const marks = "`".repeat(longest + 1);
  return `${marks}\n${text.replace(/\n$/, "")}\n${marks}`;
}

function titleOf({ content, files = [] }) {
  const text = (content || files[0]?.name || "").replace(/\s+/g, " ").trim();
  return text.length > 60 ? `${text.slice(0, 58)}…` : text;
}

function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(9)), (byte) => byte.toString(36).padStart(2, "0")).join("");
}
