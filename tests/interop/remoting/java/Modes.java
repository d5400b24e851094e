import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;

import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Ways to consume: broadcasting, pull, lite pull, SQL, offsets over a restart, a rebalance, dead letters, delivery
 * times, namespaces, trace, kinds of compression. Each step has its own topic, and all run at once.
 * Arguments: nameserver, mark of topics and groups. Prints OK and the step that failed otherwise.
 */
public class Modes {
    static final int COUNT = 20;

    interface Step {
        void run(DefaultMQProducer producer, String topic, String group) throws Exception;
    }

    static String nameserver;
    static String mark;

    public static void main(String[] arguments) throws Exception {
        More.endOnError();
        nameserver = arguments[0];
        mark = arguments[1];
        Map<String, Step> steps = new LinkedHashMap<>();
        steps.put("broadcast", Modes::broadcast);
        steps.put("pull", Modes::pull);
        steps.put("lite", Modes::lite);
        steps.put("sql", Modes::sql);
        steps.put("restart", Modes::restart);
        steps.put("rebalance", Modes::rebalance);
        steps.put("dead", Modes::dead);
        steps.put("timed", Modes::timed);
        steps.put("spaced", Modes::spaced);
        steps.put("spaced2", Modes::spacedByHeader);
        steps.put("trace", Modes::trace);
        steps.put("compressed", Modes::compressed);
        DefaultMQProducer producer = started(new DefaultMQProducer(mark + "-modes-producers"));
        // One after another: threads that need a route at once give up after three seconds each.
        for (String name : steps.keySet()) {
            if (!name.equals("spaced")) {
                producer.fetchPublishMessageQueues(mark + "-" + name);
            }
        }
        List<Thread> running = new ArrayList<>();
        steps.forEach((name, step) -> {
            Thread thread = new Thread(() -> {
                try {
                    step.run(producer, mark + "-" + name, mark + "-" + name + "-group");
                    System.out.println("done " + name);
                } catch (Exception error) {
                    error.printStackTrace();
                    More.check(false, name);
                }
            });
            thread.start();
            running.add(thread);
        });
        for (Thread each : running) {
            each.join();
        }
        producer.shutdown();
        System.out.println("OK");
        System.exit(0);
    }

    /** Every message reaches each of two consumers. */
    static void broadcast(DefaultMQProducer producer, String topic, String group) throws Exception {
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        List<Set<String>> got = new ArrayList<>();
        for (int n = 0; n < 2; n++) {
            DefaultMQPushConsumer consumer = consumer(group, n);
            broadcasting(consumer);
            got.add(start(consumer, topic));
            consumers.add(consumer);
        }
        send(producer, topic, "b");
        More.until(() -> got.get(0).size() == COUNT && got.get(1).size() == COUNT, "broadcasting");
        consumers.forEach(DefaultMQPushConsumer::shutdown);
    }

    /** The class of the model has another package since 5.x. */
    static void broadcasting(DefaultMQPushConsumer consumer) throws Exception {
        Class<?> model = consumer.getMessageModel().getClass();
        DefaultMQPushConsumer.class.getMethod("setMessageModel", model)
            .invoke(consumer, model.getField("BROADCASTING").get(null));
    }

