package shop;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.spring.annotation.RocketMQMessageListener;
import org.apache.rocketmq.spring.core.RocketMQListener;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.stereotype.Service;

/** Sends three messages and receives them, with the annotations of the official starter. */
@SpringBootApplication
public class Shop {
    static final CountDownLatch RECEIVED = new CountDownLatch(3);

    @Service
    @RocketMQMessageListener(topic = "spring-orders", consumerGroup = "spring-shop")
    public static class Orders implements RocketMQListener<String> {
        @Override
        public void onMessage(String body) {
            System.out.println("received " + body);
            RECEIVED.countDown();
        }
    }

    public static void main(String[] arguments) throws Exception {
        ConfigurableApplicationContext context = SpringApplication.run(Shop.class, arguments);
        RocketMQTemplate template = context.getBean(RocketMQTemplate.class);
        for (int number = 0; number < 3; number++) {
            SendResult result = template.syncSend("spring-orders", "order-" + number);
            System.out.println(result.getSendStatus());
        }
        boolean all = RECEIVED.await(120, TimeUnit.SECONDS);
        context.close();
        System.out.println(all ? "OK" : "messages are missing");
        System.exit(0);
    }
}
