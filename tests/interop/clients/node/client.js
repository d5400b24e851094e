// The official Node.js client with its default settings, but time for a slow machine: sends, receives, retries, orders, delays, recalls,
// transacts; prints what it saw.
//
//   client.js ENDPOINT MARK COUNT
//
// Topics and groups are MARK-normal, MARK-fifo, MARK-delay, MARK-transaction, MARK-group, MARK-ordered.
const { Producer, SimpleConsumer } = require('rocketmq-client-nodejs');

const [COMMIT, ROLLBACK] = [1, 2]; // TransactionResolution of the protocol; the package does not export it
const requestTimeout = 30000; // a request takes longer only if the broker hangs
const [endpoints, mark, number] = process.argv.slice(2);
const count = Number(number);
const quiet = { debug() {}, info() {}, warn() {}, error() {} };
const asked = [];
const topic = (kind) => `${mark}-${kind}`;
const message = (kind, body, more = {}) => ({ topic: topic(kind), body: Buffer.from(body), ...more });
let producer;
let last; // the receipt of the message whose recall comes too late

// Receive until `each` says that it is enough; what it returns for a message is `keep` or `enough`.
async function receive(kind, group, each) {
  const consumer = new SimpleConsumer({
    endpoints,
    namespace: '',
    consumerGroup: topic(group),
    logger: quiet,
    subscriptions: new Map().set(topic(kind), '*'),
    awaitDuration: 5000,
    requestTimeout,
  });
  await consumer.startup();
  const until = Date.now() + 60000;
  let enough = false;
  while (!enough && Date.now() < until) {
    for (const one of await consumer.receive(16)) {
      const said = await each(consumer, one);
      if (said !== 'keep') await consumer.ack(one);
      enough = enough || said === 'enough';
    }
  }
  await consumer.shutdown();
}

async function plain() {
  const sent = [];
  const got = {};
  for (let n = 0; n < count; n++) {
    const receipt = await producer.send(message('normal', `node-${n}`, { tag: 'node', keys: [`k${n}`] }));
    sent.push(receipt.messageId);
  }
  await receive('normal', 'group', (_, one) => {
    got[one.messageId] = one.body.toString();
    return Object.keys(got).length === count ? 'enough' : '';
  });
  return { sent, got };
}

async function retry() {
  const attempts = [];
  await producer.send(message('normal', 'again'));
  await receive('normal', 'group', async (consumer, one) => {
    attempts.push(one.deliveryAttempt);
    if (attempts.length === 2) return 'enough';
    await consumer.changeInvisibleDuration(one, 1000);
    return 'keep';
  });
  return attempts;
}

async function order() {
  const got = [];
  for (let n = 0; n < count; n++) await producer.send(message('fifo', `${n}`, { messageGroup: 'group' }));
  await receive('fifo', 'ordered', (_, one) => (got.push(one.body.toString()) === count ? 'enough' : ''));
  return got;
}

// What is sent for later goes first, so that everything else happens meanwhile; early enough for the recall.
async function later() {
  const due = Date.now() + 20000;
  const gone = await producer.send(message('delay', 'gone', { deliveryTimestamp: new Date(due - 1000) }));
  last = await producer.send(message('delay', 'later', { deliveryTimestamp: new Date(due) }));
  await producer.recallMessage(topic('delay'), gone.recallHandle);
  return due;
}

async function delay(due) {
  let seen;
  await receive('delay', 'group', (_, one) => {
    seen = { due, came: Date.now(), body: one.body.toString() };
    return 'enough';
  });
  return seen;
}

// Recalls what was delivered; returns the error.
async function late() {
  try {
    await producer.recallMessage(topic('delay'), last.recallHandle);
    return '';
  } catch (error) {
    return String(error);
  }
}

async function transact() {
  const got = [];
  for (const end of ['rollback', 'commit', 'open']) {
    const transaction = producer.beginTransaction();
    await producer.send(message('transaction', end), transaction);
    if (end !== 'open') await transaction[end]();
  }
  await receive('transaction', 'group', (_, one) => (got.push(one.body.toString()) === 2 ? 'enough' : ''));
  return got;
}

// Sends until the time is up; what counts is the longest time without an OK, and the errors.
async function load(seconds) {
  producer = new Producer({ endpoints, namespace: '', logger: quiet, topic: topic('normal') });
  await producer.startup();
  const [sent, errors] = [[], []];
  const begin = Date.now();
  let [last, gap] = [begin, 0];
  for (let number = 0; Date.now() - begin < seconds * 1000; number += 1) {
    try {
      sent.push((await producer.send(message('normal', String(number)))).messageId);
      gap = Math.max(gap, Date.now() - last);
      last = Date.now();
    } catch (error) {
      errors.push(String(error));
    }
  }
  gap = Math.max(gap, Date.now() - last); // none came any more
  // A pipe takes 64 KiB at once: leave when all is through.
  process.stdout.write(JSON.stringify({ sent, errors, gap_ms: gap }) + '\n', () => process.exit(0));
}

async function main() {
  if (process.argv[4].startsWith('load:')) {
    await load(Number(process.argv[4].slice(5)));
    return;
  }
  const checker = {
    async check(one) {
      asked.push(one.body.toString());
      return one.body.toString() === 'rollback' ? ROLLBACK : COMMIT; // asked before its end arrived
    },
  };
  const settings = { endpoints, namespace: '', logger: quiet, requestTimeout };
  producer = new Producer({ ...settings, checker, topic: topic('transaction') });
  await producer.startup();
  const due = await later();
  const seen = { ...(await plain()), retry: await retry(), order: await order() };
  seen.transact = await transact();
  seen.delay = await delay(due);
  seen.late = await late();
  console.log(JSON.stringify({ ...seen, asked }));
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
