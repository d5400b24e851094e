// The official Go client for classic clients, unmodified: sends, push, retry, order, broadcasting, delay, pull,
// filters, transactions, offsets over a restart, request and reply, dead letters, a rebalance.
//
// Arguments: nameserver, mark of topics and groups. Prints OK, or FAILED and the step. With a third argument
// "failover" it sends while the leader is killed (see failover).
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	count = 20
	limit = 120 * time.Second
)

var (
	nameserver, mark string
	everything       = consumer.MessageSelector{}
)

func main() {
	rlog.SetLogLevel("error")
	nameserver, mark = os.Args[1], os.Args[2]
	if len(os.Args) > 3 {
		failover()
		fmt.Println("OK")
		return
	}
	sender := newProducer()
	var running sync.WaitGroup
	for name, step := range map[string]func(rocketmq.Producer){
		"push": push, "order": order, "broadcast": broadcast, "delay": delay, "pull": pull, "sql": sql,
		"transaction": transaction, "restart": restart, "request": request, "dead": dead, "rebalance": rebalance,
	} {
		running.Add(1)
		go func() {
			defer running.Done()
			step(sender)
			fmt.Println("done", name)
		}()
	}
	running.Wait()
	require(sender.Shutdown())
	fmt.Println("OK")
}

// push sends in every way; two consumers with a tag filter share, and one message is retried.
func push(sender rocketmq.Producer) {
	topic := mark + "-push"
	got := newSeen()
	wanted := map[string]bool{}
	for n := range count {
		result, err := sender.SendSync(context.Background(), message(topic, "wanted", "sync-"+strconv.Itoa(n)))
		require(err)
		check(result.Status == primitive.SendOK && result.MsgID != "" && result.OffsetMsgID != "", "a send")
		wanted["sync-"+strconv.Itoa(n)] = true
	}
	var answered sync.WaitGroup
	batch := []*primitive.Message{}
	for n := range count {
		answered.Add(1)
		body := "async-" + strconv.Itoa(n)
		go func() {
			defer answered.Done()
			sendAsync(sender, topic, body)
		}()
		batch = append(batch, message(topic, "wanted", "batch-"+strconv.Itoa(n)))
		wanted[body], wanted["batch-"+strconv.Itoa(n)] = true, true
	}
	answered.Wait()
	_, err := sender.SendSync(context.Background(), batch...)
	require(err)
	require(sender.SendOneWay(context.Background(), message(topic, "wanted", "oneway")))
	wanted["oneway"] = true
	_, err = sender.SendSync(context.Background(), message(topic, "other", "filtered"))
	require(err)
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: "wanted || unused"}
	for range 2 {
		defer stop(started("push", topic, selector, func(ctx context.Context, each *primitive.MessageExt) consumer.ConsumeResult {
			if string(each.Body) == "sync-0" && each.ReconsumeTimes == 0 {
				concurrently, _ := primitive.GetConcurrentlyCtx(ctx)
				concurrently.DelayLevelWhenNextConsume = 1
				return consumer.ConsumeRetryLater
			}
			check(string(each.Body) != "sync-0" || each.ReconsumeTimes == 1, "the attempt of the retried message")
			got.add(string(each.Body))
			return consumer.ConsumeSuccess
		}))
	}
	got.wait(len(wanted), "push")
	for body := range wanted {
		check(got.has(body), "push: "+body)
	}
	check(!got.has("filtered"), "the tag filter")
}

// sendAsync repeats a message until it is acknowledged: the client gives each attempt 3 s, and does not retry.
func sendAsync(sender rocketmq.Producer, topic, body string) {
	for end := time.Now().Add(limit); ; {
		outcome := make(chan error, 2) // the client calls back twice after an error
		err := sender.SendAsync(context.Background(), func(_ context.Context, _ *primitive.SendResult, err error) {
			outcome <- err
		}, message(topic, "wanted", body))
		if err == nil {
			err = <-outcome
		}
		if err == nil {
			return
		}
		check(time.Now().Before(end), "an asynchronous send: "+err.Error())
	}
}

