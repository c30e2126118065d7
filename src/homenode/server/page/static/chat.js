// The chat: messages with their branches, the box to write in, settings, and the conversations of this browser.

import { ApiError, ask, askJson, events } from "./api.js";
import { Conversation } from "./conversation.js";
import { h, number, plural, say, seconds, setOptions, show } from "./dom.js";
import { Drawing } from "./markdown.js";
import { conversations, settings } from "./store.js";

const FIELDS = [
  ["temperature", "Temperature", { min: 0, max: 2, step: 0.1 },
    "How much chance there is; 0 takes the likeliest word each time."],
  ["top_p", "Top p", { min: 0.01, max: 1, step: 0.05 },
    "Choose among the likeliest words that have this probability together."],
  ["top_k", "Top k", { min: 0, max: 1000, step: 1 }, "Choose among so many of the likeliest words."],
  ["min_p", "Min p", { min: 0, max: 1, step: 0.01 },
    "Leave out words less likely than this share of the likeliest one."],
  ["repetition_penalty", "Repetition penalty", { min: 0.1, max: 2, step: 0.05 },
    "Above 1: words that were there become less likely."],
  ["max_tokens", "Longest answer", { min: 1, max: 1000000, step: 1 }, "In tokens."],
  ["seed", "Seed", { min: 0, max: 2 ** 53 - 1, step: 1 }, "The same seed and question give the same answer."],
];
const LARGEST_FILE = 8 << 20;
const PICTURE = /^image\/(png|jpeg|webp|gif|bmp)$/;

export class Chat {
  constructor(root) {
    this.root = root;
    this.values = settings.get();
    this.conversation = new Conversation();
    this.files = [];
    this.running = null;
    this.models = [];
    this.turns = new Map();
    this.build();
    this.recall();
  }