    /** A pull consumer reads queue by queue, and its stored offset is read back. */
    static void pull(DefaultMQProducer producer, String topic, String group) throws Exception {
        send(producer, topic, "p");
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group);
        consumer.setNamesrvAddr(nameserver);
        consumer.setMqClientApiTimeout(More.TIMEOUT_MS);
        consumer.setInstanceName(group);
        consumer.start();
        Set<String> got = ConcurrentHashMap.newKeySet();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            long offset = consumer.minOffset(queue);
            long end = consumer.maxOffset(queue);
            while (offset < end) {
                PullResult found = consumer.pull(queue, "*", offset, 7);
                More.check(found.getPullStatus() == PullStatus.FOUND, "status of a pull");
                found.getMsgFoundList().forEach(each -> got.add(More.text(each)));
                offset = found.getNextBeginOffset();
            }
            More.check(consumer.searchOffset(queue, 0) == consumer.minOffset(queue), "search by time");
            consumer.updateConsumeOffset(queue, end);
            consumer.getDefaultMQPullConsumerImpl().getOffsetStore().persist(queue);
            More.until(() -> stored(consumer, queue) == end, "the offset of a pull consumer");
        }
        More.check(got.size() == COUNT, "pull: " + got.size());
        consumer.shutdown();
    }

    static long stored(DefaultMQPullConsumer consumer, MessageQueue queue) {
        try {
            return consumer.fetchConsumeOffset(queue, true);
        } catch (Exception error) {
            return -1;
        }
    }

    /** Two lite pull consumers of a group, one after the other: the second goes on behind the first. */
    static void lite(DefaultMQProducer producer, String topic, String group) throws Exception {
        for (String part : new String[] {"one", "two"}) {
            send(producer, topic, part);
            DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
            consumer.setNamesrvAddr(nameserver);
            consumer.setMqClientApiTimeout(More.TIMEOUT_MS);
            consumer.setInstanceName(group + part);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.setAutoCommit(false);
            consumer.subscribe(topic, "*");
            consumer.start();
            Set<String> got = ConcurrentHashMap.newKeySet();
            More.until(() -> {
                consumer.poll(100).forEach(each -> got.add(More.text(each)));
                return got.size() >= COUNT;
            }, "lite pull");
            consumer.commitSync();
            consumer.shutdown();
            More.check(got.stream().allMatch(each -> each.startsWith(part)), "lite pull goes on: " + got);
        }
    }

    /** A filter by properties. */
    static void sql(DefaultMQProducer producer, String topic, String group) throws Exception {
        for (int n = 0; n < COUNT; n++) {
            Message message = More.message(topic, String.valueOf(n));
            message.putUserProperty("n", String.valueOf(n));
            producer.send(message);
        }
        DefaultMQPushConsumer consumer = consumer(group, 0);
        Set<String> got = ConcurrentHashMap.newKeySet();
        consumer.subscribe(topic, MessageSelector.bySql("n >= 15 AND n IS NOT NULL"));
        listen(consumer, got);
        consumer.start();
        More.until(() -> got.size() >= 5, "SQL filter");
        More.check(got.equals(Set.of("15", "16", "17", "18", "19")), "SQL filter: " + got);
        consumer.shutdown();
    }

    /** A consumer stops; the next one of its group goes on behind it. */
    static void restart(DefaultMQProducer producer, String topic, String group) throws Exception {
        for (String part : new String[] {"one", "two"}) {
            send(producer, topic, part);
            DefaultMQPushConsumer consumer = consumer(group, 0);
            consumer.setAwaitTerminationMillisWhenShutdown(30_000); // so long may its listener run on
            Set<String> got = start(consumer, topic);
            More.until(() -> got.size() >= COUNT, "restart: " + part);
            // The last offsets are committed when the listener has returned.
            Thread.sleep(500);
            consumer.shutdown();
            More.check(got.stream().allMatch(each -> each.startsWith(part)), "offsets over a restart: " + got);
        }
    }

    /** Two consumers share; after one has stopped the other one gets everything. */
    static void rebalance(DefaultMQProducer producer, String topic, String group) throws Exception {
        DefaultMQPushConsumer first = consumer(group, 0);
        DefaultMQPushConsumer second = consumer(group, 1);
        Set<String> one = start(first, topic);
        Set<String> other = start(second, topic);
        AtomicInteger sent = new AtomicInteger();
        More.until(() -> {
            sendOne(producer, topic, sent.getAndIncrement());
            return !one.isEmpty() && !other.isEmpty();
        }, "rebalance: both consumers get messages");
        first.shutdown();
        int before = sent.get();
        for (int n = 0; n < COUNT; n++) {
            sendOne(producer, topic, sent.getAndIncrement());
        }
        More.until(() -> {
            for (int n = before; n < sent.get(); n++) {
                if (!other.contains("n" + n)) {
                    return false;
                }
            }
            return true;
        }, "rebalance: the other consumer gets everything");
        More.until(() -> {
            Set<String> all = ConcurrentHashMap.newKeySet();
            all.addAll(one);
            all.addAll(other);
            return all.size() == sent.get();
        }, "rebalance: no message is missing");
        second.shutdown();
    }

    static void sendOne(DefaultMQProducer producer, String topic, int number) {
        try {
            producer.send(More.message(topic, "n" + number));
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    /** A message that always fails goes to the dead letters after its last attempt. */
    static void dead(DefaultMQProducer producer, String topic, String group) throws Exception {
        DefaultMQPushConsumer consumer = consumer(group, 0);
        consumer.setMaxReconsumeTimes(1);
        Set<Integer> attempts = ConcurrentHashMap.newKeySet();
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> attempts.add(each.getReconsumeTimes()));
            context.setDelayLevelWhenNextConsume(1);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        producer.send(More.message(topic, "dead"));
        More.until(() -> attempts.contains(1), "dead letters: the second attempt");
        DefaultMQPullConsumer reader = new DefaultMQPullConsumer(group + "-reader");
        reader.setNamesrvAddr(nameserver);
        reader.setMqClientApiTimeout(More.TIMEOUT_MS);
        reader.setInstanceName(group + "-reader");
        reader.start();
        List<MessageExt> found = Collections.synchronizedList(new ArrayList<>());
        More.until(() -> {
            try {
                for (MessageQueue queue : reader.fetchSubscribeMessageQueues("%DLQ%" + group)) {
                    PullResult result = reader.pull(queue, "*", 0, 10);
                    if (result.getPullStatus() == PullStatus.FOUND) {
                        found.addAll(result.getMsgFoundList());
                    }
                }
            } catch (Exception error) {
                // The topic of dead letters has no route before its first message.
            }
            return !found.isEmpty();
        }, "dead letters: the message");
        More.check(More.text(found.get(0)).equals("dead"), "the body of the dead letter");
        More.check(attempts.equals(Set.of(0, 1)), "attempts: " + attempts);
        reader.shutdown();
        consumer.shutdown();
    }

    /** A delivery time. */
    static void timed(DefaultMQProducer producer, String topic, String group) throws Exception {
        DefaultMQPushConsumer consumer = consumer(group, 0);
        Set<String> got = start(consumer, topic);
        long due = System.currentTimeMillis() + 3_000;
        Message message = More.message(topic, "timed");
        MessageAccessor.putProperty(message, "TIMER_DELIVER_MS", String.valueOf(due));
        producer.send(message);
        More.until(() -> !got.isEmpty(), "delivery time");
        More.check(System.currentTimeMillis() >= due - 100, "a message before its time");
        consumer.shutdown();
    }

    /** Clients with a namespace see names without it. */
    static void spaced(DefaultMQProducer unused, String topic, String group) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(mark + "-spaced-producers");
        producer.setNamespace("space");
        started(producer);
        DefaultMQPushConsumer consumer = consumer(group, 0);
        consumer.setNamespace("space");
        exchange(producer, consumer, topic);
        consumer.shutdown();
        producer.shutdown();
    }

    /** With namespace v2 of 5.x names stay as they are: requests have the namespace in a field. */
    static void spacedByHeader(DefaultMQProducer unused, String topic, String group) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(mark + "-spaced2-producers");
        DefaultMQPushConsumer consumer = consumer(group, 0);
        // Clients of one instance share their connections, and the fields of their requests.
        producer.setInstanceName(group + "-producer");
        for (ClientConfig each : new ClientConfig[] {producer, consumer}) {
            if (!More.setNamespaceV2(each)) {
                return;
            }
        }
        started(producer);
        exchange(producer, consumer, topic);
        consumer.shutdown();
        producer.shutdown();
    }

    /** A message reaches the consumer, with the name of the topic that both were given. */
    static void exchange(DefaultMQProducer producer, DefaultMQPushConsumer consumer, String topic)
            throws Exception {
        Set<String> topics = ConcurrentHashMap.newKeySet();
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> topics.add(each.getTopic()));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        producer.send(More.message(topic, "spaced"));
        More.until(() -> !topics.isEmpty(), "a message in a namespace");
        More.check(topics.equals(Set.of(topic)), "the name without its namespace: " + topics);
    }

    /** A producer with trace stores a record of its send in the topic of traces. */
    static void trace(DefaultMQProducer unused, String topic, String group) throws Exception {
        DefaultMQProducer producer =
            new DefaultMQProducer(mark + "-trace-producers", null, true, mark + "-traces");
        started(producer);
        String id = producer.send(More.message(topic, "traced")).getMsgId();
        DefaultMQPushConsumer consumer = consumer(group, 0);
        Set<String> got = start(consumer, mark + "-traces");
        More.until(() -> got.stream().anyMatch(each -> each.contains(id)), "the trace of a send");
        consumer.shutdown();
        producer.shutdown();
    }

    /** Bodies compressed in every way that the client knows: 4.x knows one. */
    static void compressed(DefaultMQProducer producer, String topic, String group) throws Exception {
        DefaultMQPushConsumer consumer = consumer(group, 0);
        Set<String> got = start(consumer, topic);
        Set<String> sent = ConcurrentHashMap.newKeySet();
        for (String kind : new String[] {"ZLIB", "LZ4", "ZSTD"}) {
            DefaultMQProducer each = new DefaultMQProducer(group + kind);
            each.setInstanceName(group + kind);
            compressWith(each, kind);
            started(each);
            sent.add(kind.repeat(3_000));
            each.send(new Message(topic, kind.repeat(3_000).getBytes(StandardCharsets.UTF_8)));
            each.shutdown();
        }
        More.until(() -> got.containsAll(sent), "compressed bodies");
        consumer.shutdown();
    }

    @SuppressWarnings("unchecked")
    static void compressWith(DefaultMQProducer producer, String kind) throws Exception {
        try {
            Class<?> kinds = Class.forName("org.apache.rocketmq.common.compression.CompressionType");
            DefaultMQProducer.class.getMethod("setCompressType", kinds)
                .invoke(producer, Enum.valueOf((Class<Enum>) kinds, kind));
        } catch (ClassNotFoundException | NoSuchMethodException error) {
            // 4.x
        }
    }

    static DefaultMQPushConsumer consumer(String group, int number) throws Exception {
        DefaultMQPushConsumer consumer = More.consumer(nameserver, group);
        consumer.setMqClientApiTimeout(More.TIMEOUT_MS);
        consumer.setInstanceName(group + number);
        return consumer;
    }

    static Set<String> start(DefaultMQPushConsumer consumer, String topic) throws Exception {
        Set<String> got = ConcurrentHashMap.newKeySet();
        consumer.subscribe(topic, "*");
        listen(consumer, got);
        consumer.start();
        return got;
    }

    static void listen(DefaultMQPushConsumer consumer, Set<String> got) {
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> got.add(More.text(each)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
    }

    static DefaultMQProducer started(DefaultMQProducer producer) throws Exception {
        producer.setNamesrvAddr(nameserver);
        producer.setSendMsgTimeout(More.TIMEOUT_MS);
        producer.setMqClientApiTimeout(More.TIMEOUT_MS);
        producer.start();
        return producer;
    }

    static void send(DefaultMQProducer producer, String topic, String part) throws Exception {
        for (int n = 0; n < COUNT; n++) {
            producer.send(More.message(topic, part + n));
        }
    }
}
