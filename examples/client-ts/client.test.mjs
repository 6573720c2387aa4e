// Run by client_test.go: CLIENT is client.ts as JavaScript, and DEMO the URL of examples/demo.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";

const { perkeyFetch, TicketError } = await import(process.env.CLIENT);
const id = "0123456789abcdef0123456789abcdef";

// What fetch was answered, in the order of the answers.
const statuses = [];
const realFetch = globalThis.fetch;
globalThis.fetch = async (...args) => {
  const response = await realFetch(...args);
  statuses.push(response.status);
  return response;
};

test("the demo: a refused request is sent again", async () => {
  statuses.length = 0;
  const pay = (key) => perkeyFetch(`${process.env.DEMO}/orders/70/pay?work=1s`, { method: "POST", headers: { "Idempotency-Key": key } });
  const responses = await Promise.all([pay("a"), pay("b")]);
  for (const response of responses) {
    assert.equal(response.status, 200);
    assert.match(await response.text(), /70/);
  }
  assert.ok(statuses.includes(409), String(statuses));
});

test("the demo: a parked request has its response", async () => {
  statuses.length = 0;
  const ship = () => perkeyFetch(`${process.env.DEMO}/orders/71/ship?work=1s`, { method: "POST", body: "{}", headers: { "Content-Type": "application/json" } });
  for (const response of await Promise.all([ship(), ship()])) {
    assert.equal(response.status, 200);
    assert.match(await response.text(), /71/);
  }
  assert.ok(statuses.includes(202) && statuses.includes(303), String(statuses));
});

// serve answers one request after another by the functions, the last again and again, and tells of all requests.
async function serve(t, ...answers) {
  const requests = [];
  const server = createServer(async (request, response) => {
    const answer = answers[Math.min(requests.length, answers.length - 1)];
    let body = "";
    const seen = { method: request.method, url: request.url, headers: request.headers };
    requests.push(seen);
    for await (const chunk of request) body += chunk;
    seen.body = body;
    answer(response, request);
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  t.after(() => (server.closeAllConnections(), server.close()));
  return { url: `http://127.0.0.1:${server.address().port}/orders/7`, requests };
}

const answer = (status, headers, body) => (response) => response.writeHead(status, headers).end(typeof body === "string" ? body : JSON.stringify(body));
const refused = (retryAfter, type = "https://github.com/perkey-go/perkey/blob/main/docs/problems.md#conflict") =>
  answer(409, { "Content-Type": "application/problem+json", "Retry-After": retryAfter }, { type, status: 409, retry_after_ms: retryAfter === "1" ? 150 : undefined });
const parked = (location = `/tickets/${id}`) => answer(202, { "Content-Type": "application/json", Location: location }, { id, state: "queued" });
const ticket = (state) => answer(200, { "Content-Type": "application/json" }, { id, state });
const lost = (response) => response.destroy();
const done = answer(201, { "X-Order": "7" }, "done");
const post = { method: "POST", body: "b", headers: { "Idempotency-Key": "k", Authorization: "Bearer x", "Content-Type": "text/plain" } };

test("a lost connection and a refusal: the same request again", async (t) => {
  const { url, requests } = await serve(t, lost, refused("1"), done);
  const response = await perkeyFetch(url, post);
  assert.equal(response.status, 201);
  assert.equal(await response.text(), "done");
  assert.deepEqual(requests.map((r) => [r.method, r.body, r.headers["idempotency-key"]]), Array(3).fill(["POST", "b", "k"]));
});

test("what may not be sent again, or is not perkey's, is returned", async (t) => {
  for (const [first, init] of [
    [refused("1"), { method: "POST" }],
    [refused("1", "about:blank"), post],
    [refused("1000000"), post],
    [refused("soon"), post],
    [refused("-1"), post],
    [answer(503, { "Retry-After": "1" }, "<html>"), post],
    [answer(202, {}, "later"), post],
    [parked("http://evil.example/tickets/" + id), post],
    [parked(), { ...post, headers: { Prefer: "respond-async" } }],
  ]) {
    const { url, requests } = await serve(t, first, done);
    const response = await perkeyFetch(url, init);
    assert.notEqual(response.status, 201);
    assert.notEqual(await response.text(), "");
    assert.equal(requests.length, 1);
  }
});

test("a ticket: with the credentials, and without what is about the request", async (t) => {
  const { url, requests } = await serve(t, parked(), lost, answer(502, {}, "bad gateway"), ticket("running"), answer(303, { Location: `${id}/result` }, ""), answer(422, {}, "no"));
  const response = await perkeyFetch(url, post);
  assert.equal(response.status, 422);
  assert.equal(await response.text(), "no");
  assert.equal(requests.at(-1).url, `/tickets/${id}/result`);
  assert.deepEqual(requests.slice(1, 5).map((r) => r.headers.prefer), ["wait=25", "wait=0", "wait=0", "wait=0"]);
  for (const r of requests.slice(1)) {
    assert.deepEqual([r.method, r.body, r.headers.authorization], ["GET", "", "Bearer x"]);
    assert.ok(!("idempotency-key" in r.headers) && !("content-type" in r.headers));
  }
});

test("a redirect to another origin: no credentials for its ticket", async (t) => {
  const other = await serve(t, parked(), done);
  const { url } = await serve(t, answer(307, { Location: other.url }, ""));
  const response = await perkeyFetch(url, post);
  assert.equal(response.status, 202);
  assert.deepEqual(other.requests.map((r) => r.headers.authorization), [undefined]);
});

test("an answer about a ticket that is held, is another's, or cannot be read", { timeout: 30_000 }, async (t) => {
  const held = () => {}, other = answer(200, { "Content-Type": "application/json" }, { id: "x", state: "expired" });
  for (const strange of [held, other, answer(200, {}, "<html>")]) {
    const { url, requests } = await serve(t, parked(), strange);
    await assert.rejects(perkeyFetch(url, post, { maxWait: 300 }), (error) => error instanceof TicketError && error.ticket.state === "queued");
    assert.ok(requests.length <= 3, String(requests.length));
  }
});

test("a connection that is lost again and again, for longer than maxWait", async (t) => {
  const { url, requests } = await serve(t, lost);
  await assert.rejects(perkeyFetch(url, post, { attempts: 100, maxWait: 250 }), TypeError);
  assert.ok(requests.length <= 3, String(requests.length));
});

test("a ticket that ends without a response", async (t) => {
  for (const end of [ticket("superseded"), ticket("expired"), answer(404, {}, "{}")]) {
    const { url } = await serve(t, parked(), end);
    await assert.rejects(perkeyFetch(url, post), (error) => error instanceof TicketError && error.ticket.id === id && error.url.endsWith(id));
  }
});

test("a ticket that never ends", async (t) => {
  const endless = async () => (await serve(t, parked(), ticket("running"))).url;
  await assert.rejects(perkeyFetch(await endless(), post, { maxWait: 100 }), TicketError);
  await assert.rejects(perkeyFetch(await endless(), { ...post, signal: AbortSignal.timeout(300) }), { name: "TimeoutError" });
});