// order sends to one queue and consumes in order.
func order(rocketmq.Producer) {
	topic := mark + "-order"
	sender := newProducer(producer.WithQueueSelector(producer.NewHashQueueSelector()))
	defer func() { require(sender.Shutdown()) }()
	for n := range count {
		_, err := sender.SendSync(context.Background(), message(topic, "o", strconv.Itoa(n)).WithShardingKey("k"))
		require(err)
	}
	got := newSeen()
	defer stop(started("order", topic, everything, func(_ context.Context, each *primitive.MessageExt) consumer.ConsumeResult {
		// An attempt that the client repeated may have been stored, too.
		check(got.has(string(each.Body)) || string(each.Body) == strconv.Itoa(got.size()), "the order")
		got.add(string(each.Body))
		return consumer.ConsumeSuccess
	}, consumer.WithConsumerOrder(true)))
	got.wait(count, "order")
}

// broadcast delivers every message to each of two consumers.
func broadcast(sender rocketmq.Producer) {
	topic := mark + "-broadcast"
	got := []*seen{newSeen(), newSeen()}
	for _, own := range got {
		defer stop(started("broadcast", topic, everything, func(_ context.Context, each *primitive.MessageExt) consumer.ConsumeResult {
			own.add(string(each.Body))
			return consumer.ConsumeSuccess
		}, consumer.WithConsumerModel(consumer.BroadCasting)))
	}
	for n := range count {
		_, err := sender.SendSync(context.Background(), message(topic, "b", strconv.Itoa(n)))
		require(err)
	}
	for _, own := range got {
		own.wait(count, "broadcast")
	}
}

// delay sends one message with a level and one with a time.
func delay(sender rocketmq.Producer) {
	topic := mark + "-delay"
	begin := time.Now()
	_, err := sender.SendSync(context.Background(), message(topic, "d", "level").WithDelayTimeLevel(1))
	require(err)
	timed := message(topic, "d", "time")
	timed.WithProperty("TIMER_DELIVER_MS", strconv.FormatInt(begin.Add(2*time.Second).UnixMilli(), 10))
	_, err = sender.SendSync(context.Background(), timed)
	require(err)
	got := newSeen()
	defer stop(started("delay", topic, everything, func(_ context.Context, each *primitive.MessageExt) consumer.ConsumeResult {
		due := map[string]time.Duration{"level": time.Second, "time": 2 * time.Second}[string(each.Body)]
		check(time.Since(begin) >= due-100*time.Millisecond, "a message before its time")
		got.add(string(each.Body))
		return consumer.ConsumeSuccess
	}))
	got.wait(2, "delay")
}

