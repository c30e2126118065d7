// The OpenAPI document of this server, drawn: its paths, and what requests and answers hold. Nothing else is asked for.

const KEY = "homenode.key"; // in the storage of the tab, where the page at `/` keeps it as well
const METHODS = ["get", "post", "put", "patch", "delete"];
const at = (id) => document.getElementById(id);

function made(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children.filter((child) => child !== null));
  return element;
}

async function load() {
  const key = sessionStorage.getItem(KEY);
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const response = await fetch(new URL("openapi.json", document.baseURI), { headers, credentials: "same-origin" });
  if (response.status === 401) return askForKey(Boolean(key));
  if (!response.ok) throw new Error(`The server answered ${response.status}.`);
  show(await response.json());
}

function askForKey(wrong) {
  at("door").hidden = false;
  at("status").textContent = wrong ? "This key is wrong." : "This server asks for a key.";
  at("key").focus();
}

function show(spec) {
  at("door").hidden = true;
  at("status").textContent = "";
  at("search").hidden = false;
  const version = spec.info?.version ? `${spec.info.title ?? "homenode"} ${spec.info.version}, as ` : "As ";
  at("about").replaceChildren(version, made("a", { href: "openapi.json" }, "openapi.json"), " has it.");
  const operations = Object.entries(spec.paths ?? {}).flatMap(([path, methods]) =>
    METHODS.filter((method) => methods[method]).map((method) => drawn(spec, path, method, methods[method])),
  );
  at("paths").replaceChildren(...operations);
}

/** One operation; what it holds is drawn when it is opened. */
function drawn(spec, path, method, operation) {
  const summary = made(
    "summary",
    {},
    made("span", { class: "method" }, method.toUpperCase()),
    made("code", {}, path),
    made("span", { class: "summary" }, operation.summary ? ` ${operation.summary}` : ""),
  );
  const details = made("details", { "data-path": path, "data-words": `${path} ${operation.summary ?? ""}` }, summary);
  const open = () => details.append(made("div", {}, ...parts(spec, operation)));
  details.addEventListener("toggle", open, { once: true });
  return details;
}

function parts(spec, operation) {
  const found = [];
  if (operation.description) found.push(made("p", {}, operation.description));
  if (operation.parameters?.length) {
    const fields = operation.parameters.map((each) => field(spec, each.name, each.schema, each.required, [], each.in));
    found.push(made("h2", {}, "Parameters"), made("ul", {}, ...fields));
  }
  for (const [kind, { schema }] of Object.entries(operation.requestBody?.content ?? {})) {
    found.push(made("h2", {}, `Body, ${kind}`), ...body(spec, schema, []));
  }
  for (const [status, answer] of Object.entries(operation.responses ?? {})) {
    found.push(made("h2", {}, `Answer ${status}`), made("p", { class: "quiet" }, answer.description ?? ""));
    for (const { schema } of Object.values(answer.content ?? {})) if (schema) found.push(...body(spec, schema, []));
  }
  return found;
}

/** What a schema refers to, and the names on the way there. */
function resolved(spec, schema, seen) {
  let [now, names] = [schema ?? {}, seen];
  while (now.$ref) {
    const name = now.$ref.split("/").pop();
    if (names.includes(name)) return [{ description: `again ${name}` }, names];
    names = [...names, name];
    now = spec.components?.schemas?.[name] ?? {};
  }
  return [now, names];
}

function body(spec, schema, seen) {
  const [now, names] = resolved(spec, schema, seen);
  const needed = now.required ?? [];
  const fields = Object.entries(now.properties ?? {}).map(([name, each]) =>
    field(spec, name, each, needed.includes(name), names),
  );
  const inner = (now.anyOf ?? now.oneOf ?? []).concat(now.items ?? []).flatMap((each) => body(spec, each, names));
  return [
    ...(now.description ? [made("p", {}, now.description)] : []),
    ...(fields.length ? [made("ul", {}, ...fields)] : [made("p", { class: "quiet" }, kind(spec, now, names))]),
    ...(fields.length ? [] : inner.filter((each) => each.tagName === "UL")),
  ];
}

function field(spec, name, schema, needed, seen, place = "") {
  const [now, names] = resolved(spec, schema, seen);
  const words = [kind(spec, now, names), needed ? "required" : "", place, limits(now)].filter(Boolean).join(", ");
  const item = made("li", {}, made("code", {}, name), made("span", { class: "quiet" }, ` ${words}`));
  if (now.description) item.append(` ${now.description}`);
  const inside = [now, ...(now.anyOf ?? now.oneOf ?? []), now.items].filter(Boolean);
  const holds = inside.map((each) => resolved(spec, each, names)).find(([each]) => each.properties);
  if (holds) item.append(folded(spec, ...holds));
  return item;
}

/** The fields of an object within another, drawn when they are opened. */
function folded(spec, schema, seen) {
  const details = made("details", {}, made("summary", {}, schema.title ?? "fields"));
  const open = () => details.append(made("div", {}, ...body(spec, schema, seen)));
  details.addEventListener("toggle", open, { once: true });
  return details;
}

function kind(spec, schema, seen) {
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  const several = schema.anyOf ?? schema.oneOf;
  if (several) return [...new Set(several.map((each) => kind(spec, ...resolved(spec, each, seen))))].join(" or ");
  if (schema.type === "array") return `list of ${kind(spec, ...resolved(spec, schema.items, seen))}`;
  return schema.title ?? [].concat(schema.type ?? "anything").join(" or ");
}

function limits(schema) {
  const from = schema.minimum ?? schema.exclusiveMinimum;
  const to = schema.maximum ?? schema.exclusiveMaximum;
  const range = from !== undefined || to !== undefined ? `${from ?? "…"} to ${to ?? "…"}` : "";
  const usual = schema.default !== undefined ? `default ${JSON.stringify(schema.default)}` : "";
  return [range, usual].filter(Boolean).join(", ");
}

at("door").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, at("key").value);
  begin();
});
at("search").addEventListener("input", (event) => {
  const word = event.target.value.toLowerCase();
  for (const each of at("paths").children) each.hidden = !each.dataset.words.toLowerCase().includes(word);
});
const begin = () => load().catch((error) => (at("status").textContent = error.message));
begin();
