// Opens a store directory with the released Apache RocketMQ broker (jars from Maven Central) and asks it what it sees.
//
//   java $FLAGS -cp 'classes:lib/*' ApacheStore --store DIR --plan PLAN.json --out OUT.json [--conf k=v]... [--stop clean|halt]
//   java $FLAGS -cp 'classes:lib/*' ApacheStore --store DIR --serve WORK [--conf k=v]...
//
// The plan, every part optional:
//   "topics":  [{"name": .., "queues": n}]                    made before anything else, if the broker does not know them
//   "queries": [{"topic": .., "key": ..}]                     key queries of the view
//   "consume": [{"group": .., "topic": .., "count": n}]       push consumers, each until n messages came or 40 s passed
//   "write":   [{"topic": .., "queue": n, "tags": .., "keys": .., "body_b64": .., "born": ip, "host": ip}]
// What comes out: "before", the view of the directory as it was opened; "consumed"; "written", one answer a message; "after", the
// view when all was written. `halt` ends the process as a crash does. oracle.py is the caller.
//
// `--serve` prints the ports of nameserver and broker as a line of JSON (behind ANSWER), executes a plan for each line of standard input ("topics",
// "consume"), prints what was consumed as a line of JSON, and stops cleanly at the end of input. live.py is the caller.
import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.SocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.ThreadLocalRandom;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.namesrv.NamesrvStartup;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;

public class ApacheStore {
    static final long CONSUME_MS = 40_000;
    static BrokerController broker;
    static MessageStore store;
    static JSONObject plan;
    static int nameserverPort, port;

