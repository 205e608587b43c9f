// A worker: long-polls for work, keeps its lease alive, reports with the next call.
//   node clients/node/worker.js 127.0.0.1:50051 default gpu-1
"use strict";

const { randomUUID } = require("node:crypto");
const { setTimeout: sleep } = require("node:timers/promises");
const { connect, call, reasonOf } = require("./fairsched");

let stopping = false;

async function run(dispatch) {
  console.log(`${dispatch.request_id} of ${dispatch.user_id}: ${dispatch.cost} units`);
  await sleep(20);
  return { prompt_tokens: 100, output_tokens: 20 };
}

/** Runs one request under its lease, which is renewed every third of its length. */
async function underLease(scheduler, session_id, dispatch) {
  const { lease_id } = dispatch;
  const third = (1000 * Number(dispatch.lease_duration.seconds)) / 3;
  const renewing = setInterval(() => {
    const request = { session_id, renewals: [{ lease_id }] };
    call(scheduler, "RenewLease", request).catch((error) => console.error(error.reason));
  }, third);
  try {
    return { lease_id, outcome: "OUTCOME_SUCCEEDED", usage: await run(dispatch) };
  } catch (error) {
    return { lease_id, outcome: "OUTCOME_FAILED", error: String(error) };
  } finally {
    clearInterval(renewing);
  }
}

async function main(target, pool, workerId) {
  const scheduler = await connect(target, "SchedulerService");
  const opened = await call(scheduler, "RegisterWorker", { worker_id: workerId, pools: [pool] });
  const { session_id } = opened;
  let completions = [];
  for (const name of ["SIGTERM", "SIGINT"]) {
    process.on(name, () => {
      stopping = true;
      call(scheduler, "DrainWorker", { worker_id: session_id }).catch(() => {});
    });
  }
  while (!stopping) {
    const idempotency_key = randomUUID();
    const request = { session_id, completions, idempotency_key, wait_duration: { seconds: 1 } };
    const { dispatches } = await call(scheduler, "NextDispatch", request, 3);
    completions = await Promise.all(dispatches.map((d) => underLease(scheduler, session_id, d)));
  }
  if (completions.length) await call(scheduler, "BatchComplete", { completions });
  scheduler.close();
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(reasonOf(error) || error.message);
  process.exit(1);
});
