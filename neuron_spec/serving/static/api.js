// The server's API: one request a function, errors as `Failure`, streams as events.

export class Failure extends Error {
  constructor(message, { status = 0, field = null, retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { status, field, retryAfter });
  }
}

// Relative, so that the page also works below a proxy's prefix.
const base = new URL("./", document.baseURI);
export const endpoints = { chat: "v1/chat/completions", completion: "v1/completions" };
export const address = (path) => new URL(path, base).href;

export async function getModel(key) {
  const response = await ask("v1/models", { headers: headersFor(key) });
  return (await response.json()).data[0];
}

export async function getHealth() {
  try {
    return await (await fetch(address("health"), { cache: "no-store" })).json();
  } catch {
    return {}; // only told beside figures
  }
}

export function requestBody(model, form) {
  const prompt = form.endpoint === "chat"
    ? { messages: [{ role: "user", content: form.prompt }] }
    : { prompt: form.prompt };
  return {
    model,
    ...prompt,
    ...present({ max_tokens: form.maxTokens, temperature: form.temperature, seed: form.seed }),
    ...(form.speculate ? {} : { speculate: false }),
    stream: true,
    stream_options: { include_usage: true, include_acceptance: true },
    include_tokens: true,
  };
}

// Yields every event of the answer as it comes; leaving early closes the connection, by which the
// server knows that nobody reads on.
export async function* stream(endpoint, body, { key, signal }) {
  const response = await ask(endpoints[endpoint], {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headersFor(key) },
    body: JSON.stringify(body),
    signal,
  });
  let isWhole = false;
  for await (const data of serverSentData(response.body)) {
    if (data === "[DONE]") {
      isWhole = true;
      break;
    }
    const event = JSON.parse(data);
    if (event.error) throw failureOf(event.error, response);
    yield event;
  }
  if (!isWhole) throw new Failure("The answer broke off before its end.");
}

async function* serverSentData(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) if (block.startsWith("data: ")) yield block.slice(6);
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(address(path), { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The server cannot be reached.");
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => ({}));
  throw failureOf(told.error ?? { message: response.statusText }, response);
}

function failureOf(error, response) {
  return new Failure(error.message, {
    status: response.ok ? 0 : response.status,
    field: error.param ?? null,
    retryAfter: response.headers.get("Retry-After"),
  });
}

const headersFor = (key) => (key ? { Authorization: `Bearer ${key}` } : {});

const present = (fields) =>
  Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== null));

// The key itself stays out of what people paste elsewhere.
export function curlCommand(endpoint, body, { needsKey }) {
  const quoted = `'${JSON.stringify(body, null, 2).replaceAll("'", "'\\''")}'`;
  const key = needsKey ? " \\\n  -H \"Authorization: Bearer $NEURON_SPEC_API_KEY\"" : "";
  return `curl -N ${address(endpoints[endpoint])} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d ${quoted}`;
}