// pull reads a queue by offsets.
func pull(sender rocketmq.Producer) {
	topic := mark + "-pull"
	for n := range count {
		_, err := sender.SendSync(context.Background(), message(topic, "p", strconv.Itoa(n)))
		require(err)
	}
	reader, err := rocketmq.NewPullConsumer(
		consumer.WithGroupName(mark+"-pull-group"), consumer.WithNsResolver(resolver()), consumer.WithInstance(mark+"-pull"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	require(err)
	require(reader.Subscribe(topic, everything))
	require(reader.Start())
	defer func() { require(reader.Shutdown()) }()
	got := newSeen()
	for end := time.Now().Add(limit); got.size() < count; {
		check(time.Now().Before(end), "pull")
		found, err := reader.Poll(context.Background(), time.Second)
		if consumer.IsNoNewMsgError(err) {
			continue
		}
		require(err)
		for _, each := range found.GetMsgList() {
			got.add(string(each.Body))
		}
		reader.ACK(context.Background(), found, consumer.ConsumeSuccess)
	}
}

// sql filters by properties.
func sql(sender rocketmq.Producer) {
	topic := mark + "-sql"
	for n := range count {
		each := message(topic, "s", strconv.Itoa(n))
		each.WithProperty("n", strconv.Itoa(n))
		_, err := sender.SendSync(context.Background(), each)
		require(err)
	}
	got := newSeen()
	selector := consumer.MessageSelector{Type: consumer.SQL92, Expression: "n >= 15"}
	defer stop(started("sql", topic, selector, func(_ context.Context, each *primitive.MessageExt) consumer.ConsumeResult {
		check(each.GetProperty("n") >= "15" && len(each.GetProperty("n")) == 2, "the SQL filter")
		got.add(string(each.Body))
		return consumer.ConsumeSuccess
	}))
	got.wait(5, "sql")
}

type listener struct{ asked *seen }

func (l listener) ExecuteLocalTransaction(each *primitive.Message) primitive.LocalTransactionState {
	switch string(each.Body) {
	case "committed":
		return primitive.CommitMessageState
	case "rolled back":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (l listener) CheckLocalTransaction(each *primitive.MessageExt) primitive.LocalTransactionState {
	l.asked.add(string(each.Body))
	if string(each.Body) == "rolled back" {
		return primitive.RollbackMessageState // asked before its end arrived
	}
	return primitive.CommitMessageState
}

// transaction commits one message, rolls one back, and commits one when the broker asks.
func transaction(rocketmq.Producer) {
	topic, asked, got := mark+"-transaction", newSeen(), newSeen()
	sender, err := rocketmq.NewTransactionProducer(listener{asked},
		producer.WithNsResolver(resolver()), producer.WithGroupName(mark+"-transactions"), producer.WithInstanceName(mark+"-tx"),
		producer.WithSendMsgTimeout(30*time.Second), producer.WithRetry(10))
	require(err)
	require(sender.Start())
	defer func() { require(sender.Shutdown()) }()
	for _, body := range []string{"committed", "rolled back", "asked"} {
		_, err := sender.SendMessageInTransaction(context.Background(), message(topic, "t", body))
		require(err)
	}
	defer stop(started("transaction", topic, everything, func(_ context.Context, each *primitive.MessageExt) consumer.ConsumeResult {
		got.add(string(each.Body))
		return consumer.ConsumeSuccess
	}))
	got.wait(2, "transaction")
	check(got.has("committed") && got.has("asked") && asked.has("asked"), "transactions")
}

// restart stops a consumer; the next one of the group goes on behind it.
func restart(sender rocketmq.Producer) {
	topic, again := mark+"-restart", newSeen()
	for part := range 2 {
		got := newSeen()
		reader := started("restart", topic, everything, func(_ context.Context, each *primitive.MessageExt) consumer.ConsumeResult {
			if each.Body[0] == byte('0'+part) {
				got.add(string(each.Body))
			} else {
				again.add(string(each.Body))
			}
			return consumer.ConsumeSuccess
		})
		// One after the other: the client loses offsets of messages that it handles at the same moment.
		for n := range count {
			_, err := sender.SendSync(context.Background(), message(topic, "r", fmt.Sprintf("%d-%d", part, n)))
			require(err)
			got.wait(n+1, "restart")
		}
		stop(reader)
	}
	// The client commits what its last handler has finished: the end of the first part may come again.
	check(again.size() < count/2, fmt.Sprintf("%d messages again after the restart", again.size()))
}

// request waits for the reply of a consumer.
func request(sender rocketmq.Producer) {
	topic := mark + "-request"
	defer stop(started("request", topic, everything, func(_ context.Context, each *primitive.MessageExt) consumer.ConsumeResult {
		answer, err := consumer.CreateReplyMessage(each, nil)
		require(err)
		answer.Body = []byte("re: " + string(each.Body))
		// Until the first heartbeat of the client that asks the broker does not know its connection.
		_, _ = sender.SendSync(context.Background(), answer)
		return consumer.ConsumeSuccess
	}))
	// A producer of its own: the reply goes to its connection.
	asking := newProducer()
	defer func() { require(asking.Shutdown()) }()
	for end := time.Now().Add(limit); ; {
		answer, err := asking.Request(context.Background(), 2*time.Second, message(topic, "q", "question"))
		if err == nil {
			check(string(answer.Body) == "re: question", "the reply: "+string(answer.Body))
			return
		}
		check(time.Now().Before(end), "a reply")
	}
}

// dead fails every attempt of a message; the caller of the program looks for it in the dead letters.
func dead(sender rocketmq.Producer) {
	topic, attempts := mark+"-dead", newSeen()
	_, err := sender.SendSync(context.Background(), message(topic, "x", "dead"))
	require(err)
	defer stop(started("dead", topic, everything, func(ctx context.Context, each *primitive.MessageExt) consumer.ConsumeResult {
		attempts.add(strconv.Itoa(int(each.ReconsumeTimes)))
		concurrently, _ := primitive.GetConcurrentlyCtx(ctx)
		concurrently.DelayLevelWhenNextConsume = 1
		return consumer.ConsumeRetryLater
	}, consumer.WithMaxReconsumeTimes(1)))
	attempts.wait(2, "dead letters")
	check(attempts.has("0") && attempts.has("1"), "attempts of a dead letter")
	time.Sleep(time.Second) // the client sends it back after its handler
}

// rebalance lets two consumers share; after one has stopped the other one gets everything.
func rebalance(sender rocketmq.Producer) {
	topic := mark + "-rebalance"
	got := []*seen{newSeen(), newSeen()}
	running := []rocketmq.PushConsumer{}
	for _, own := range got {
		running = append(running, started("rebalance", topic, everything, func(_ context.Context, each *primitive.MessageExt) consumer.ConsumeResult {
			own.add(string(each.Body))
			return consumer.ConsumeSuccess
		}))
	}
	sent := 0
	send := func() {
		_, err := sender.SendSync(context.Background(), message(topic, "r", strconv.Itoa(sent)))
		require(err)
		sent++
	}
	for end := time.Now().Add(limit); got[0].size() == 0 || got[1].size() == 0; time.Sleep(50 * time.Millisecond) {
		check(time.Now().Before(end), "rebalance: both consumers get messages")
		send()
	}
	stop(running[0])
	before := sent
	for range count {
		send()
	}
	defer stop(running[1])
	for end := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		missing := 0
		for n := range sent {
			body := strconv.Itoa(n)
			if !got[1].has(body) && (n >= before || !got[0].has(body)) {
				missing++
			}
		}
		if missing == 0 {
			break
		}
		check(time.Now().Before(end), fmt.Sprintf("rebalance: %d messages are missing", missing))
	}
}

const enough = 200

// failover sends while the leader is killed; then every acknowledged message must be consumed. It prints SENDING once
// messages are acknowledged (then the leader may be killed), and the largest gap between two of them. A line in the
// standard input tells of the kill: the client repeats a send by itself, so that the program may not see a failure.
func failover() {
	topic, got, acknowledged := mark+"-failover", newSeen(), map[string]bool{}
	defer stop(started("failover", topic, everything, func(_ context.Context, each *primitive.MessageExt) consumer.ConsumeResult {
		got.add(string(each.Body))
		return consumer.ConsumeSuccess
	}))
	sender, err := rocketmq.NewProducer(
		producer.WithNsResolver(resolver()), producer.WithGroupName(mark+"-producers"), producer.WithInstanceName(instance()))
	require(err)
	require(sender.Start())
	defer func() { require(sender.Shutdown()) }()
	var last time.Time
	var largest time.Duration
	failed, after := 0, 0
	var killed atomic.Bool
	go func() {
		_, err := os.Stdin.Read(make([]byte, 1))
		require(err)
		killed.Store(true)
	}()
	for n := 0; after < enough; n++ {
		body := strconv.Itoa(n)
		result, err := sender.SendSync(context.Background(), message(topic, "f", body))
		if err != nil || result.Status != primitive.SendOK {
			failed++
			time.Sleep(10 * time.Millisecond)
			continue
		}
		acknowledged[body] = true
		if !last.IsZero() {
			largest = max(largest, time.Since(last))
		}
		last = time.Now()
		if killed.Load() {
			after++
		}
		if len(acknowledged) == enough {
			fmt.Println("SENDING")
		}
		time.Sleep(5 * time.Millisecond)
	}
	fmt.Printf("GAP %d ms, %d failed, %d acknowledged\n", largest.Milliseconds(), failed, len(acknowledged))
	for end := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		missing := 0
		for body := range acknowledged {
			if !got.has(body) {
				missing++
			}
		}
		if missing == 0 {
			return
		}
		check(time.Now().Before(end), fmt.Sprintf("%d acknowledged messages are not consumed", missing))
	}
}

func newProducer(options ...producer.Option) rocketmq.Producer {
	options = append(options, producer.WithNsResolver(resolver()), producer.WithGroupName(mark+"-producers"),
		producer.WithInstanceName(instance()), producer.WithSendMsgTimeout(30*time.Second),
		producer.WithRetry(10)) // an attempt has 3 s, whatever the timeout says
	made, err := rocketmq.NewProducer(options...)
	require(err)
	require(made.Start())
	return made
}

// started returns a running consumer of the group of a step.
func started(
	step, topic string, selector consumer.MessageSelector,
	handle func(context.Context, *primitive.MessageExt) consumer.ConsumeResult, options ...consumer.Option,
) rocketmq.PushConsumer {
	options = append(options, consumer.WithNsResolver(resolver()), consumer.WithGroupName(mark+"-"+step+"-group"),
		consumer.WithInstance(instance()), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	made, err := rocketmq.NewPushConsumer(options...)
	require(err)
	require(made.Subscribe(topic, selector, func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, each := range messages {
			if result := handle(ctx, each); result != consumer.ConsumeSuccess {
				return result, nil
			}
		}
		return consumer.ConsumeSuccess, nil
	}))
	require(made.Start())
	return made
}

func stop(running rocketmq.PushConsumer) { require(running.Shutdown()) }

func resolver() primitive.NsResolver {
	return primitive.NewPassthroughResolver([]string{nameserver})
}

var (
	instances     int
	instancesLock sync.Mutex
)

// instance returns another name each time: the clients of one process share a connection otherwise.
func instance() string {
	instancesLock.Lock()
	defer instancesLock.Unlock()
	instances++
	return mark + "-" + strconv.Itoa(instances)
}

func message(topic, tag, body string) *primitive.Message {
	return primitive.NewMessage(topic, []byte(body)).WithTag(tag).WithKeys([]string{"key-" + body})
}

// seen holds the bodies that a consumer got.
type seen struct {
	lock   sync.Mutex
	bodies map[string]int
}

func newSeen() *seen { return &seen{bodies: map[string]int{}} }

func (s *seen) add(body string) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.bodies[body]++
}

func (s *seen) has(body string) bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.bodies[body] > 0
}

func (s *seen) size() int {
	s.lock.Lock()
	defer s.lock.Unlock()
	return len(s.bodies)
}

func (s *seen) wait(wanted int, what string) {
	for end := time.Now().Add(limit); s.size() < wanted; time.Sleep(20 * time.Millisecond) {
		check(time.Now().Before(end), fmt.Sprintf("%s: %d of %d messages", what, s.size(), wanted))
	}
}

func require(err error) {
	if err != nil {
		check(false, err.Error())
	}
}

func check(holds bool, what string) {
	if !holds {
		fmt.Println("FAILED", what)
		os.Exit(1)
	}
}
