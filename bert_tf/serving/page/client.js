/** Client for the parts of TensorFlow Serving's REST interface in use here. */

/** An error from the server or the network. */
export class ServerError extends Error {
  /**
   * @param {string} title A short summary of the error.
   * @param {string} message The server's error message, unchanged.
   */
  constructor(title, message) {
    super(message);
    this.title = title;
  }
}

/**
 * Sends a request to the server.
 *
 * @param {string} path The path of the request.
 * @param {string=} body JSON to post; without it the request is a GET.
 * @param {AbortSignal=} signal Aborts the request.
 * @return {Promise<{value: *, text: string, milliseconds: number}>}
 * @throws {ServerError} If the answer is not JSON, or an error.
 */
export async function ask(path, body, signal) {
  const options = body === undefined ? {signal} : {
    method: "POST",
    headers: {"Content-Type": "application/json"},
    body,
    signal,
  };
  const started = performance.now();
  let response;
  let text;
  try {
    response = await fetch(path, options);
    text = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server did not answer", error.message);
  }
  const milliseconds = performance.now() - started;
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new ServerError(
      response.ok ? "The answer is not JSON" : status(response), text);
  }
  if (!response.ok) {
    const message = typeof value?.error === "string" ? value.error : text;
    throw new ServerError(status(response), message);
  }
  return {value, text, milliseconds};
}

function status(response) {
  return `The server answered ${response.status} ${response.statusText}`.trim();
}

/** Returns the names of the served models. */
export async function models() {
  return (await ask("/page/models.json")).value.models;
}

/** Returns the path of a model, or of its version if `version` is not empty. */
export function modelPath(name, version) {
  const path = `/v1/models/${encodeURIComponent(name)}`;
  return version ? `${path}/versions/${encodeURIComponent(version)}` : path;
}

/**
 * Returns the versions of a model, the newest first.
 *
 * @return {Promise<Array<{version: string, state: string, error: string}>>}
 */
export async function versions(name) {
  const {value} = await ask(modelPath(name));
  return (value.model_version_status ?? [])
    .map((one) => ({
      version: String(one.version),
      state: one.state,
      error: one.status?.error_message ?? "",
    }))
    .sort((a, b) => Number(b.version) - Number(a.version));
}

/**
 * Returns the signatures of a model, by name.
 *
 * @return {Promise<Object<string, {inputs: Object, outputs: Object}>>} Each
 *     input and output has a `dtype` and a `shape`: sizes, -1 where any size is
 *     allowed; null if the number of axes is unknown.
 */
export async function signatures(path) {
  const {value} = await ask(`${path}/metadata`);
  const found = value.metadata.signature_def.signature_def;
  return Object.fromEntries(Object.entries(found).map(([name, signature]) =>
    [name, {
      inputs: tensors(signature.inputs),
      outputs: tensors(signature.outputs),
    }]));
}

function tensors(infos) {
  return Object.fromEntries(Object.entries(infos ?? {}).map(([name, info]) => {
    const shape = info.tensor_shape ?? {};
    return [name, {
      dtype: info.dtype,
      shape: shape.unknown_rank
        ? null : (shape.dim ?? []).map((axis) => Number(axis.size)),
    }];
  }));
}

/** Returns the body of a request to predict one row. */
export function predictBody(instance, signature) {
  const name = signature === "serving_default"
    ? {} : {signature_name: signature};
  return JSON.stringify({...name, instances: [instance]});
}

/**
 * Returns a signature's outputs for one row, as an object.
 *
 * For a signature with a single output, the server returns the bare value.
 */
export function onlyRow(value, signature) {
  const row = value.predictions[0];
  const names = Object.keys(signature.outputs);
  return names.length === 1 ? {[names[0]]: row} : row;
}

/** Returns the command line that sends a body to a path. */
export function curlLine(path, body) {
  const quoted = body.replaceAll("'", "'\\''");
  return `curl -s '${location.origin}${path}' \\\n  -d '${quoted}'`;
}
