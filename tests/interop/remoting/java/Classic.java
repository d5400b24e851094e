import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * DefaultMQProducer and DefaultMQPushConsumer with default settings but for timeouts: send kinds, push with a tag
 * filter, a retried message, orderly consumption, a delayed message, two consumers that share.
 * Arguments: nameserver, mark of topics and groups. Prints OK and the step that failed otherwise.
 */
public class Classic {
    static final int COUNT = 20;
    static final long LIMIT_S = 90;
    /** The default of 3 s is short for a machine that is busy with other tests. */
    static final int TIMEOUT_MS = 30_000;

    public static void main(String[] arguments) throws Exception {
        More.endOnError();
        String nameserver = arguments[0];
        String mark = arguments[1];
        DefaultMQProducer producer = new DefaultMQProducer(mark + "-producers");
        producer.setNamesrvAddr(nameserver);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.setMqClientApiTimeout(TIMEOUT_MS);
        producer.start();
        try {
            List<String> sent = send(producer, mark);
            push(nameserver, mark, sent);
            order(producer, nameserver, mark);
        } finally {
            producer.shutdown();
        }
        System.out.println("OK");
        System.exit(0);
    }

    static List<String> send(DefaultMQProducer producer, String mark) throws Exception {
        String topic = mark + "-normal";
        List<String> sent = Collections.synchronizedList(new ArrayList<>());
        for (int n = 0; n < COUNT; n++) {
            SendResult result = producer.send(message(topic, "wanted", "sync-" + n));
            check(result.getSendStatus() == SendStatus.SEND_OK, "status of a send");
            check(result.getOffsetMsgId() != null && result.getMsgId() != null, "ids of a send");
            sent.add("sync-" + n);
        }
        CountDownLatch answered = new CountDownLatch(COUNT);
        for (int n = 0; n < COUNT; n++) {
            String body = "async-" + n;
            producer.send(message(topic, "wanted", body), new SendCallback() {
                @Override public void onSuccess(SendResult result) {
                    sent.add(body);
                    answered.countDown();
                }

                @Override public void onException(Throwable error) {
                    error.printStackTrace();
                }
            });
        }
        check(answered.await(LIMIT_S, TimeUnit.SECONDS), "asynchronous sends");
        List<Message> batch = new ArrayList<>();
        for (int n = 0; n < COUNT; n++) {
            batch.add(message(topic, "wanted", "batch-" + n));
            sent.add("batch-" + n);
        }
        check(producer.send(batch).getSendStatus() == SendStatus.SEND_OK, "status of a batch");
        producer.sendOneway(message(topic, "wanted", "oneway"));
        sent.add("oneway");
        byte[] large = new byte[10_000];
        java.util.Arrays.fill(large, (byte) 'x');
        producer.send(new Message(topic, "wanted", large)); // compressed by the client
        sent.add(new String(large, StandardCharsets.UTF_8));
        Message later = message(topic, "wanted", "later");
        later.setDelayTimeLevel(1);
        producer.send(later);
        sent.add("later");
        producer.send(message(topic, "other", "filtered"));
        return sent;
    }

    static void push(String nameserver, String mark, List<String> sent) throws Exception {
        ConcurrentHashMap<String, Integer> got = new ConcurrentHashMap<>();
        // Rebalance can deliver a message again, so every attempt counts, not the last one.
        Set<Integer> attempts = ConcurrentHashMap.newKeySet();
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        try {
            for (int n = 0; n < 2; n++) {
                DefaultMQPushConsumer consumer = consumer(nameserver, mark + "-group", "c" + n);
                consumer.subscribe(mark + "-normal", "wanted || unused");
                consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                    for (MessageExt each : messages) {
                        String body = new String(each.getBody(), StandardCharsets.UTF_8);
                        if (body.equals("sync-0")) {
                            attempts.add(each.getReconsumeTimes());
                            if (each.getReconsumeTimes() == 0) {
                                context.setDelayLevelWhenNextConsume(1);
                                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                            }
                        }
                        got.merge(body, 1, Integer::sum);
                    }
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                });
                consumer.start();
                consumers.add(consumer);
            }
            until(() -> got.keySet().containsAll(sent), "push: every message");
            check(!got.containsKey("filtered"), "the tag filter");
            check(attempts.contains(0) && attempts.contains(1), "attempts of sync-0: " + attempts);
        } finally {
            consumers.forEach(DefaultMQPushConsumer::shutdown);
        }
    }

    static void order(DefaultMQProducer producer, String nameserver, String mark) throws Exception {
        String topic = mark + "-ordered";
        List<String> wanted = new ArrayList<>();
        for (int n = 0; n < COUNT; n++) {
            producer.send(message(topic, "o", "o" + n), (queues, message, key) -> queues.get(1), null);
            wanted.add("o" + n);
        }
        List<String> got = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = consumer(nameserver, mark + "-orderly", "o");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt each : messages) {
                String body = new String(each.getBody(), StandardCharsets.UTF_8);
                if (!got.contains(body)) { // a send that the client repeated may have been stored twice
                    got.add(body);
                }
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        try {
            until(() -> got.size() >= COUNT, "orderly: every message");
            check(got.equals(wanted), "the order: " + got);
        } finally {
            consumer.shutdown();
        }
    }

    static DefaultMQPushConsumer consumer(String nameserver, String group, String instance)
            throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameserver);
        consumer.setMqClientApiTimeout(TIMEOUT_MS);
        consumer.setInstanceName(instance);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return consumer;
    }

    static Message message(String topic, String tag, String body) {
        return new Message(topic, tag, "key-" + body, body.getBytes(StandardCharsets.UTF_8));
    }

    static void until(BooleanSupplier condition, String what) throws InterruptedException {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(LIMIT_S);
        while (!condition.getAsBoolean()) {
            check(System.nanoTime() < end, what);
            Thread.sleep(20);
        }
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            System.out.println("FAILED " + what);
            System.exit(1);
        }
    }
}
