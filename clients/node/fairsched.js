// What the samples share: stubs by server reflection, retries, deadlines, typed errors.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const { GrpcReflection } = require("grpc-js-reflection-client");

const RETRY = fs.readFileSync(path.join(__dirname, "..", "retry.json"), "utf8");

const OPTIONS = {
  "grpc.service_config": RETRY,
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 5000,
  "grpc.keepalive_time_ms": 20000,
  "grpc.keepalive_timeout_ms": 10000,
  "grpc.keepalive_permit_without_calls": 1,
};

// Enums by name; 64-bit numbers as text, since JavaScript's own numbers do not hold them.
const LOADING = { keepCase: true, enums: String, longs: String, defaults: true, oneofs: true };

/** Returns a stub of a service of `fairsched.v1`, described by the server itself. */
async function connect(target, service) {
  const credentials = grpc.credentials.createInsecure();
  const reflection = new GrpcReflection(target, credentials, OPTIONS, "v1alpha");
  const described = await reflection.getDescriptorBySymbol(`fairsched.v1.${service}`);
  const loaded = described.getPackageObject(LOADING);
  return new loaded.fairsched.v1[service](target, credentials, OPTIONS);
}

/** Calls a unary method with a deadline in seconds; rejects with an error that has `reason`. */
function call(stub, method, request, seconds = 5) {
  return new Promise((resolve, reject) => {
    stub[method](request, { deadline: Date.now() + 1000 * seconds }, (error, response) =>
      error ? reject(Object.assign(error, { reason: reasonOf(error) })) : resolve(response),
    );
  });
}

/** Returns the stable reason of an error of the service, as `QUEUE_FULL`; "" if it has none. */
function reasonOf(error) {
  const [details] = error.metadata?.get("grpc-status-details-bin") ?? [];
  const found = details?.toString("latin1").match(/google\.rpc\.ErrorInfo.{3,8}?([A-Z][A-Z_]+)/s);
  return found ? found[1] : "";
}

module.exports = { connect, call, reasonOf };