  build() {
    this.list = h("ul", { class: "conversations" });
    this.model = h("select", {
      id: "model", onfocus: () => this.lookAtModels(),
      onchange: () => (this.set("model", this.model.value), this.drawModelState(), this.draw())
    });
    this.state = h("span", { class: "modelstate" });
    this.settingsButton = h("button", {
      type: "button", class: "plain", "aria-expanded": "false", "aria-controls": "settings",
      onclick: () => this.showSettings(this.panel.hidden)
    }, "Settings");
    this.exportButton = h("button", { type: "button", class: "plain", onclick: () => this.export() }, "Export");
    this.listButton = h("button", {
      type: "button", class: "plain phone", "aria-expanded": "false", "aria-controls": "history",
      onclick: () => this.showList(!this.side.classList.contains("open"))
    }, "History");
    this.log = h("div", { class: "log", role: "log", "aria-label": "Conversation", tabindex: "0" });
    this.box = h("textarea", {
      id: "message", rows: "1", placeholder: "Ask something", "aria-label": "Message", autocomplete: "off",
      oninput: () => this.grow(), onkeydown: (event) => this.typed(event),
      onpaste: (event) => this.take(event.clipboardData?.files, event)
    });
    this.sendButton = h("button", { type: "submit", class: "send" }, "Send");
    this.stopButton = h("button", {
      type: "button", class: "send stop", hidden: true, onclick: () => this.stop()
    }, "Stop");
    this.input = h("input", {
      type: "file", multiple: true, class: "unseen", tabindex: "-1", "aria-label": "Files",
      onchange: () => this.take(this.input.files)
    });
    this.attached = h("ul", { class: "attached", "aria-label": "Attached files" });
    this.note = h("p", { class: "note", role: "alert" });
    const attach = h("button", { type: "button", class: "plain", onclick: () => this.input.click() }, "Attach");
    const form = h("form", { class: "composer", onsubmit: (event) => (event.preventDefault(), this.send()) },
      this.attached, this.box, h("div", { class: "row" }, attach, this.input,
        h("span", { class: "hint" }, "Enter sends, Shift + Enter begins a line"), this.sendButton, this.stopButton));
    this.panel = this.buildSettings();
    this.side = h("aside", { class: "side", id: "history", "aria-label": "Conversations" },
      h("button", { type: "button", class: "new", onclick: () => this.begin() }, "New conversation"), this.list);
    show(this.root, this.side,
      h("div", { class: "talk" },
        h("div", { class: "top" }, this.listButton, h("label", { for: "model" }, "Model"), this.model, this.state,
          h("span", { class: "space" }), this.exportButton, this.settingsButton),
        this.log, this.note, form),
      this.panel);
    this.root.addEventListener("dragover", (event) => event.preventDefault());
    this.root.addEventListener("drop", (event) => this.take(event.dataTransfer?.files, event));
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.escape());
    this.draw();
  }

  buildSettings() {
    const system = h("textarea", {
      id: "system", rows: "5", oninput: (event) => this.set("system", event.target.value)
    });
    system.value = this.values.system ?? "";
    this.inputs = new Map();
    const fields = FIELDS.map(([name, words, limits, help]) => {
      const input = h("input", {
        type: "number", id: `set-${name}`, inputmode: "decimal", ...limits, step: "any",
        "aria-describedby": `help-${name}`, placeholder: "model's own",
        oninput: (event) => this.set(name, event.target.value === "" ? undefined : Number(event.target.value))
      });
      if (this.values[name] !== undefined) input.value = this.values[name];
      this.inputs.set(name, input);
      return h("div", { class: "field" }, h("label", { for: `set-${name}` }, words), input,
        h("p", { class: "help", id: `help-${name}` }, help));
    });
    return h("aside", { class: "panel", id: "settings", "aria-label": "Settings", hidden: true },
      h("div", { class: "panelhead" }, h("h2", {}, "Settings"),
        h("button", { type: "button", class: "plain", onclick: () => this.showSettings(false) }, "Close")),
      h("div", { class: "field" }, h("label", { for: "system" }, "System prompt"), system), ...fields);
  }

  set(name, value) {
    this.values[name] = value;
    settings.set(this.values);
  }

  showSettings(on) {
    this.panel.hidden = !on;
    this.settingsButton.setAttribute("aria-expanded", String(on));
  }

  showList(on) {
    this.side.classList.toggle("open", on);
    this.listButton.setAttribute("aria-expanded", String(on));
  }

  escape() {
    if (this.root.hidden) return;
    this.showSettings(false);
    this.showList(false);
  }

  /** Models and their states, from the server. Throws where it does not let us in. */
  async load(overview) {
    const { data } = await askJson("v1/models");
    this.models = data.map((model) => ({
      ...model, seen: overview?.models?.find((each) => each.names?.includes(model.id))
    }));
    this.drawModels();
    const own = this.models[0]?.seen?.sampling_defaults ?? {};
    for (const [name, input] of this.inputs)
      if (own[name] !== undefined) input.placeholder = `model's own: ${own[name]}`;
    this.draw();
  }

  /** The models with their states; a server of several loads one when it is asked for. */
  drawModels() {
    const chosen = this.model.value || this.values.model;
    setOptions(this.model, this.models.map(({ id, status }) =>
      [id, status && status.value !== "loaded" ? `${id} (${status.value})` : id]));
    if (this.models.some(({ id }) => id === chosen)) this.model.value = chosen;
    this.drawModelState();
  }

  drawModelState() {
    const states = { lost: "its engine is gone", hindered: "waits for a worker" };
    const model = this.models.find(({ id }) => id === this.model.value);
    const { value, progress, reason } = model?.status ?? {};
    const words = {
      loading: `is being loaded${progress ? `, ${Math.round(100 * progress)} %` : ""}`,
      unloaded: "is loaded when it is asked", failed: `could not be loaded${reason ? `: ${reason}` : ""}`,
    };
    say(this.state, words[value] ?? states[model?.seen?.state] ?? "");
  }

  /** Ask again how the models of a server of several are. */
  async lookAtModels() {
    if (!this.models.some(({ status }) => status)) return;
    const { data } = await askJson("v1/models").catch(() => ({ data: this.models }));
    const states = (models) => JSON.stringify(models.map(({ id, status }) => [id, status?.value, status?.progress]));
    if (states(data) === states(this.models)) return; // an open list stays as it is
    this.models = data.map((model) => ({ ...this.models.find(({ id }) => id === model.id), ...model }));
    this.drawModels();
  }

  focus() {
    if (matchMedia("(hover: hover)").matches) this.box.focus();
  }

  // Conversations

  async recall() {
    const all = await conversations.all();
    const last = settings.get().conversation;
    const found = all.find(({ id }) => id === last);
    if (found && this.conversation.empty && !this.running) this.conversation = new Conversation(found);
    this.draw();
    await this.drawList(all);
  }

  async drawList(all) {
    const kept = all ?? (await conversations.all());
    show(this.list, kept.map((raw) => {
      const current = raw.id === this.conversation.id;
      return h("li", { class: current ? "current" : false },
        h("button", {
          type: "button", class: "title", "aria-current": current ? "true" : false, onclick: () => this.open(raw)
        }, raw.title || "New conversation"),
        h("button", {
          type: "button", class: "quiet", "aria-label": `Delete ${raw.title}`, onclick: () => this.drop(raw)
        }, "×"));
    }));
  }

  open(raw) {
    this.stop();
    this.conversation = new Conversation(raw);
    this.remember();
    this.showList(false);
    this.draw();
    this.drawList();
    this.focus();
  }

  begin() {
    this.stop();
    this.conversation = new Conversation();
    this.remember();
    this.showList(false);
    this.draw();
    this.drawList();
    this.focus();
  }

  async drop(raw) {
    if (!confirm(`Delete “${raw.title}”?`)) return;
    await conversations.drop(raw.id);
    if (raw.id === this.conversation.id) this.begin();
    else this.drawList();
  }

  remember() {
    this.set("conversation", this.conversation.id);
  }

  async keep() {
    this.conversation.raw.changed = Date.now();
    this.remember();
    await conversations.keep(this.conversation.raw);
    await this.drawList();
  }

  export() {
    const { raw } = this.conversation;
    const shown = this.conversation.path().map(({ role, content, reasoning, calls, model }) =>
      ({ role, content, reasoning, calls, model }));
    const text = JSON.stringify({
      format: "homenode-conversation/1", title: raw.title, messages: shown, tree: raw
    }, null, 1);
    const name = (raw.title || "conversation").toLowerCase()
      .replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 40) || "conversation";
    const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    h("a", { href: url, download: `${name}.json` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }

  // Files

  async take(list, event) {
    const files = [...(list ?? [])];
    if (!files.length) return;
    event?.preventDefault();
    this.tell("");
    for (const file of files) {
      if (file.size > LARGEST_FILE) this.tell(`${file.name} is larger than 8 MiB.`);
      else if (PICTURE.test(file.type)) this.files.push({ name: file.name, url: await addressOf(file) });
      else {
        const text = await file.text();
        if (text.includes("\0") || text.includes("\ufffd")) this.tell(
          `${file.name} is no text and no picture that can be sent.`);
        else this.files.push({ name: file.name, text });
      }
    }
    this.input.value = "";
    this.drawFiles();
  }

  drawFiles() {
    show(this.attached, this.files.map((file, at) => h("li", {}, shownFile(file),
      h("button", {
        type: "button", class: "quiet", "aria-label": `Remove ${file.name}`,
        onclick: () => (this.files.splice(at, 1), this.drawFiles())
      }, "×"))));
  }

  // Writing

  typed(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      this.send();
    }
  }

  grow() {
    this.box.style.setProperty("height", "auto");
    this.box.style.setProperty("height", `${Math.min(this.box.scrollHeight, innerHeight * 0.4)}px`);
  }

  tell(text) {
    say(this.note, text);
  }

  send() {
    const content = this.box.value.trim();
    if ((!content && !this.files.length) || this.running) return;
    const parent = this.conversation.path().at(-1)?.id ?? "";
    const files = this.files;
    this.box.value = "";
    this.files = [];
    this.grow();
    this.drawFiles();
    this.answer(this.conversation.add(parent, { role: "user", content, files }));
  }

  stop() {
    this.running?.abort();
  }

  /** Ask for an answer to the message `question`, and show it as it comes. */
  async answer(question) {
    this.tell("");
    const node = this.conversation.add(question.id, {
      role: "assistant", content: "", reasoning: "", calls: [], model: this.model.value
    });
    const conversation = this.conversation;
    const running = (this.running = new AbortController());
    this.busy(true);
    this.draw();
    this.log.scrollTop = this.log.scrollHeight;
    this.keep();
    const clock = { began: performance.now(), first: 0, last: 0, pieces: 0 };
    try {
      const response = await ask("v1/chat/completions", {
        body: this.body(question), signal: running.signal, accept: "text/event-stream"
      });
      for await (const event of events(response)) {
        if (event.error) throw new ApiError(0, event.error.message);
        take(node, event, clock);
        this.redraw(node);
      }
    } catch (error) {
      if (error.name === "AbortError") node.stopped = true;
      else node.error = error instanceof ApiError ? error.message : "The connection broke before the answer was whole.";
    }
    node.figures ??= figuresOf(node, clock);
    if (this.running === running) {
      this.running = null;
      this.busy(false);
    }
    if (this.conversation === conversation) this.draw();
    this.lookAtModels();
    conversation.raw.changed = Date.now();
    await conversations.keep(conversation.raw);
    await this.drawList();
  }

  body(question) {
    const body = {
      model: this.model.value, messages: this.conversation.messages(question, this.values.system), stream: true,
      stream_options: { include_usage: true }, return_timings: true
    };
    for (const [name] of FIELDS) if (Number.isFinite(this.values[name])) body[name] = this.values[name];
    return body;
  }

  busy(on) {
    const focused = document.activeElement === this.stopButton;
    this.sendButton.hidden = on;
    this.stopButton.hidden = !on;
    this.log.setAttribute("aria-busy", String(on));
    if (focused) this.box.focus();
  }

  // Drawing

  /** Draw once in each frame, however many pieces come. */
  redraw(node) {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      const end = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 80;
      this.turns.get(node.id)?.update();
      if (end) this.log.scrollTop = this.log.scrollHeight;
    });
  }

  draw() {
    const path = this.conversation.path();
    const turns = new Map();
    for (const node of path) turns.set(node.id, this.turns.get(node.id) ?? new Turn(this, node));
    this.turns = turns;
    for (const turn of turns.values()) turn.update();
    const elements = [...turns.values()].map((turn) => turn.element);
    show(this.log, elements.length ? elements : this.welcome());
    this.exportButton.disabled = this.conversation.empty;
  }

  welcome() {
    const seen = this.models.find(({ id }) => id === this.model.value)?.seen;
    const facts = [
      seen?.details.architecture, seen && `${plural(seen.details.threads ?? 0, "thread")}`,
      seen && `${number(seen.max_model_len)} tokens of context`
    ].filter(Boolean);
    return h("div", { class: "welcome" }, h("h2", {}, this.model.value || "homenode"),
      h("p", {}, facts.join(" · ") || "Ask something, or drop a file here."),
      facts.length > 0 && h("p", {},
        "Ask something, or drop a file here. What you write stays in this browser and on this server."));
  }
}

