// A kvorum client in one page of JavaScript: fetch, as Node 18 and later have it.
//
//     node recipe.mjs URL…                    a tour: put, get, delete, ttl, range, failures, conditions
//     node recipe.mjs range START END URL…    the records of a range, a line each
//
// KVORUM_TOKEN is the token, ID.SECRET, where the nodes need one; NODE_EXTRA_CA_CERTS the authorities of https nodes.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";

const { KVORUM_TOKEN } = process.env;
const AUTHORIZATION = KVORUM_TOKEN ? { Authorization: `Bearer ${KVORUM_TOKEN}` } : {};
const TIMEOUT_MS = 5000; // a node answers 504 after its own --request-timeout, so let it

/** What a node answered other than success. `code` is for programs, `message` for people. */
class Failure extends Error {
  constructor(status, code, message) {
    super(`${status} ${code}: ${message}`);
    Object.assign(this, { status, code });
  }
}

/** The request may or may not have taken effect. Repeating it is safe. */
class Unknown extends Error {}

const bytes = (key) => (typeof key === "string" ? Buffer.from(key) : Buffer.from(key));

/** A key in a query. encodeURIComponent would do for text; keys are bytes. URLSearchParams writes a space as +. */
const escape = (key) =>
  Array.from(bytes(key), (b) => (/[\w.~-]/.test(String.fromCharCode(b)) ? String.fromCharCode(b) : "%" + b.toString(16).padStart(2, "0"))).join("");

class Client {
  constructor(...nodes) {
    this.nodes = nodes; // each answers every request for every key
  }

