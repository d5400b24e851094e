import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;

/**
 * Two nameservers, one of which is dead or ends: sends to a topic, prints SENDING (then the nameserver may end), and
 * sends to another topic, whose route it has to ask for, as soon as that exists. Both messages must be consumed. A
 * request that goes to a dead nameserver fails, a start of a consumer too: it is repeated.
 * Arguments: nameservers, mark of topics and groups. Prints OK and the step that failed otherwise.
 */
public class Nameservers {
    public static void main(String[] arguments) throws Exception {
        String nameservers = arguments[0];
        String mark = arguments[1];
        Set<String> got = ConcurrentHashMap.newKeySet();
        DefaultMQProducer producer = new DefaultMQProducer(mark + "-nameservers-producers");
        producer.setNamesrvAddr(nameservers);
        producer.setSendMsgTimeout(Classic.TIMEOUT_MS);
        producer.setMqClientApiTimeout(Classic.TIMEOUT_MS);
        producer.start();
        try {
            More.until(() -> sent(producer, mark, "before"), "a send before");
            More.until(() -> started(nameservers, mark, got), "a start of a consumer");
            System.out.println("SENDING");
            More.until(() -> sent(producer, mark, "after"), "a send after");
            More.until(() -> got.contains("before") && got.contains("after"), "both messages are consumed");
        } finally {
            producer.shutdown();
        }
        System.out.println("OK");
        System.exit(0);
    }

    static boolean started(String nameservers, String mark, Set<String> got) {
        try {
            DefaultMQPushConsumer consumer = Classic.consumer(nameservers, mark + "-nameservers-group", "c");
            for (String kind : new String[] {"before", "after"}) {
                consumer.subscribe(mark + "-" + kind, "*");
            }
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(each -> got.add(More.text(each)));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            try {
                consumer.start();
                return true;
            } catch (Exception error) { // its first request went to a dead nameserver
                System.out.println(error);
                consumer.shutdown();
                return false;
            }
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    static boolean sent(DefaultMQProducer producer, String mark, String kind) {
        try {
            producer.send(Classic.message(mark + "-" + kind, "tag", kind));
            return true;
        } catch (Exception error) { // the topic does not exist yet, or its route is not known
            System.out.println(error);
            return false;
        }
    }
}