/** One message, what can be done with it below, and its branches. */
class Turn {
  constructor(chat, node) {
    this.chat = chat;
    this.node = node;
    this.body = h("div", { class: "body", data: { role: node.role } });
    this.foot = h("div", { class: "foot" });
    this.element = h("article", {
      class: `turn ${node.role}`, "aria-label": node.role === "user" ? "You" : "Answer"
    }, this.body, this.foot);
    if (node.role === "assistant") this.buildAnswer();
    else this.drawQuestion();
  }

  buildAnswer() {
    this.thoughts = h("div", { class: "thoughts", hidden: true });
    this.summary = h("summary", {}, "Thoughts");
    this.details = h("details", {
      hidden: true, ontoggle: () => (this.thoughts.hidden = !this.details.open)
    }, this.summary, this.thoughts);
    this.text = h("div", { class: "text" });
    this.drawing = new Drawing(this.text);
    this.calls = h("div", { class: "calls" });
    this.error = h("p", { class: "error", hidden: true });
    this.body.append(this.details, this.text, this.calls);
    this.element.insertBefore(this.error, this.foot);
  }

  drawQuestion() {
    const { content, files = [] } = this.node;
    show(this.body, content && h("p", { class: "asked" }, content),
      files.length > 0 && h("ul", { class: "attached" }, files.map((file) => h("li", {}, shownFile(file)))));
  }

