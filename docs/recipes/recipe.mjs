// A kvorum client in one page of JavaScript: fetch, as Node 18 and later have it.
//
//     node recipe.mjs URL…                    a tour: put, get, delete, ttl, range, failures
//     node recipe.mjs range START END URL…    the records of a range, a line each
//
// KVORUM_TOKEN is the token, ID.SECRET, where the nodes need one; NODE_EXTRA_CA_CERTS the authorities of https nodes.

import assert from "node:assert/strict";

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
  async #ask(method, query, body) {
    let problem;
    for (const node of this.nodes) {
      let answer, content;
      try {
        answer = await fetch(`${node}/v0/entity?${query}`, {
          method,
          body,
          headers: { Accept: "application/json", ...AUTHORIZATION }, // for failures: a value comes as it is
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

  /** Stores a value, for `ttl` ("30s", "500ms", …) or for good. Resolves to its version. */
  async put(key, value, { ttl, replicas } = {}) {
    const query = `id=${escape(key)}` + (ttl ? `&ttl=${ttl}` : "") + (replicas ? `&replicas=${replicas}` : "");
    const { headers } = await this.#ask("PUT", query, bytes(value));
    return headers.get("etag").replaceAll('"', "");
  }

  /** Resolves to the value, or null. */
  async get(key) {
    try {
      return (await this.#ask("GET", `id=${escape(key)}`)).content;
    } catch (failure) {
      if (failure.code === "not_found") return null;
      throw failure;
    }
  }

  /** Deletes a key, also one that was never there. Resolves to the deletion's version. */
  async delete(key) {
    const { headers } = await this.#ask("DELETE", `id=${escape(key)}`);
    return headers.get("etag").replaceAll('"', "");
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

const field = (row, name) => (name in row ? Buffer.from(row[name]) : Buffer.from(row[`${name}_base64`], "base64"));

async function collect(entries) {
  const rows = [];
  for await (const row of entries) rows.push(row);
  return rows;
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

  await assert.rejects(client.put("recipe/x", "", { replicas: "2/1" }), { status: 400, code: "bad_parameter" });
  // A node that is away is passed over.
  await new Client("http://127.0.0.1:2", ...client.nodes).put("recipe/x", "x");
  await client.delete("recipe/x");
  console.log("javascript with fetch: put, get, delete, ttl, range, failures: ok");
}

const [command, ...rest] = process.argv.slice(2);
if (command === "range") {
  const [start, end, ...nodes] = rest;
  for await (const [key, value] of new Client(...nodes).range(start, end)) console.log(key.toString("latin1"), value.length);
} else {
  await tour(new Client(command, ...rest));
}
