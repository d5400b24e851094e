import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;

import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * What is rarer than a send and a push: transactions with checks, request and reply, recall.
 * Arguments: nameserver, mark of topics and groups, and user and secret if requests are signed. Prints OK and the step that failed otherwise.
 */
public class More {
    static final long LIMIT_S = 90;
    /** The default of 3 s is short for a machine that is busy with other tests. */
    static final int TIMEOUT_MS = 30_000;

    static RPCHook hook;

    public static void main(String[] arguments) throws Exception {
        endOnError();
        if (arguments.length > 2) {
            hook = new AclClientRPCHook(new SessionCredentials(arguments[2], arguments[3]));
        }
        String nameserver = arguments[0];
        String mark = arguments[1];
        transactions(nameserver, mark);
        requests(nameserver, mark);
        System.out.println("OK");
        System.exit(0);
    }

    /** Three messages: committed at once, rolled back, committed by the check. */
    static void transactions(String nameserver, String mark) throws Exception {
        Set<String> got = ConcurrentHashMap.newKeySet();
        Set<String> checked = ConcurrentHashMap.newKeySet();
        TransactionMQProducer producer = new TransactionMQProducer(mark + "-transactions", hook);
        producer.setNamesrvAddr(nameserver);
        producer.setMqClientApiTimeout(TIMEOUT_MS);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.setTransactionListener(new TransactionListener() {
            @Override public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return (LocalTransactionState) argument;
            }

            @Override public LocalTransactionState checkLocalTransaction(MessageExt message) {
                checked.add(text(message));
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        DefaultMQPushConsumer consumer = consumer(nameserver, mark + "-transacted");
        consumer.subscribe(mark + "-transactions", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> got.add(text(each)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            String topic = mark + "-transactions";
            producer.sendMessageInTransaction(message(topic, "committed"), LocalTransactionState.COMMIT_MESSAGE);
            producer.sendMessageInTransaction(message(topic, "rolled back"), LocalTransactionState.ROLLBACK_MESSAGE);
            producer.sendMessageInTransaction(message(topic, "checked"), LocalTransactionState.UNKNOW);
            until(() -> got.contains("committed") && got.contains("checked"), "transactions");
            check(checked.equals(Collections.singleton("checked")), "the checks: " + checked);
            check(got.size() == 2, "transactions: " + got);
        } finally {
            producer.shutdown();
            consumer.shutdown();
        }
    }

    static void requests(String nameserver, String mark) throws Exception {
        DefaultMQProducer asker = new DefaultMQProducer(mark + "-askers", hook);
        asker.setNamesrvAddr(nameserver);
        asker.setMqClientApiTimeout(TIMEOUT_MS);
        asker.setSendMsgTimeout(TIMEOUT_MS);
        asker.setInstanceName("asker");
        // Its fields are signed, too.
        setNamespaceV2(asker);
        asker.start();
        DefaultMQProducer replier = new DefaultMQProducer(mark + "-repliers", hook);
        replier.setNamesrvAddr(nameserver);
        replier.setMqClientApiTimeout(TIMEOUT_MS);
        replier.setSendMsgTimeout(TIMEOUT_MS);
        replier.setInstanceName("replier");
        replier.start();
        DefaultMQPushConsumer consumer = consumer(nameserver, mark + "-requested");
        consumer.subscribe(mark + "-requests", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt each : messages) {
                try {
                    byte[] body = ("re: " + text(each)).getBytes(StandardCharsets.UTF_8);
                    replier.send(MessageUtil.createReplyMessage(each, body), (long) TIMEOUT_MS);
                } catch (Exception error) {
                    error.printStackTrace();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            Message answer = asker.request(message(mark + "-requests", "ping"), TimeUnit.SECONDS.toMillis(LIMIT_S));
            check(new String(answer.getBody(), StandardCharsets.UTF_8).equals("re: ping"), "the reply");
            recall(asker, mark);
        } finally {
            consumer.shutdown();
            replier.shutdown();
            asker.shutdown();
        }
    }

    /** Clients before 5.4 have neither the handle nor the call. */
    static void recall(DefaultMQProducer producer, String mark) throws Exception {
        try {
            DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class);
        } catch (NoSuchMethodException error) {
            return;
        }
        Message later = message(mark + "-requests", "later");
        Message.class.getMethod("setDelayTimeSec", long.class).invoke(later, 3_600L);
        Object sent = producer.send(later);
        Object handle = sent.getClass().getMethod("getRecallHandle").invoke(sent);
        Object id = DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class)
            .invoke(producer, mark + "-requests", handle);
        check(id.equals(sent.getClass().getMethod("getMsgId").invoke(sent)), "the recalled message");
    }

    /** Set a namespace of the second kind; return whether the client knows it: 5.x does. */
    static boolean setNamespaceV2(ClientConfig client) throws Exception {
        try {
            ClientConfig.class.getMethod("setNamespaceV2", String.class).invoke(client, "space");
            return true;
        } catch (NoSuchMethodException error) {
            return false;
        }
    }

    static DefaultMQPushConsumer consumer(String nameserver, String group) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            group, hook, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(nameserver);
        consumer.setMqClientApiTimeout(TIMEOUT_MS);
        consumer.setInstanceName(group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return consumer;
    }

    static Message message(String topic, String body) {
        return new Message(topic, "tag", "key-" + body, body.getBytes(StandardCharsets.UTF_8));
    }

    static String text(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    static void until(BooleanSupplier condition, String what) throws InterruptedException {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(LIMIT_S);
        while (!condition.getAsBoolean()) {
            check(System.nanoTime() < end, what);
            Thread.sleep(20);
        }
    }

    /** End with the error of the main thread, for which the clients' threads would wait forever. */
    static void endOnError() {
        Thread.currentThread().setUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            System.exit(1);
        });
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            System.out.println("FAILED " + what);
            System.exit(1);
        }
    }
}