  update() {
    if (this.node.role === "assistant") this.updateAnswer();
    this.drawFoot();
  }

  updateAnswer() {
    const { content, reasoning, calls = [], error } = this.node;
    this.drawing.draw(content);
    this.details.hidden = !reasoning;
    if (reasoning) {
      say(this.thoughts, reasoning);
      say(this.summary, this.isRunning && !content ? "Thinking …" : "Thoughts");
    }
    if (calls.length) show(this.calls, calls.map((call) => h("div", { class: "call" },
      h("span", { class: "callname" }, `Tool call: ${call.name}`),
      h("pre", { tabindex: "0" }, pretty(call.arguments)))));
    this.error.hidden = !error;
    say(this.error, error ?? "");
    this.element.classList.toggle("waits", this.isRunning && !content && !reasoning && !calls.length);
  }

  get isRunning() {
    return this.chat.running !== null && this.chat.conversation.path().at(-1) === this.node;
  }

  drawFoot() {
    const { chat, node } = this;
    const state = JSON.stringify([chat.running !== null, chat.conversation.place(node), node.figures, node.stopped]);
    if (state === this.footState) return;
    this.footState = state;
    const [at, count] = chat.conversation.place(node);
    const button = (words, then) => h("button", {
      type: "button", class: "quiet", onclick: then, disabled: chat.running !== null
    }, words);
    const turn = (words, text, step) => h("button", {
      type: "button", class: "quiet", "aria-label": words, disabled: chat.running !== null,
      onclick: () => (chat.conversation.turnTo(node, step), chat.draw(), chat.keep())
    }, text);
    const branches = count > 1 && h("span", { class: "branches" },
      turn("Previous version", "‹", -1), h("span", {}, `${at + 1} / ${count}`), turn("Next version", "›", 1));
    const acts = node.role === "user" ? [button("Edit", () => this.edit())] : [
      button("Retry", () => chat.answer(chat.conversation.node(node.parent))),
      button("Copy", () => navigator.clipboard?.writeText(node.content).catch(() => {}))
    ];
    show(this.foot, branches, acts,
      node.role === "assistant" && h("span", { class: "figures" }, figureWords(node, chat.models.length > 1)));
  }

