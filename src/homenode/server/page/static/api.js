// The way to the server that this page comes from, and to no other. Addresses are below the page's own.

const KEY = "homenode.key"; // in the storage of the tab: it goes with it

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (text) => (text ? sessionStorage.setItem(KEY, text) : sessionStorage.removeItem(KEY)),
};

let refused = () => {};

/** `then` is called where the server wants a key, or another one. */
export function onRefused(then) {
  refused = then;
}

export async function ask(path, { body, signal, accept = "application/json" } = {}) {
  const headers = { Accept: accept };
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const method = body === undefined ? "GET" : "POST";
  const text = body === undefined ? undefined : JSON.stringify(body);
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), {
      method, headers, body: text, signal, credentials: "same-origin"
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached.");
  }
  if (response.ok) return response;
  if (response.status === 401) refused();
  throw new ApiError(response.status, await messageOf(response));
}

export const askJson = async (path, options) => (await ask(path, options)).json();

async function messageOf(response) {
  try {
    const { error } = await response.json();
    return error.message ?? String(error);
  } catch {
    return `The server answered ${response.status}.`;
  }
}

/** The data of each event of a stream, until [DONE]. */
export async function* events(response) {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const chunk of chunksOf(response.body)) {
    rest += decoder.decode(chunk, { stream: true });
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const text = line.slice(5).trim();
      if (text === "[DONE]") return;
      yield JSON.parse(text);
    }
  }
}

async function* chunksOf(body) {
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
