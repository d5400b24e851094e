import java.io.FileWriter;
import java.io.IOException;
import java.io.Writer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * The official Java client with its default settings, but time for a slow machine: sends, receives, retries, orders, delays, recalls,
 * transacts; prints what it saw.
 *
 * <p>Client ENDPOINT MARK COUNT, or ENDPOINT MARK load:SECONDS, which sends and prints the gaps, or
 * ENDPOINT MARK consume, which consumes until it is killed, or ENDPOINT TOPIC history:FILE:RUN:PAUSE_MS,
 * which sends until SIGTERM and writes every outcome; topics and groups are MARK-normal, MARK-fifo, MARK-delay, MARK-transaction,
 * MARK-group, MARK-ordered.
 */
public class Client {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final List<String> ASKED = new CopyOnWriteArrayList<>();
    private static ClientConfiguration configuration;
    private static Producer producer;
    private static String mark;
    private static SendReceipt last;

    /** What to do with a message: keep it, or acknowledge it; and whether that is enough. */
    private interface Each {
        boolean enough(SimpleConsumer consumer, MessageView message) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        mark = arguments[1];
        configuration = configured(arguments[0], 3); // the client's own timeout
        if (arguments[2].startsWith("history:")) {
            String[] words = arguments[2].split(":");
            record(words[1], words[2], Long.parseLong(words[3]));
            Runtime.getRuntime().halt(0);
        }
        if (arguments[2].startsWith("load:")) {
            load(Integer.parseInt(arguments[2].substring(5)));
            System.exit(0);
        }
        configuration = configured(arguments[0], 30); // a request takes longer only if the broker hangs
        while (arguments[2].equals("consume")) {
            receive("normal", "group", (consumer, message) -> {
                consumer.ack(message);
                return false;
            });
        }
        int count = Integer.parseInt(arguments[2]);
        producer = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration)
            .setTopics(topic("normal"), topic("fifo"), topic("delay"), topic("transaction"))
            .setTransactionChecker(message -> {
                ASKED.add(text(message));
                // "rollback" is asked about if its end did not arrive yet.
                return text(message).equals("rollback")
                    ? TransactionResolution.ROLLBACK : TransactionResolution.COMMIT;
            })
            .build();
        long due = later();
        String seen = plain(count) + ",\"retry\":" + retry() + ",\"order\":" + quoted(order(count))
            + ",\"transact\":" + quoted(transact()) + ",\"delay\":" + delay(due)
            + ",\"late\":\"" + late() + "\",\"asked\":" + quoted(ASKED);
        System.out.println("{" + seen + "}");
        System.exit(0);
    }

    private static ClientConfiguration configured(String endpoints, int timeoutS) {
        return ClientConfiguration.newBuilder().setEndpoints(endpoints)
            .setRequestTimeout(Duration.ofSeconds(timeoutS)).build();
    }

    /**
     * Sends to the FIFO topic MARK until SIGTERM, with a pause after each message, a message again until it is
     * acknowledged, and writes a line for each attempt and outcome, in the form of drills/history.py.
     */
    private static void record(String file, String run, long pauseMs) throws Exception {
        AtomicBoolean stopping = new AtomicBoolean();
        Thread sender = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stopping.set(true);
            try {
                sender.join(20_000);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
            Runtime.getRuntime().halt(0);
        }));
        String group = run + "java";
        try (Writer out = new FileWriter(file, true)) {
            while (producer == null && !stopping.get()) {
                try {
                    producer = PROVIDER.newProducerBuilder()
                        .setClientConfiguration(configuration).setTopics(mark).build();
                } catch (Exception error) {
                    System.err.println(error);
                    Thread.sleep(50);
                }
            }
            for (int seq = 1; !stopping.get(); seq++) {
                String id = group + "-" + seq;
                String who = ",\"group\":\"" + group + "\",\"seq\":" + seq;
                for (boolean sent = false; !sent;) {
                    line(out, run, "invoke", id, who);
                    try {
                        producer.send(PROVIDER.newMessageBuilder().setTopic(mark).setMessageGroup(group)
                            .setBody((id + "|java").getBytes(StandardCharsets.UTF_8)).build());
                        line(out, run, "ok", id, who);
                        sent = true;
                    } catch (Exception error) {
                        line(out, run, "unknown", id, ",\"why\":\"" + error.getClass().getSimpleName() + "\"");
                        Thread.sleep(50);
                    }
                }
                Thread.sleep(pauseMs);
            }
        }
    }

    private static void line(Writer out, String run, String event, String id, String more) throws IOException {
        double now = System.nanoTime() / 1e9; // CLOCK_MONOTONIC
        out.write(String.format(Locale.ROOT, "{\"t\":%.6f,\"c\":\"java-%s\",\"e\":\"%s\",\"id\":\"%s\"%s}\n",
            now, run, event, id, more));
        out.flush();
    }

    /** Sends until the time is up; what counts is the longest time without an OK, and the errors. */
    private static void load(int seconds) throws Exception {
        producer = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration).setTopics(topic("normal")).build();
        List<String> sent = new ArrayList<>();
        List<String> errors = new ArrayList<>();
        long begin = System.nanoTime();
        long last = begin;
        long gap = 0;
        for (int number = 0; System.nanoTime() - begin < seconds * 1_000_000_000L; number++) {
            try {
                sent.add(producer.send(message("normal", "" + number).build()).getMessageId().toString());
                gap = Math.max(gap, System.nanoTime() - last);
                last = System.nanoTime();
            } catch (Exception error) {
                errors.add(error.getClass().getSimpleName());
            }
        }
        gap = Math.max(gap, System.nanoTime() - last); // none came any more
        System.out.println("{\"sent\":" + quoted(sent) + ",\"errors\":" + quoted(errors)
            + ",\"gap_ms\":" + gap / 1_000_000 + "}");
    }

    private static String topic(String kind) {
        return mark + "-" + kind;
    }

    private static String text(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody()).toString();
    }

    private static MessageBuilder message(String kind, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic(kind)).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    private static void receive(String kind, String group, Each each) throws Exception {
        try (SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup(topic(group))
                .setAwaitDuration(Duration.ofSeconds(5))
                .setSubscriptionExpressions(Collections.singletonMap(topic(kind), FilterExpression.SUB_ALL))
                .build()) {
            long until = System.nanoTime() + 60_000_000_000L;
            boolean enough = false;
            while (!enough && System.nanoTime() < until) {
                for (MessageView message : consumer.receive(16, Duration.ofSeconds(30))) {
                    enough |= each.enough(consumer, message);
                }
            }
        }
    }

    private static String plain(int count) throws Exception {
        List<String> sent = new ArrayList<>();
        Map<String, String> got = new LinkedHashMap<>();
        for (int number = 0; number < count; number++) {
            sent.add(producer.send(message("normal", "java-" + number).setTag("java").setKeys("k" + number).build())
                .getMessageId().toString());
        }
        receive("normal", "group", (consumer, message) -> {
            got.put(message.getMessageId().toString(), text(message));
            consumer.ack(message);
            return got.size() == count;
        });
        String pairs = got.entrySet().stream()
            .map(entry -> "\"" + entry.getKey() + "\":\"" + entry.getValue() + "\"")
            .collect(Collectors.joining(","));
        return "\"sent\":" + quoted(sent) + ",\"got\":{" + pairs + "}";
    }

    private static List<Integer> retry() throws Exception {
        List<Integer> attempts = new ArrayList<>();
        producer.send(message("normal", "again").build());
        receive("normal", "group", (consumer, message) -> {
            attempts.add(message.getDeliveryAttempt());
            if (attempts.size() < 2) {
                consumer.changeInvisibleDuration(message, Duration.ofSeconds(1));
                return false;
            }
            consumer.ack(message);
            return true;
        });
        return attempts;
    }

    private static List<String> order(int count) throws Exception {
        List<String> got = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            producer.send(message("fifo", "" + number).setMessageGroup("group").build());
        }
        receive("fifo", "ordered", (consumer, message) -> {
            got.add(text(message));
            consumer.ack(message);
            return got.size() == count;
        });
        return got;
    }

    /** What is sent for later goes first, so that everything else happens meanwhile; early enough for the recall. */
    private static long later() throws Exception {
        long due = System.currentTimeMillis() + 20_000;
        SendReceipt gone = producer.send(message("delay", "gone").setDeliveryTimestamp(due - 1_000).build());
        last = producer.send(message("delay", "later").setDeliveryTimestamp(due).build());
        producer.recallMessage(topic("delay"), gone.getRecallHandle());
        return due;
    }

    private static String delay(long due) throws Exception {
        StringBuilder seen = new StringBuilder();
        receive("delay", "group", (consumer, message) -> {
            seen.append("{\"due\":").append(due).append(",\"came\":").append(System.currentTimeMillis());
            seen.append(",\"body\":\"").append(text(message)).append("\"}");
            consumer.ack(message);
            return true;
        });
        return seen.toString();
    }

    /** Recalls what was delivered; returns the exception. */
    private static String late() throws Exception {
        try {
            producer.recallMessage(topic("delay"), last.getRecallHandle());
            return "";
        } catch (ClientException error) {
            return error.toString().replace('"', ' ').replace('\n', ' ');
        }
    }

    private static List<String> transact() throws Exception {
        List<String> got = new ArrayList<>();
        for (String end : new String[] {"rollback", "commit", "open"}) {
            Transaction transaction = producer.beginTransaction();
            producer.send(message("transaction", end).build(), transaction);
            if (end.equals("commit")) {
                transaction.commit();
            } else if (end.equals("rollback")) {
                transaction.rollback();
            }
        }
        receive("transaction", "group", (consumer, message) -> {
            got.add(text(message));
            consumer.ack(message);
            return got.size() == 2;
        });
        return got;
    }

    private static String quoted(List<String> texts) {
        return texts.stream().map(text -> "\"" + text + "\"").collect(Collectors.joining(",", "[", "]"));
    }
}
