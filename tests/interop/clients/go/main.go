// The official Go client with its default settings: sends, receives, acknowledges; prints what it saw.
//
//	client ENDPOINT TOPIC GROUP COUNT
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	endpoint, topic, group := os.Args[1], os.Args[2], os.Args[3]
	count, err := strconv.Atoi(os.Args[4])
	check(err)
	config := func() *rmq.Config {
		return &rmq.Config{
			Endpoint:      endpoint,
			ConsumerGroup: group,
			Credentials:   &credentials.SessionCredentials{},
		}
	}
	producer, err := rmq.NewProducer(config(), rmq.WithTopics(topic))
	check(err)
	check(producer.Start())
	sent := []string{}
	for number := 0; number < count; number++ {
		message := &rmq.Message{Topic: topic, Body: []byte(fmt.Sprintf("go-%d", number))}
		message.SetTag("go")
		message.SetKeys(fmt.Sprintf("k%d", number))
		receipts, err := producer.Send(context.Background(), message)
		check(err)
		sent = append(sent, receipts[0].MessageID)
	}
	consumer, err := rmq.NewSimpleConsumer(config(),
		rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}))
	check(err)
	check(consumer.Start())
	got := map[string]string{}
	until := time.Now().Add(60 * time.Second)
	for len(got) < count && time.Now().Before(until) {
		messages, err := consumer.Receive(context.Background(), 16, 30*time.Second)
		if err != nil {
			continue // nothing came within the time
		}
		for _, message := range messages {
			got[message.GetMessageId()] = string(message.GetBody())
			check(consumer.Ack(context.Background(), message))
		}
	}
	check(consumer.GracefulStop())
	check(producer.GracefulStop())
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{"sent": sent, "got": got}))
}
