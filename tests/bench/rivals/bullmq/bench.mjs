// BullMQ as a queue: node bench.mjs MODE PORT ARGUMENT…   (one line of JSON)
//
//   rate PORT COUNT BULK      producer here, worker (concurrency 64) in a process of its own
//   latency PORT COUNT        one job at a time: from add() to the start of its processor
//   replay PORT TRACE SERVERS UNIT    jobs at the times of a trace, each busy for cost x unit
import { fork } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { Queue, Worker } from 'bullmq';
import Redis from 'ioredis';

const [mode, port, ...rest] = process.argv.slice(2);
const connect = () => new Redis({ host: '127.0.0.1', port: Number(port), maxRetriesPerRequest: null });
const options = { removeOnComplete: true, removeOnFail: true, attempts: 3 };
const seconds = () => performance.now() / 1000;
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const quantile = (sorted, level) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * level))];
// Awaited: a pipe takes 64 KiB at once, and the process ends afterwards.
const say = (found) => new Promise((done) => process.stdout.write(JSON.stringify(found) + '\n', done));

async function work(count) {
  let done = 0;
  const worker = new Worker('q', async () => {}, { connection: connect(), concurrency: 64 });
  worker.on('completed', () => { if (++done === count) process.send('done'); });
  await worker.waitUntilReady();
  process.send('ready');
}

async function rate(count, bulk) {
  const worker = fork(fileURLToPath(import.meta.url), ['work', port, String(count)]);
  const told = (word) => new Promise((done) => worker.on('message', (m) => m === word && done()));
  await told('ready');
  const queue = new Queue('q', { connection: connect() });
  await queue.waitUntilReady();
  const finished = told('done');
  const began = seconds();
  let next = 0;
  const body = 'x'.repeat(96);
  const produce = async () => {
    while (next < count) {
      const take = Math.min(bulk, count - next);
      const jobs = Array.from({ length: take }, () => ({ name: 'j', data: { user: next++ % 1000, body }, opts: options }));
      if (bulk === 1) await queue.add('j', jobs[0].data, options);
      else await queue.addBulk(jobs);
    }
  };
  await Promise.all(Array.from({ length: 16 }, produce));
  const added = seconds();
  await finished;
  await say({ rate: count / (seconds() - began), enqueue_rate: count / (added - began) });
  worker.kill();
}

async function latency(count) {
  const queue = new Queue('q', { connection: connect() });
  let started;
  const worker = new Worker('q', async () => { started(); }, { connection: connect() });
  await worker.waitUntilReady();
  const times = [];
  for (let at = 0; at < count; at++) {
    const begun = new Promise((done) => { started = done; });
    const began = seconds();
    await queue.add('j', { at }, options);
    await begun;
    times.push((seconds() - began) * 1000);
    await pause(2);
  }
  times.sort((a, b) => a - b);
  await say({ p50_ms: quantile(times, 0.5), p99_ms: quantile(times, 0.99) });
}

async function replay(path, servers, unit) {
  const arrivals = JSON.parse(readFileSync(path, 'utf8'));
  const queue = new Queue('q', { connection: connect() });
  const records = [];
  let finish;
  const finished = new Promise((done) => { finish = done; });
  let zero;
  const worker = new Worker('q', async (job) => {
    const started = seconds() - zero;
    await pause(job.data.cost * unit * 1000);
    records.push([job.data.index, started, seconds() - zero]);
    if (records.length === arrivals.length) finish();
  }, { connection: connect(), concurrency: servers });
  await worker.waitUntilReady();
  zero = seconds();
  for (const [index, at, , cost] of arrivals) {
    const wait = at - (seconds() - zero);
    if (wait > 0) await pause(wait * 1000);
    await queue.add('j', { index, cost }, options);
  }
  await finished;
  await say({ records });
}

const modes = {
  work: () => work(Number(rest[0])),
  rate: () => rate(Number(rest[0]), Number(rest[1])),
  latency: () => latency(Number(rest[0])),
  replay: () => replay(rest[0], Number(rest[1]), Number(rest[2])),
};
await modes[mode]();
if (mode !== 'work') process.exit(0);
