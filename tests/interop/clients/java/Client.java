import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/** The official Java client with its default settings: sends, receives, acknowledges; prints what it saw. */
public class Client {
    public static void main(String[] arguments) throws Exception {
        String endpoint = arguments[0], topic = arguments[1], group = arguments[2];
        int count = Integer.parseInt(arguments[3]);
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration configuration =
            ClientConfiguration.newBuilder().setEndpoints(endpoint).build();
        List<String> sent = new ArrayList<>();
        Map<String, String> got = new LinkedHashMap<>();
        try (Producer producer =
                provider.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build();
             SimpleConsumer consumer = provider.newSimpleConsumerBuilder()
                 .setClientConfiguration(configuration)
                 .setConsumerGroup(group)
                 .setAwaitDuration(Duration.ofSeconds(5))
                 .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
                 .build()) {
            for (int number = 0; number < count; number++) {
                sent.add(producer.send(provider.newMessageBuilder()
                    .setTopic(topic)
                    .setTag("java")
                    .setKeys("k" + number)
                    .setBody(("java-" + number).getBytes(StandardCharsets.UTF_8))
                    .build()).getMessageId().toString());
            }
            long until = System.nanoTime() + 60_000_000_000L;
            while (got.size() < count && System.nanoTime() < until) {
                for (MessageView message : consumer.receive(16, Duration.ofSeconds(30))) {
                    got.put(message.getMessageId().toString(),
                        StandardCharsets.UTF_8.decode(message.getBody()).toString());
                    consumer.ack(message);
                }
            }
        }
        System.out.println(json(sent, got));
        System.exit(0);
    }

    private static String json(List<String> sent, Map<String, String> got) {
        StringBuilder text = new StringBuilder("{\"sent\":[");
        for (String id : sent) {
            text.append(text.charAt(text.length() - 1) == '[' ? "" : ",").append('"').append(id).append('"');
        }
        text.append("],\"got\":{");
        for (Map.Entry<String, String> entry : got.entrySet()) {
            text.append(text.charAt(text.length() - 1) == '{' ? "" : ",");
            text.append('"').append(entry.getKey()).append("\":\"").append(entry.getValue()).append('"');
        }
        return text.append("}}").toString();
    }
}
