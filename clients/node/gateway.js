// A gateway: waits for a request's turn, then goes to the worker that took it.
//   node clients/node/gateway.js 127.0.0.1:50051 default acme
"use strict";

const { randomUUID } = require("node:crypto");
const { connect, call, reasonOf } = require("./fairsched");

async function main(target, pool, userId) {
  const scheduler = await connect(target, "SchedulerService");
  const request = {
    pool,
    user_id: userId,
    request_id: randomUUID(), // the idempotency key: keep it, and a repeat changes nothing
    prompt_tokens: 100,
    max_output_tokens: 50,
    max_wait: { seconds: 30 },
  };
  const stream = scheduler.Acquire({ request });
  for await (const { event, queued, granted, ended } of stream) {
    if (event === "queued") {
      console.log(`${request.request_id}: ${queued.outlook.requests_ahead} ahead`);
    } else if (event === "granted") {
      console.log(`${request.request_id}: runs on ${granted.worker_id} ${granted.endpoint}`);
      // Here the model is called at granted.endpoint, showing it granted.lease_id.
      const done = { lease_id: granted.lease_id, outcome: "OUTCOME_SUCCEEDED" };
      const { state } = await call(scheduler, "Complete", done);
      console.log(`${request.request_id}: ${state}`);
      break; // drops the stream; the request has ended
    } else if (event === "ended") {
      throw new Error(`ended ${ended.state}: ${ended.reason}`);
    }
  }
  scheduler.close();
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(reasonOf(error) || error.message);
  process.exit(1);
});