  edit() {
    const box = h("textarea", { rows: "3", "aria-label": "Edit" });
    box.value = this.node.content;
    const leave = () => (this.drawQuestion(), (this.foot.hidden = false));
    const save = () => {
      const content = box.value.trim();
      leave();
      if (content) this.chat.answer(
        this.chat.conversation.add(this.node.parent, { role: "user", content, files: this.node.files ?? [] }));
    };
    this.foot.hidden = true;
    show(this.body, h("div", { class: "editor" }, box, h("div", { class: "row" },
      h("button", { type: "button", class: "send", onclick: save }, "Save"),
      h("button", { type: "button", class: "plain", onclick: leave }, "Cancel"))));
    box.focus();
  }
}

/** Put what an event brings into the message. */
function take(node, event, clock) {
  const choice = event.choices?.[0];
  const delta = choice?.delta ?? {};
  if (delta.content) node.content += delta.content;
  node.reasoning += delta.reasoning_content ?? delta.reasoning ?? "";
  for (const part of delta.tool_calls ?? []) {
    const call = (node.calls[part.index ?? 0] ??= { name: "", arguments: "" });
    call.name += part.function?.name ?? "";
    call.arguments += part.function?.arguments ?? "";
  }
  if (delta.content || delta.reasoning_content || delta.reasoning || delta.tool_calls) {
    clock.last = performance.now();
    clock.first ||= clock.last;
    clock.pieces += 1;
  }
  if (event.timings) node.timings = event.timings;
  if (event.usage) node.usage = event.usage;
  if (choice?.finish_reason) node.finish = choice.finish_reason;
}

/** What is told below an answer: from the server's own figures, else from what was seen here. */
function figuresOf({ timings, usage, finish }, clock) {
  const tokens = usage?.completion_tokens ?? timings?.predicted_n ?? clock.pieces;
  const span = timings ? timings.predicted_ms / 1000 : (clock.last - clock.first) / 1000;
  const rate = timings?.predicted_per_second ?? (span > 0 && tokens > 1 ? (tokens - 1) / span : undefined);
  return {
    tokens, rate, finish,
    first: clock.first ? (clock.first - clock.began) / 1000 : undefined,
    prompt: usage?.prompt_tokens ?? (timings ? timings.prompt_n + timings.cache_n : undefined),
    cached: usage?.prompt_tokens_details?.cached_tokens ?? timings?.cache_n,
    stored: timings?.disk_n,
    drafted: timings?.draft_n,
    accepted: timings?.draft_n_accepted,
  };
}

function figureWords({ figures, stopped, model }, named) {
  if (!figures) return "";
  const { tokens, rate, first, prompt, cached, stored, drafted, accepted, finish } = figures;
  return [
    stopped && "stopped",
    finish === "length" && "cut at the longest answer",
    tokens > 0 && plural(tokens, "token"),
    rate > 0 && `${rate.toFixed(rate < 10 ? 1 : 0)} tok/s`,
    first !== undefined && `first after ${seconds(first)}`,
    prompt !== undefined && `${number(cached ?? 0)} of ${number(prompt)} prompt tokens cached`,
    stored > 0 && `${number(stored)} from disk`,
    drafted > 0 && `${number(accepted)} of ${number(drafted)} drafted tokens right`,
    named && model,
  ].filter(Boolean).join(" · ");
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 1);
  } catch {
    return text;
  }
}

function shownFile({ name, url }) {
  return url ? h("img", { src: url, alt: name, title: name }) : h("span", {}, name);
}

function addressOf(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
