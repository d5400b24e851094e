// The official Go client with credentials: sends a message and receives it, for each case.
//
//	acl CASES
//
// CASES is a JSON list of [endpoint, access key, secret key, topic, group]. Prints a JSON list: the
// received body, or the error.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

// mayWait tells whether the settings of a client may be refused; it waits for them as long as it can.
func mayWait(accessKey, topic string) bool { return accessKey == "reader" || topic == "secret" }

func run(endpoint, accessKey, secretKey, topic, group string) (string, error) {
	config := &rmq.Config{
		Endpoint: endpoint, ConsumerGroup: group,
		Credentials: &credentials.SessionCredentials{AccessKey: accessKey, AccessSecret: secretKey},
	}
	producer, err := rmq.NewProducer(config, rmq.WithTopics(topic), rmq.WithMaxAttempts(1))
	if err != nil {
		return "", err
	}
	if !mayWait(accessKey, topic) {
		producer.SetRequestTimeout(30 * time.Second)
	}
	if err := producer.Start(); err != nil {
		return "", err
	}
	receipts, err := producer.Send(context.Background(), &rmq.Message{Topic: topic, Body: []byte("signed")})
	if err != nil {
		return "", err
	}
	consumer, err := rmq.NewSimpleConsumer(config,
		rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}))
	if err != nil {
		return "", err
	}
	consumer.SetRequestTimeout(30 * time.Second)
	if err := consumer.Start(); err != nil {
		return "", err
	}
	defer consumer.GracefulStop()
	for attempt := 0; attempt < 20; attempt++ {
		messages, _ := consumer.Receive(context.Background(), 16, 30*time.Second)
		for _, message := range messages {
			if err := consumer.Ack(context.Background(), message); err != nil {
				return "", err
			}
			if message.GetMessageId() == receipts[0].MessageID {
				return string(message.GetBody()), nil
			}
		}
	}
	return "nothing received", nil
}

// within returns the outcome of a case; the client waits in its start for settings that it is refused.
func within(limit time.Duration, one [5]string) string {
	outcome := make(chan string, 1)
	go func() {
		text, err := run(one[0], one[1], one[2], one[3], one[4])
		if err != nil {
			text = err.Error()
		}
		outcome <- text
	}()
	select {
	case text := <-outcome:
		return text
	case <-time.After(limit):
		return "still waiting"
	}
}

func main() {
	cases, seen := [][5]string{}, []string{}
	if err := json.Unmarshal([]byte(os.Args[1]), &cases); err != nil {
		panic(err)
	}
	for _, one := range cases {
		limit := 60 * time.Second
		if mayWait(one[1], one[3]) {
			limit = 20 * time.Second
		}
		seen = append(seen, within(limit, one))
	}
	line, _ := json.Marshal(seen)
	fmt.Println(string(line))
	os.Exit(0)
}
