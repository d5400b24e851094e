import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A push consumer of 5.x whose queues the broker assigns, in pop mode: every message once, one of them retried.
 * Arguments: nameserver, mark of topics and groups. Prints OK and the step that failed otherwise.
 */
public class Pop {
    static final int COUNT = 40;

    public static void main(String[] arguments) throws Exception {
        More.endOnError();
        String nameserver = arguments[0];
        String mark = arguments[1];
        Set<String> done = ConcurrentHashMap.newKeySet();
        Set<Integer> attempts = ConcurrentHashMap.newKeySet();
        Set<String> handles = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = More.consumer(nameserver, mark + "-popped");
        DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        consumer.subscribe(mark + "-pop", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt each : messages) {
                String body = new String(each.getBody(), StandardCharsets.UTF_8);
                handles.add(String.valueOf(each.getProperty("POP_CK")));
                if (body.equals("0")) {
                    attempts.add(each.getReconsumeTimes());
                    if (each.getReconsumeTimes() == 0) {
                        return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                    }
                }
                done.add(body);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        DefaultMQProducer producer = new DefaultMQProducer(mark + "-pop-producers");
        producer.setNamesrvAddr(nameserver);
        producer.setMqClientApiTimeout(More.TIMEOUT_MS);
        producer.setSendMsgTimeout(More.TIMEOUT_MS);
        producer.start();
        consumer.start();
        try {
            for (int n = 0; n < COUNT; n++) {
                producer.send(More.message(mark + "-pop", String.valueOf(n)));
            }
            More.until(() -> done.size() == COUNT, "every message");
            More.check(!handles.contains("null"), "the messages are popped");
            More.check(attempts.contains(1), "the attempts of the retried message: " + attempts);
        } finally {
            consumer.shutdown();
            producer.shutdown();
        }
        System.out.println("OK");
        System.exit(0);
    }
}
