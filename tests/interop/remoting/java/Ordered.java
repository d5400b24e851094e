import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Two orderly consumers of a group while the leader is killed. Each queue is consumed in the order of its offsets:
 * messages may come again from an earlier offset on, none is skipped.
 * Arguments: nameserver, mark of topics and groups. Prints SENDING once messages are consumed (then the leader may be
 * killed), the number of repeated messages, and OK.
 */
public class Ordered {
    static final int QUEUES = 4;
    static final int BEFORE = 200;
    static final int AFTER = 200;

    static final Set<String> acknowledged = ConcurrentHashMap.newKeySet();
    static final Set<String> got = ConcurrentHashMap.newKeySet();
    /** The last message of each queue. */
    static final Map<Integer, MessageExt> last = new ConcurrentHashMap<>();
    static final List<String> wrong = Collections.synchronizedList(new ArrayList<>());
    static int repeated = 0;
    static int failed = 0;

    public static void main(String[] arguments) throws Exception {
        String nameserver = arguments[0];
        String topic = arguments[1] + "-ordered";
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (int n = 0; n < 2; n++) {
            DefaultMQPushConsumer consumer = More.consumer(nameserver, arguments[1] + "-ordered-group");
            consumer.setInstanceName("ordered" + n);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(Ordered::consume);
                return ConsumeOrderlyStatus.SUCCESS;
            });
            consumer.start();
            consumers.add(consumer);
        }
        DefaultMQProducer producer = new DefaultMQProducer(arguments[1] + "-ordered-producers");
        producer.setNamesrvAddr(nameserver);
        producer.start();
        try {
            List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
            More.check(queues.size() == QUEUES, "queues: " + queues);
            send(producer, queues, topic);
            More.until(() -> got.containsAll(acknowledged), "every acknowledged message is consumed");
            More.check(wrong.isEmpty(), "the order of queues: " + wrong);
            System.out.println("REPEATED " + repeated + ", " + failed + " sends failed, " + acknowledged.size() + " acknowledged");
        } finally {
            producer.shutdown();
            consumers.forEach(DefaultMQPushConsumer::shutdown);
        }
        System.out.println("OK");
        System.exit(0);
    }

    /** Both consumers are in this process, so that one check sees what both do with a queue. */
    static synchronized void consume(MessageExt message) {
        MessageExt before = last.put(message.getQueueId(), message);
        long step = message.getQueueOffset() - (before == null ? -1 : before.getQueueOffset());
        // One thread sends: the numbers in the bodies grow like the offsets.
        int growth = before == null ? 1 : Integer.compare(number(message), number(before));
        if (step > 1 || growth != Long.signum(step)) {
            wrong.add(place(message) + " after " + (before == null ? "the start" : place(before)));
        }
        repeated += step <= 0 ? 1 : 0;
        got.add(More.text(message));
    }

    static int number(MessageExt message) {
        return Integer.parseInt(More.text(message));
    }

    static String place(MessageExt message) {
        return "message " + number(message) + " at " + message.getQueueId() + "/" + message.getQueueOffset();
    }

    /** Send to the queues in turn until enough messages were acknowledged after a failure. */
    static void send(DefaultMQProducer producer, List<MessageQueue> queues, String topic) throws Exception {
        int after = 0;
        boolean told = false;
        for (int n = 0; after < AFTER; n++) {
            String body = String.valueOf(n);
            try {
                if (producer.send(More.message(topic, body), queues.get(n % QUEUES)).getSendStatus() != SendStatus.SEND_OK) {
                    continue;
                }
            } catch (Exception error) {
                failed++;
                Thread.sleep(10);
                continue;
            }
            acknowledged.add(body);
            after += failed > 0 && told ? 1 : 0;
            if (!told && got.size() >= BEFORE && last.size() == QUEUES) {
                told = true;
                System.out.println("SENDING");
            }
            Thread.sleep(5);
        }
    }
}