    public static void main(String[] arguments) {
        try {
            run(arguments);
        } catch (Throwable failure) {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    static void run(String[] arguments) throws Exception {
        String directory = null, stop = "clean", out = null, serve = null;
        Properties conf = new Properties();
        for (int i = 0; i < arguments.length; i++) {
            switch (arguments[i]) {
                case "--store": directory = arguments[++i]; break;
                case "--plan": plan = JSON.parseObject(Files.readString(Paths.get(arguments[++i]))); break;
                case "--stop": stop = arguments[++i]; break;
                case "--out": out = arguments[++i]; break;
                case "--serve": serve = arguments[++i]; break;
                case "--conf": String[] pair = arguments[++i].split("=", 2); conf.setProperty(pair[0], pair[1]); break;
                default: throw new IllegalArgumentException(arguments[i]);
            }
        }
        startBroker(directory, serve != null ? Paths.get(serve) : Paths.get(out).getParent(), conf);
        if (serve != null) {
            serve();
            return;
        }
        for (Object one : list("topics")) topic((JSONObject) one);
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("rocketmq", MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION));
        catchUp();
        found.put("before", view());
        found.put("consumed", consume());
        List<Object> written = new ArrayList<>();
        for (Object one : list("write")) written.add(put((JSONObject) one));
        found.put("written", written);
        catchUp();
        if (!written.isEmpty()) found.put("after", view());
        Files.write(Paths.get(out), JSON.toJSONBytes(found, JSONWriter.Feature.WriteMapNullValue));
        if (stop.equals("halt")) Runtime.getRuntime().halt(9);
        broker.shutdown();
        Runtime.getRuntime().halt(0);
    }

    static void serve() throws Exception {
        say(Map.of("nameserver", nameserverPort, "broker", port));
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = input.readLine()) != null; ) {
            plan = JSON.parseObject(line);
            for (Object one : list("topics")) topic((JSONObject) one);
            say(consume());
        }
        broker.shutdown();
        Runtime.getRuntime().halt(0);
    }

    static void say(Object answer) {
        System.out.println("ANSWER " + JSON.toJSONString(answer));
        System.out.flush();
    }

    static void startBroker(String directory, Path work, Properties conf) throws Exception {
        String home = Files.createTempDirectory(work, "home").toString();
        System.setProperty("rocketmq.home.dir", home);
        System.setProperty("user.home", home);
        nameserverPort = freePort();
        port = freePort();
        Path nameserver = Paths.get(home, "namesrv.conf");
        Files.writeString(nameserver, "listenPort=" + nameserverPort + "\nrocketmqHome=" + home + "\n");
        NamesrvStartup.main0(new String[] {"-c", nameserver.toString()});
        Properties all = new Properties();
        all.putAll(Map.of("brokerClusterName", "DefaultCluster", "brokerName", "broker-a", "brokerId", "0", "brokerIP1", "127.0.0.1",
            "namesrvAddr", "127.0.0.1:" + nameserverPort, "listenPort", "" + port, "haListenPort", "" + freePort(),
            "storePathRootDir", directory, "rocketmqHome", home));
        all.putAll(Map.of("autoCreateTopicEnable", "false", "flushDiskType", "ASYNC_FLUSH", "fileReservedTime", "100000",
            "diskMaxUsedSpaceRatio", "99", "reviveQueueNum", "1"));
        all.putAll(conf);
        Path file = Paths.get(home, "broker.conf");
        try (OutputStream stream = Files.newOutputStream(file)) {
            all.store(stream, null);
        }
        broker = BrokerStartup.createBrokerController(new String[] {"-c", file.toString()});
        broker.start();
        broker.registerBrokerAll(true, false, true); // at once; else the name server hears of it after 10 s
        store = broker.getMessageStore();
    }

    /** Below the ports that the system hands out: another test's connection cannot take it before our bind. */
    static int freePort() {
        for (int tries = 0; tries < 100; tries++) {
            int port = ThreadLocalRandom.current().nextInt(12000, 32000);
            if (isFree(port) && isFree(port - 2)) return port; // the broker's fast server takes its port less two
        }
        throw new IllegalStateException("no free port between 12000 and 32000 in 100 tries");
    }

    static boolean isFree(int port) {
        try (ServerSocket socket = new ServerSocket(port)) {
            return true;
        } catch (IOException taken) {
            return false;
        }
    }

    static JSONArray list(String name) {
        JSONArray found = plan.getJSONArray(name);
        return found == null ? new JSONArray() : found;
    }

    static void catchUp() throws Exception {
        for (int i = 0; i < 200 && store.dispatchBehindBytes() > 0; i++) Thread.sleep(20);
    }

    static void topic(JSONObject wanted) {
        String name = wanted.getString("name");
        int queues = wanted.getIntValue("queues");
        if (broker.getTopicConfigManager().selectTopicConfig(name) != null) return;
        broker.getTopicConfigManager().updateTopicConfig(new TopicConfig(name, queues, queues));
        broker.registerBrokerAll(true, false, true);
    }

    static Object consume() throws Exception {
        List<Object> answers = new ArrayList<>();
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        List<List<Object>> all = new ArrayList<>();
        for (Object one : list("consume")) {
            JSONObject wanted = (JSONObject) one;
            List<Object> came = Collections.synchronizedList(new ArrayList<>());
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(wanted.getString("group"));
            consumer.setNamesrvAddr("127.0.0.1:" + nameserverPort);
            consumer.setInstanceName(UUID.randomUUID().toString());
            consumer.setVipChannelEnabled(false);
            consumer.setPollNameServerInterval(500);
            consumer.setHeartbeatBrokerInterval(500);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe(wanted.getString("topic"), "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt x : messages) {
                    came.add(Map.of("queue", x.getQueueId(), "queue_offset", x.getQueueOffset(), "body_b64",
                        Base64.getEncoder().encodeToString(x.getBody() == null ? new byte[0] : x.getBody())));
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            consumers.add(consumer);
            all.add(came);
        }
        long end = System.currentTimeMillis() + CONSUME_MS;
        for (int i = 0; i < all.size(); i++) {
            int count = ((JSONObject) list("consume").get(i)).getIntValue("count");
            while (all.get(i).size() < count && System.currentTimeMillis() < end) Thread.sleep(20);
        }
        if (!all.isEmpty()) Thread.sleep(300); // what should not come has time to come
        for (int i = 0; i < all.size(); i++) {
            consumers.get(i).shutdown();
            answers.add(new ArrayList<>(all.get(i)));
        }
        return answers;
    }

    static Object put(JSONObject wanted) throws Exception {
        String tags = wanted.getString("tags"), keys = wanted.getString("keys");
        String born = wanted.getString("born"), host = wanted.getString("host");
        MessageExtBrokerInner m = new MessageExtBrokerInner();
        m.setTopic(wanted.getString("topic"));
        m.setQueueId(wanted.getIntValue("queue"));
        m.setBody(Base64.getDecoder().decode(wanted.getString("body_b64")));
        if (tags != null) MessageAccessor.putProperty(m, MessageConst.PROPERTY_TAGS, tags);
        if (keys != null) MessageAccessor.putProperty(m, MessageConst.PROPERTY_KEYS, keys);
        m.setBornTimestamp(System.currentTimeMillis());
        m.setBornHost(new InetSocketAddress(InetAddress.getByName(born), 40001));
        m.setStoreHost(new InetSocketAddress(InetAddress.getByName(host), 10911));
        if (born.contains(":")) m.setBornHostV6Flag();
        if (host.contains(":")) m.setStoreHostAddressV6Flag();
        if (tags != null) m.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(tags));
        m.setPropertiesString(MessageDecoder.messageProperties2String(m.getProperties()));
        PutMessageResult result = store.putMessage(m);
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("status", result.getPutMessageStatus().name());
        if (result.getAppendMessageResult() != null) {
            answer.put("physical_offset", result.getAppendMessageResult().getWroteOffset());
            answer.put("queue_offset", result.getAppendMessageResult().getLogicsOffset());
        }
        return answer;
    }

    static Map<String, Object> view() throws Exception {
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("min_physical_offset", store.getMinPhyOffset());
        found.put("max_physical_offset", store.getMaxPhyOffset());
        Map<String, Object> queues = new TreeMap<>();
        for (Map.Entry<String, ConcurrentMap<Integer, ConsumeQueueInterface>> topic : store.getQueueStore().getConsumeQueueTable().entrySet()) {
            Map<String, Object> some = new TreeMap<>();
            for (Map.Entry<Integer, ConsumeQueueInterface> queue : topic.getValue().entrySet()) {
                if (queue.getValue().getMaxOffsetInQueue() > 0) some.put("" + queue.getKey(), queue(topic.getKey(), queue.getKey(), queue.getValue()));
            }
            if (!some.isEmpty()) queues.put(topic.getKey(), some);
        }
        found.put("queues", queues);
        List<Object> queries = new ArrayList<>();
        for (Object one : list("queries")) {
            String topic = ((JSONObject) one).getString("topic"), key = ((JSONObject) one).getString("key");
            List<Long> offsets = new ArrayList<>();
            QueryMessageResult result = store.queryMessage(topic, key, 64, 0, Long.MAX_VALUE);
            for (SelectMappedBufferResult part : result.getMessageMapedList()) {
                offsets.add(part.getByteBuffer().getLong(part.getByteBuffer().position() + 28));
            }
            result.release();
            queries.add(Map.of("topic", topic, "key", key, "physical_offsets", offsets));
        }
        found.put("key_queries", queries);
        return found;
    }

    static Map<String, Object> queue(String topic, int id, ConsumeQueueInterface queue) throws Exception {
        Map<String, Object> found = new LinkedHashMap<>();
        long low = queue.getMinOffsetInQueue(), high = queue.getMaxOffsetInQueue();
        found.put("min", low);
        found.put("max", high);
        List<Object> units = new ArrayList<>();
        for (long i = low; i < high; i++) units.add(unit(i, queue.get(i)));
        found.put("units", units);
        List<Object> times = new ArrayList<>();
        if (high > low) {
            long first = store.getMessageStoreTimeStamp(topic, id, low), last = store.getMessageStoreTimeStamp(topic, id, high - 1);
            for (long t : new long[] {0, first - 1, first, (first + last) / 2, last, last + 1}) {
                for (BoundaryType b : BoundaryType.values()) times.add(List.of(t, b.name(), store.getOffsetInQueueByTime(topic, id, t, b)));
            }
        }
        found.put("offset_by_time", times);
        return found;
    }

    static Map<String, Object> unit(long number, CqUnit unit) {
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("queue_offset", number);
        found.put("physical_offset", unit.getPos());
        found.put("size", unit.getSize());
        found.put("tags_code", unit.getTagsCode());
        MessageExt x = store.lookMessageByOffset(unit.getPos(), unit.getSize());
        if (x == null) return found;
        found.put("record_topic", x.getTopic());
        found.put("record_queue_id", x.getQueueId());
        found.put("record_queue_offset", x.getQueueOffset());
        found.put("flag", x.getFlag());
        found.put("sys_flag", x.getSysFlag());
        found.put("born_timestamp", x.getBornTimestamp());
        found.put("born_host", host(x.getBornHost()));
        found.put("store_timestamp", x.getStoreTimestamp());
        found.put("store_host", host(x.getStoreHost()));
        found.put("reconsume_times", x.getReconsumeTimes());
        found.put("prepared_transaction_offset", x.getPreparedTransactionOffset());
        found.put("body_crc", x.getBodyCRC());
        found.put("properties", new TreeMap<>(x.getProperties()));
        found.put("stored_body_b64", Base64.getEncoder().encodeToString(x.getBody() == null ? new byte[0] : x.getBody()));
        return found;
    }

    static String host(SocketAddress address) {
        InetSocketAddress found = (InetSocketAddress) address;
        return found.getAddress().getHostAddress() + "|" + found.getPort();
    }
}
