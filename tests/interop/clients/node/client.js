// The official Node.js client with its default settings: sends, receives, acknowledges; prints what it saw.
const { Producer, SimpleConsumer } = require('rocketmq-client-nodejs');

async function main() {
  const [endpoints, topic, consumerGroup, number] = process.argv.slice(2);
  const count = Number(number);
  const quiet = { debug() {}, info() {}, warn() {}, error() {} };
  const producer = new Producer({ endpoints, namespace: '', logger: quiet });
  await producer.startup();
  const sent = [];
  for (let n = 0; n < count; n++) {
    const receipt = await producer.send({ topic, tag: 'node', keys: [`k${n}`], body: Buffer.from(`node-${n}`) });
    sent.push(receipt.messageId);
  }
  const consumer = new SimpleConsumer({
    endpoints, namespace: '', consumerGroup, logger: quiet, subscriptions: new Map().set(topic, '*'), awaitDuration: 5000,
  });
  await consumer.startup();
  const got = {};
  const until = Date.now() + 60000;
  while (Object.keys(got).length < count && Date.now() < until) {
    for (const message of await consumer.receive(16)) {
      got[message.messageId] = message.body.toString();
      await consumer.ack(message);
    }
  }
  await producer.shutdown();
  await consumer.shutdown();
  console.log(JSON.stringify({ sent, got }));
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
