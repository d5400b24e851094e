import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * The official Java client with credentials: sends a message and receives it, for each case.
 *
 * <p>Acl (ENDPOINT ACCESSKEY SECRETKEY TOPIC GROUP)...; prints a JSON list: the received body, or the error. TLS with
 * rocketmq.client.enableSsl=true in the environment.
 */
public class Acl {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    public static void main(String[] arguments) {
        List<String> seen = new ArrayList<>();
        boolean tls = Boolean.parseBoolean(System.getenv("rocketmq.client.enableSsl"));
        for (int at = 0; at < arguments.length; at += 5) {
            try {
                seen.add(run(tls, arguments, at));
            } catch (Throwable error) {
                StringBuilder text = new StringBuilder();
                for (Throwable each = error; each != null; each = each.getCause()) {
                    text.append(each).append("; ");
                }
                seen.add(text.toString());
            }
        }
        System.out.println(seen.stream()
            .map(text -> "\"" + text.replace("\\", "/").replace("\"", "'").replace("\n", " ") + "\"")
            .collect(Collectors.joining(",", "[", "]")));
        System.exit(0);
    }

    private static String run(boolean tls, String[] arguments, int at) throws Exception {
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(arguments[at])
            .enableSsl(tls)
            .setRequestTimeout(Duration.ofSeconds(30))
            .setCredentialProvider(new StaticSessionCredentialsProvider(arguments[at + 1], arguments[at + 2]))
            .build();
        String topic = arguments[at + 3];
        String sent;
        try (Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
                .setTopics(topic).setMaxAttempts(1).build()) {
            sent = producer.send(PROVIDER.newMessageBuilder().setTopic(topic)
                .setBody("signed".getBytes(StandardCharsets.UTF_8)).build()).getMessageId().toString();
        }
        try (SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup(arguments[at + 4])
                .setAwaitDuration(Duration.ofSeconds(5))
                .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
                .build()) {
            for (int attempt = 0; attempt < 20; attempt++) {
                for (MessageView message : consumer.receive(16, Duration.ofSeconds(30))) {
                    consumer.ack(message);
                    if (message.getMessageId().toString().equals(sent)) {
                        return StandardCharsets.UTF_8.decode(message.getBody()).toString();
                    }
                }
            }
        }
        return "nothing received";
    }
}
