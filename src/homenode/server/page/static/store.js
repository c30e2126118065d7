// Conversations, kept in this browser and nowhere else.

const NAME = "homenode";
const TABLE = "conversations";
let opened = null;
const unkept = new Map(); // where the browser keeps nothing, as in a private window: until the page is left

function open() {
  opened ??= new Promise((resolve) => {
    try {
      const request = indexedDB.open(NAME, 1);
      request.onupgradeneeded = () => request.result.createObjectStore(TABLE, { keyPath: "id" });
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => resolve(null);
    } catch {
      resolve(null);
    }
  });
  return opened;
}

async function run(mode, work) {
  const database = await open();
  if (!database) return undefined;
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(TABLE, mode);
    const request = work(transaction.objectStore(TABLE));
    transaction.oncomplete = () => resolve(request.result);
    transaction.onerror = () => reject(transaction.error);
  });
}

export const conversations = {
  async all() {
    const kept = (await run("readonly", (table) => table.getAll())) ?? [...unkept.values()];
    return kept.sort((a, b) => b.changed - a.changed);
  },
  async keep(conversation) {
    unkept.set(conversation.id, conversation);
    await run("readwrite", (table) => table.put(conversation));
  },
  async drop(id) {
    unkept.delete(id);
    await run("readwrite", (table) => table.delete(id));
  },
};

const SETTINGS = "homenode.settings";

export const settings = {
  get() {
    try {
      return JSON.parse(localStorage.getItem(SETTINGS)) ?? {};
    } catch {
      return {};
    }
  },
  set(values) {
    try {
      localStorage.setItem(SETTINGS, JSON.stringify(values));
    } catch {
      // Nothing is kept in this browser.
    }
  },
};
