// The official Node.js client with credentials: sends a message and receives it, for each case.
//
//   acl.js CASES
//
// CASES is a JSON list of [endpoint, access key, secret key, topic, group]. Prints a JSON list: the
// received body, or the error. TLS with `rocketmq.client.enableSsl=true` in the environment.
const { Producer, SimpleConsumer } = require('rocketmq-client-nodejs');

const sslEnabled = process.env['rocketmq.client.enableSsl'] === 'true';
const quiet = { debug() {}, info() {}, warn() {}, error() {} };

async function run([endpoints, accessKey, accessSecret, topic, consumerGroup]) {
  const options = {
    endpoints, sslEnabled, namespace: '', logger: quiet, requestTimeout: 30000,
    sessionCredentials: { accessKey, accessSecret },
  };
  const producer = new Producer({ ...options, topics: [topic], maxAttempts: 1 });
  await producer.startup();
  const { messageId } = await producer.send({ topic, body: Buffer.from('signed') });
  const consumer = new SimpleConsumer({
    ...options, consumerGroup, subscriptions: new Map().set(topic, '*'), awaitDuration: 5000,
  });
  await consumer.startup();
  for (let attempt = 0; attempt < 20; attempt++) {
    for (const one of await consumer.receive(16)) {
      await consumer.ack(one);
      if (one.messageId === messageId) return one.body.toString();
    }
  }
  return 'nothing received';
}

(async () => {
  const seen = [];
  for (const one of JSON.parse(process.argv[2])) {
    seen.push(await run(one).catch((error) => `${error.name} ${error.code} ${error.message}`));
  }
  console.log(JSON.stringify(seen));
  process.exit(0);
})();
