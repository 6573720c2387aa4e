// fetch for services that perkey guards: sends refused requests again, and follows parked ones to their response, as
// package lockclient does in Go, but for Retry-After, which is read in seconds, as perkey writes it. It needs fetch and nothing else: browsers, Node 18 and later, Deno, Bun.
const problems = "https://github.com/perkey-go/perkey/blob/main/docs/problems.md#";

/** Thrown when a parked request has ended without a response, or its ticket is not answered in time. */
export class TicketError extends Error {
  constructor(readonly url: string, readonly ticket: { id: string; state: string }) {
    super(`the request was parked, and its ticket ${ticket.id} is ${ticket.state}`);
  }
}

/** fetch, at most `attempts` times and for `maxWait` milliseconds. A body must be one that can be sent again: not a stream. */
export async function perkeyFetch(url: string | URL, init: RequestInit = {}, { attempts = 5, maxWait = 60_000 } = {}): Promise<Response> {
  const giveUp = Date.now() + maxWait, headers = new Headers(init.headers);
  const repeatable = /^(GET|HEAD|OPTIONS|PUT|DELETE)$/i.test(init.method ?? "GET") || headers.has("Idempotency-Key");
  for (let attempt = 1; ; attempt++) {
    const last = !repeatable || attempt >= attempts;
    const response = await fetch(url, init).catch((error) => (last || init.signal?.aborted || Date.now() >= giveUp ? Promise.reject(error) : undefined));
    if (response?.status === 202 && !/respond-async/i.test(headers.get("Prefer") ?? "")) return follow(url, response, init, giveUp);
    const after = response ? await refusedFor(response) : 100 * 2 ** (attempt - 1); // no response: the connection was lost
    if (response && (last || after === undefined || Date.now() + after >= giveUp)) return response;
    await response?.body?.cancel();
    await sleep(after! * (1 + (Math.random() * Math.min(attempt, 4)) / 2), init.signal);
  }
}

async function refusedFor(response: Response): Promise<number | undefined> {
  const seconds = Number(response.headers.get("Retry-After"));
  if (![409, 429, 503].includes(response.status) || !(seconds > 0)) return undefined;
  const problem = await response.clone().json().catch(() => undefined);
  return String(problem?.type).startsWith(problems) ? Math.max(100, Math.min(problem.retry_after_ms ?? Infinity, seconds * 1000)) : undefined;
}

async function follow(url: string | URL, receipt: Response, init: RequestInit, giveUp: number): Promise<Response> {
  let ticket = await receipt.clone().json().catch(() => undefined);
  const at = new URL(receipt.headers.get("Location") ?? "", receipt.url), headers = new Headers(init.headers);
  const origin = new URL(url, globalThis.location?.href).origin; // not one that a redirect led to: it must not have the credentials
  if (at.origin !== origin || ticket?.state !== "queued" || !at.pathname.endsWith("/" + ticket.id)) return receipt;
  for (const name of [...headers.keys()]) if (/^(content-|if-|idempotency-key$|prefer$|range$)/.test(name)) headers.delete(name);
  const ask: RequestInit = { ...init, method: "GET", body: undefined, headers };
  for (let wait = 25; ; ) {
    const left = Math.max(0, giveUp - Date.now());
    wait = Math.min(wait, Math.floor(left / 1000));
    headers.set("Prefer", `wait=${wait}`);
    const answer = await within(Math.min(left, 1000 * wait + 10_000), init.signal, async (signal) => {
      const r = await fetch(at, { ...ask, redirect: "manual", signal });
      return { status: r.type === "opaqueredirect" ? 303 : r.status, ticket: r.ok ? await r.json() : await r.body?.cancel() }; // opaque in browsers
    });
    if (answer?.status === 303) return fetch(at.href + "/result", ask);
    if (answer?.status === 200 && answer.ticket.id === ticket.id) ticket = answer.ticket;
    else wait = 0; // it may be the waiting that fails, in a proxy
    const open = !answer || ([200, 429, 502, 503, 504].includes(answer.status) && ["queued", "running"].includes(ticket.state));
    if (!open || Date.now() >= giveUp) throw new TicketError(at.href, ticket);
    await sleep(1000 + 500 * Math.random(), init.signal);
  }
}

/** What f returns, or undefined if it fails or takes longer. */
async function within<T>(ms: number, outer: AbortSignal | null | undefined, f: (signal: AbortSignal) => Promise<T>): Promise<T | undefined> {
  const inner = new AbortController(), abort = () => inner.abort(), timer = setTimeout(abort, ms);
  outer?.addEventListener("abort", abort);
  return f(inner.signal).catch(() => undefined).finally(() => (clearTimeout(timer), outer?.removeEventListener("abort", abort)));
}

function sleep(ms: number, signal?: AbortSignal | null): Promise<void> {
  return new Promise((done, fail) => {
    const abort = () => (clearTimeout(timer), fail(signal!.reason));
    const timer = setTimeout(() => (signal?.removeEventListener("abort", abort), done()), ms);
    signal?.aborted ? abort() : signal?.addEventListener("abort", abort);
  });
}
