// The official Go client with its default settings, but time for a slow machine: sends, receives, retries, orders, delays, transacts;
// prints what it saw.
//
//	client ENDPOINT MARK COUNT
//	client ENDPOINT MARK load:SECONDS    sends one after the other instead, and prints the gaps
//	client ENDPOINT TOPIC history:FILE:RUN:PAUSE_MS    sends until SIGTERM, and writes every outcome to FILE
//
// Topics and groups are MARK-normal, MARK-fifo, MARK-delay, MARK-transaction, MARK-group, MARK-ordered.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

// A request takes longer only if the broker hangs: the client's own 3 s are too short on a slow machine.
const patience = 30 * time.Second

var (
	endpoint, mark = os.Args[1], os.Args[2]
	producer       rmq.Producer
	lock           sync.Mutex
	asked          = []string{}
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func topic(kind string) string { return mark + "-" + kind }

func config(group string) *rmq.Config {
	return &rmq.Config{
		Endpoint: endpoint, ConsumerGroup: group, Credentials: &credentials.SessionCredentials{},
	}
}

func message(kind, body string) *rmq.Message {
	return &rmq.Message{Topic: topic(kind), Body: []byte(body)}
}

func send(message *rmq.Message) string {
	receipts, err := producer.Send(context.Background(), message)
	check(err)
	return receipts[0].MessageID
}

// receive until `enough` says so of a message; what came is acknowledged unless it wants to keep it.
func receive(kind, group string, each func(rmq.SimpleConsumer, *rmq.MessageView) (keep, enough bool)) {
	consumer, err := rmq.NewSimpleConsumer(config(topic(group)),
		rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic(kind): rmq.SUB_ALL}))
	check(err)
	consumer.SetRequestTimeout(patience)
	check(consumer.Start())
	until := time.Now().Add(60 * time.Second)
	for enough := false; !enough && time.Now().Before(until); {
		messages, err := consumer.Receive(context.Background(), 16, 30*time.Second)
		if err != nil {
			continue // nothing came within the time
		}
		for _, message := range messages {
			keep, last := each(consumer, message)
			enough = enough || last
			if !keep {
				check(consumer.Ack(context.Background(), message))
			}
		}
	}
	check(consumer.GracefulStop())
}

func plain(count int) ([]string, map[string]string) {
	sent, got := []string{}, map[string]string{}
	for number := 0; number < count; number++ {
		one := message("normal", fmt.Sprintf("go-%d", number))
		one.SetTag("go")
		one.SetKeys(fmt.Sprintf("k%d", number))
		sent = append(sent, send(one))
	}
	receive("normal", "group", func(_ rmq.SimpleConsumer, one *rmq.MessageView) (bool, bool) {
		got[one.GetMessageId()] = string(one.GetBody())
		return false, len(got) == count
	})
	return sent, got
}

func retry() []int {
	attempts := []int{}
	send(message("normal", "again"))
	receive("normal", "group", func(consumer rmq.SimpleConsumer, one *rmq.MessageView) (bool, bool) {
		attempts = append(attempts, int(one.GetDeliveryAttempt()))
		if len(attempts) < 2 {
			check(consumer.ChangeInvisibleDuration(one, time.Second))
			return true, false
		}
		return false, true
	})
	return attempts
}

func order(count int) []string {
	got := []string{}
	for number := 0; number < count; number++ {
		one := message("fifo", strconv.Itoa(number))
		one.SetMessageGroup("group")
		send(one)
	}
	receive("fifo", "ordered", func(_ rmq.SimpleConsumer, one *rmq.MessageView) (bool, bool) {
		got = append(got, string(one.GetBody()))
		return false, len(got) == count
	})
	return got
}

// What is sent for later goes first, so that everything else happens meanwhile.
func later() time.Time {
	due := time.Now().Add(6 * time.Second)
	one := message("delay", "later")
	one.SetDelayTimestamp(due)
	send(one)
	return due
}

func delay(due time.Time) map[string]any {
	var came time.Time
	body := ""
	receive("delay", "group", func(_ rmq.SimpleConsumer, one *rmq.MessageView) (bool, bool) {
		came, body = time.Now(), string(one.GetBody())
		return false, true
	})
	return map[string]any{"due": due.UnixMilli(), "came": came.UnixMilli(), "body": body}
}

func transact() []string {
	got := []string{}
	for _, end := range []string{"rollback", "commit", "open"} {
		transaction := producer.BeginTransaction()
		_, err := producer.SendWithTransaction(context.Background(), message("transaction", end), transaction)
		check(err)
		switch end {
		case "commit":
			check(transaction.Commit())
		case "rollback":
			check(transaction.RollBack())
		}
	}
	receive("transaction", "group", func(_ rmq.SimpleConsumer, one *rmq.MessageView) (bool, bool) {
		got = append(got, string(one.GetBody()))
		return false, len(got) == 2
	})
	return got
}