  /** Asks one node after the other, as long as it is certain that nothing was done. */
  async #ask(method, query, body, more = {}) {
    let problem;
    for (const node of this.nodes) {
      let answer, content;
      try {
        answer = await fetch(`${node}/v0/entity?${query}`, {
          method,
          body,
          headers: { Accept: "application/json", ...AUTHORIZATION, ...more }, // for failures: a value comes as it is
          signal: AbortSignal.timeout(TIMEOUT_MS),
        });
        content = Buffer.from(await answer.arrayBuffer());
      } catch (error) {
        problem = error;
        if (error.cause?.code === "ECONNREFUSED") continue;
        throw new Unknown(`${method}: ${error.cause ?? error}`, { cause: error });
      }
      if (answer.ok) return { headers: answer.headers, content };
      const failure = JSON.parse(content);
      problem = new Failure(answer.status, failure.error, failure.message);
      if (answer.status === 503) continue; // overloaded, starting, shutting down: nothing was done
      if (answer.status === 504 && method !== "GET") throw new Unknown(problem.message);
      throw problem;
    }
    throw problem;
  }

  /** Stores a value, for `ttl` ("30s", "500ms", …) or for good. Resolves to its version. `condition` is a version, or ABSENT. */
  async put(key, value, { ttl, replicas, condition, operation } = {}) {
    const query = `id=${escape(key)}` + (ttl ? `&ttl=${ttl}` : "") + (replicas ? `&replicas=${replicas}` : "");
    const { headers } = await this.#ask("PUT", query, bytes(value), conditionsOf(condition, operation));
    return headers.get("etag").replaceAll('"', "");
  }

  /** Resolves to the value, or null. */
  async get(key) {
    return (await this.read(key)).value;
  }

  /** Resolves to the value and its version, or null and ABSENT. */
  async read(key) {
    try {
      const { headers, content } = await this.#ask("GET", `id=${escape(key)}`);
      return { value: content, version: headers.get("etag").replaceAll('"', "") };
    } catch (failure) {
      if (failure.code === "not_found") return { value: null, version: ABSENT };
      throw failure;
    }
  }

  /** Deletes a key, also one that was never there. Resolves to the deletion's version. */
  async delete(key, { condition } = {}) {
    const { headers } = await this.#ask("DELETE", `id=${escape(key)}`, undefined, conditionsOf(condition));
    return headers.get("etag").replaceAll('"', "");
  }

  /** Adds to a number; resolves to the new one. After Unknown it may have counted, once. */
  async add(key, number = 1) {
    return BigInt((await this.#ask("POST", `id=${escape(key)}&add=${number}`)).content.toString());
  }

  /** Stores what `change` makes of the value (null without one), as one step: again where somebody came between. */
  async update(key, change) {
    for (let attempt = 0; attempt < 20; attempt++) {
      const { value, version } = await this.read(key);
      try {
        return await this.put(key, change(value), { condition: version });
      } catch (failure) {
        if (failure.status !== 412) throw failure;
      }
      await sleep(Math.random() * 2 * 2 ** Math.min(attempt, 6));
    }
    throw new Error(`others write ${key} all the time`);
  }

  /** Stores the value of a new key; repeating it after Unknown with the same name is no second one. 412: it is there. */
  async create(key, value) {
    const operation = randomUUID();
    for (let attempt = 1; ; attempt++) {
      try {
        return await this.put(key, value, { condition: ABSENT, operation });
      } catch (failure) {
        if (!(failure instanceof Unknown) || attempt === 3) throw failure;
      }
    }
  }

  /** Takes a lock for `ttl`; resolves to its fencing token, or to null where somebody has it. */
  async lock(key, ttl) {
    try {
      return await this.put(key, "", { ttl, condition: ABSENT });
    } catch (failure) {
      if (failure.status === 412) return null;
      throw failure;
    }
  }

  /** Stores a value under a lock's token, unless a later holder of the lock has written. */
  fencedPut(key, token, value) {
    return this.update(key, (old) => {
      if (old !== null && String(old).split(" ", 1)[0] > token) throw new Error("the lock was lost");
      return `${token} ${value}`;
    });
  }

  /** Yields [key, value] in the order of the keys' bytes, as they come. A cut range throws; what came is right. */
  async *range(start, end, limit) {
    const query = `start=${escape(start)}` + (end ? `&end=${escape(end)}` : "") + (limit ? `&limit=${limit}` : "");
    const answer = await fetch(`${this.nodes[0]}/v0/entities?${query}`, {
      headers: { Accept: "application/x-ndjson, application/json", ...AUTHORIZATION },
    });
    if (answer.status !== 200) {
      const failure = await answer.json();
      throw new Failure(answer.status, failure.error, failure.message);
    }
    // Split the bytes at \n and nowhere else: node:readline also splits at U+2028.
    let pieces = [];
    for await (let piece of answer.body) {
      for (let at; (at = piece.indexOf(10)) >= 0; piece = piece.subarray(at + 1)) {
        const row = JSON.parse(Buffer.concat([...pieces, piece.subarray(0, at)]));
        pieces = [];
        yield [field(row, "key"), field(row, "value")];
      }
      pieces.push(piece);
    }
  }
}

const ABSENT = "*";

const conditionsOf = (condition, operation) => ({
  ...(operation && { "Kvorum-Operation": operation }),
  ...(condition === ABSENT ? { "If-None-Match": "*" } : condition && { "If-Match": `"${condition}"` }),
});

const sleep = (millis) => new Promise((done) => setTimeout(done, millis));

const field = (row, name) => (name in row ? Buffer.from(row[name]) : Buffer.from(row[`${name}_base64`], "base64"));

async function collect(entries) {
  const rows = [];
  for await (const row of entries) rows.push(row);
  return rows;
}

async function conditions(client) {
  // An optimistic update, and a counter.
  for (const name of ["ann ", "bob "]) await client.update("recipe/names", (old) => String(old ?? "") + name);
  assert.equal(String(await client.get("recipe/names")), "ann bob ");
  assert.deepEqual([await client.add("recipe/hits", 5), await client.add("recipe/hits", -2)], [5n, 3n]);
  // A create that can be repeated.
  await client.create("recipe/order", "1");
  await assert.rejects(client.create("recipe/order", "2"), { status: 412 });
  // A lock. Its first holder sleeps until it is another's: without the token it would write over the second one's work.
  const first = await client.lock("recipe/lock", "300ms");
  assert(first && (await client.lock("recipe/lock", "300ms")) === null);
  await sleep(400);
  const second = await client.lock("recipe/lock", "30s");
  await client.fencedPut("recipe/work", second, "of the second");
  await assert.rejects(client.fencedPut("recipe/work", first, "too late"), { message: "the lock was lost" });
  await client.delete("recipe/lock", { condition: second });
  for (const key of ["names", "hits", "order", "work"]) await client.delete(`recipe/${key}`);
}

async function tour(client) {
  const version = await client.put("recipe/greeting", "hello");
  assert.equal(String(await client.get("recipe/greeting")), "hello");
  assert((await client.put("recipe/greeting", "hello again", { replicas: "3/3" })) > version, "versions only grow");

  const odd = Buffer.from("recipe/\x00\xff +%&=/#\n", "latin1"); // keys are bytes
  const all = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
  await client.put(odd, all);
  assert.deepEqual(await client.get(odd), all);
  await client.put("recipe/empty", "");
  assert.equal((await client.get("recipe/empty")).length, 0);

  await client.put("recipe/session", "token", { ttl: "300ms" });
  assert.equal(String(await client.get("recipe/session")), "token");
  await new Promise((done) => setTimeout(done, 400));
  assert.equal(await client.get("recipe/session"), null, "gone after its ttl");

  const rows = await collect(client.range("recipe/", "recipe0"));
  const expect = [[odd, all], [bytes("recipe/empty"), bytes("")], [bytes("recipe/greeting"), bytes("hello again")]];
  assert.deepEqual(rows, expect);
  assert.equal((await collect(client.range("recipe/", "recipe0", 2))).length, 2);

  for (const [key] of rows) await client.delete(key);
  assert.equal(await client.get("recipe/greeting"), null);
  assert.deepEqual(await collect(client.range("recipe/", "recipe0")), []);

  await conditions(client);
  await assert.rejects(client.put("recipe/x", "", { replicas: "2/1" }), { status: 400, code: "bad_parameter" });
  // A node that is away is passed over.
  await new Client("http://127.0.0.1:2", ...client.nodes).put("recipe/x", "x");
  await client.delete("recipe/x");
  console.log("javascript with fetch: put, get, delete, ttl, range, failures, conditions: ok");
}

const [command, ...rest] = process.argv.slice(2);
if (command === "range") {
  const [start, end, ...nodes] = rest;
  for await (const [key, value] of new Client(...nodes).range(start, end)) console.log(key.toString("latin1"), value.length);
} else {
  await tour(new Client(command, ...rest));
}
