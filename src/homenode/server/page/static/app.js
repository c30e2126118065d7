// Which view is shown, and the key. Views are made when they are looked at first.

import { ApiError, askJson, key, onRefused } from "./api.js";
import { Chat } from "./chat.js";
import { h, say, show } from "./dom.js";
import { MachineView } from "./machine.js";
import { PlansView } from "./plans.js";
import { ServersView } from "./servers.js";

const VIEWS = {
  server: [["chat", "Chat", Chat], ["machine", "Machine", MachineView], ["plans", "Plans", PlansView]],
  proxy: [["chat", "Chat", Chat], ["servers", "Servers", ServersView]],
};
const status = document.getElementById("status");
const tabs = document.getElementById("tabs");
const sections = [...document.querySelectorAll("main > section")];
const made = new Map();
let kind = "server";
let wrong = false;

async function start() {
  onRefused(() => {
    wrong = key.get() !== "";
    key.set("");
    askForKey();
  });
  addEventListener("hashchange", go);
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById("content").focus();
  });
  drawTabs();
  go();
  await enter();
}

/** Ask what this is, and show it; where a key is wanted, ask for that first. */
async function enter() {
  try {
    const overview = await askJson("overview").catch((error) => {
      if (error.status === 401 || error.status === 0) throw error;
      say(status, error.message); // one can chat all the same
      return null;
    });
    if (overview) kind = overview.kind;
    if (overview) say(status, "");
    drawTabs();
    await view("chat").load(overview);
    go();
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) return;
    say(status, error.message);
    drawTabs();
    go();
    setTimeout(enter, 3000);
  }
}

function drawTabs() {
  show(tabs, VIEWS[kind].map(([name, words]) => h("a", { href: `#${name}`, id: `tab-${name}` }, words)));
}

function view(name) {
  if (!made.has(name)) {
    const [, , View] = VIEWS[kind].find(([each]) => each === name);
    made.set(name, new View(document.getElementById(`view-${name}`)));
  }
  return made.get(name);
}

function go() {
  const names = VIEWS[kind].map(([name]) => name);
  const asked = location.hash.slice(1);
  const name = names.includes(asked) ? asked : "chat";
  for (const [each, words] of VIEWS[kind]) {
    const tab = document.getElementById(`tab-${each}`);
    if (each === name) {
      tab?.setAttribute("aria-current", "page");
      document.title = `${words} – homenode`;
    } else tab?.removeAttribute("aria-current");
  }
  for (const section of sections) section.hidden = section.id !== `view-${name}`;
  const shown = view(name);
  for (const [each, other] of made) if (each !== name) other.leave?.();
  shown.enter?.();
  shown.focus?.();
}

function askForKey() {
  const root = document.getElementById("view-key");
  for (const each of made.values()) each.leave?.();
  for (const section of sections) section.hidden = section !== root;
  show(tabs);
  const input = h("input", {
    type: "password", id: "key", autocomplete: "current-password", required: true, spellcheck: "false"
  });
  const form = h("form", { onsubmit: (event) => {
    event.preventDefault();
    key.set(input.value.trim());
    root.hidden = true;
    enter();
  } },
  h("h2", {}, "This server asks for a key"),
  h("p", {}, "It is kept in this tab and forgotten with it."),
  h("label", { for: "key" }, "Key"), input,
  h("p", { class: "error", role: "alert", hidden: !wrong },
    wrong ? "This key is wrong: the server does not accept it." : ""),
  h("button", { type: "submit", class: "send" }, "Open"));
  show(root, form);
  input.focus();
}

start();