// load sends until the time is up; what counts is the longest time without an OK, and the errors.
func load(seconds int) {
	var err error
	producer, err = rmq.NewProducer(config(topic("group")), rmq.WithTopics(topic("normal")))
	check(err)
	check(producer.Start())
	sent, errors, gap, first := []string{}, []string{}, time.Duration(0), time.Now()
	last := first
	for number := 0; time.Since(first) < time.Duration(seconds)*time.Second; number++ {
		receipts, err := producer.Send(context.Background(), message("normal", strconv.Itoa(number)))
		if err != nil {
			errors = append(errors, err.Error())
			continue
		}
		sent = append(sent, receipts[0].MessageID)
		gap, last = max(gap, time.Since(last)), time.Now()
	}
	gap = max(gap, time.Since(last)) // none came any more
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"sent": sent, "errors": errors, "gap_ms": gap.Milliseconds(),
	}))
}

// record sends to a FIFO topic until SIGTERM, with a pause after each message, a message again until it is
// acknowledged, and writes a line for each attempt and outcome, in the form of drills/history.py.
func record(file, run string, pause time.Duration) {
	out, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	check(err)
	line := func(event, id string, more map[string]any) {
		var now syscall.Timespec
		syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(&now)), 0)
		fields := map[string]any{
			"t": float64(now.Sec) + float64(now.Nsec)/1e9, "c": "go-" + run, "e": event, "id": id,
		}
		maps.Copy(fields, more)
		text, err := json.Marshal(fields)
		check(err)
		_, err = out.Write(append(text, '\n'))
		check(err)
	}
	stopping := make(chan os.Signal, 1)
	signal.Notify(stopping, syscall.SIGTERM)
	var stopped atomic.Bool
	go func() {
		<-stopping
		stopped.Store(true)
		time.Sleep(20 * time.Second)
		os.Exit(0)
	}()
	for !stopped.Load() {
		producer, err = rmq.NewProducer(config(""), rmq.WithTopics(mark))
		check(err)
		if err = producer.Start(); err == nil {
			break
		}
		fmt.Fprintln(os.Stderr, err)
		time.Sleep(50 * time.Millisecond)
	}
	group := run + "go"
	for seq := 1; !stopped.Load(); seq++ {
		id := fmt.Sprintf("%s-%d", group, seq)
		for {
			line("invoke", id, map[string]any{"group": group, "seq": seq})
			one := &rmq.Message{Topic: mark, Body: []byte(id + "|go")}
			one.SetMessageGroup(group)
			receipts, err := producer.Send(context.Background(), one)
			if err == nil {
				offset := receipts[0].Offset
				line("ok", id, map[string]any{"group": group, "seq": seq, "offset": offset})
				break
			}
			line("unknown", id, map[string]any{"why": err.Error()})
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(pause)
	}
	os.Exit(0)
}

func main() {
	if rest, is := strings.CutPrefix(os.Args[3], "history:"); is {
		words := strings.Split(rest, ":")
		pause, err := strconv.Atoi(words[2])
		check(err)
		record(words[0], words[1], time.Duration(pause)*time.Millisecond)
		return
	}
	if seconds, is := strings.CutPrefix(os.Args[3], "load:"); is {
		number, err := strconv.Atoi(seconds)
		check(err)
		load(number)
		return
	}
	count, err := strconv.Atoi(os.Args[3])
	check(err)
	checker := func(one *rmq.MessageView) rmq.TransactionResolution {
		lock.Lock()
		defer lock.Unlock()
		asked = append(asked, string(one.GetBody()))
		if string(one.GetBody()) == "rollback" {
			return rmq.ROLLBACK // asked before its end arrived
		}
		return rmq.COMMIT
	}
	producer, err = rmq.NewProducer(config(topic("group")),
		rmq.WithTopics(topic("normal"), topic("fifo"), topic("delay"), topic("transaction")),
		rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: checker}))
	check(err)
	producer.SetRequestTimeout(patience)
	check(producer.Start())
	due := later()
	sent, got := plain(count)
	seen := map[string]any{
		"sent": sent, "got": got, "retry": retry(), "order": order(count), "transact": transact(),
		"delay": delay(due),
	}
	lock.Lock()
	seen["asked"] = asked
	lock.Unlock()
	check(json.NewEncoder(os.Stdout).Encode(seen))
}
