import java.io.IOException;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;

/**
 * Sends while the leader is killed; then every acknowledged message must be consumed.
 * Arguments: nameserver, mark of topics and groups. Prints SENDING once messages are acknowledged (then the leader
 * may be killed), the largest gap between two of them, and OK. A line in the standard input tells of the kill: the
 * client repeats a send by itself, so that the program may not see a failure.
 */
public class Failover {
    static final int BEFORE = 200;
    static final int AFTER = 200;

    static int failed = 0;
    static volatile boolean killed = false;

    public static void main(String[] arguments) throws Exception {
        String nameserver = arguments[0];
        String topic = arguments[1] + "-failover";
        Set<String> acknowledged = ConcurrentHashMap.newKeySet();
        Set<String> got = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = More.consumer(nameserver, arguments[1] + "-failover-group");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> got.add(More.text(each)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        DefaultMQProducer producer = new DefaultMQProducer(arguments[1] + "-failover-producers");
        producer.setNamesrvAddr(nameserver);
        Thread input = new Thread(() -> {
            try {
                killed = System.in.read() == '\n';
            } catch (IOException error) {
                error.printStackTrace();
            }
        });
        input.setDaemon(true);
        input.start();
        producer.start();
        consumer.start();
        try {
            long largest = send(producer, topic, acknowledged);
            System.out.println("GAP " + largest + " ms, " + failed + " failed, " + acknowledged.size() + " acknowledged");
            More.until(() -> got.containsAll(acknowledged), "every acknowledged message is consumed");
        } finally {
            producer.shutdown();
            consumer.shutdown();
        }
        System.out.println("OK");
        System.exit(0);
    }

    /** Send one by one until enough were acknowledged after the kill; return the largest gap. */
    static long send(DefaultMQProducer producer, String topic, Set<String> acknowledged) throws Exception {
        long last = 0;
        long largest = 0;
        int after = 0;
        for (int n = 0; after < AFTER; n++) {
            String body = String.valueOf(n);
            try {
                if (producer.send(Classic.message(topic, "tag", body)).getSendStatus() != SendStatus.SEND_OK) {
                    continue;
                }
            } catch (Exception error) {
                failed++;
                Thread.sleep(10);
                continue;
            }
            acknowledged.add(body);
            long now = System.nanoTime();
            largest = last == 0 ? 0 : Math.max(largest, (now - last) / 1_000_000);
            last = now;
            after += killed ? 1 : 0;
            if (acknowledged.size() == BEFORE) {
                System.out.println("SENDING");
            }
            Thread.sleep(5);
        }
        return largest;
    }
}
