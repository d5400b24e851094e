// nats is a NATS JetStream server with one stream in files, and a publisher that measures it.
//
//	nats serve -store DIR                                   prints its address and serves until it is stopped
//	nats publish -address HOST:PORT -inflight 64            synchronous publishes, each waits for its answer
//	nats publish -address HOST:PORT -pipeline 4096          asynchronous publishes with at most 4096 unanswered
//
// With -pid PID the publisher prints the CPU time of that process, too. It prints one JSON line with the names of
// tests/bench/loadgen.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	subject     = "bench"
	readyWithin = 20 * time.Second
	ticksPerSec = 100 // USER_HZ of /proc/PID/stat
)

func main() {
	if len(os.Args) < 2 {
		fail(fmt.Errorf("usage: nats serve|publish [options]"))
	}
	set := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	switch os.Args[1] {
	case "serve":
		serve(set)
	case "publish":
		publish(set)
	default:
		fail(fmt.Errorf("unknown command %q", os.Args[1]))
	}
}

// serve runs a server on a free port of the loopback interface.
func serve(set *flag.FlagSet) {
	store := set.String("store", "", "folder of the stream")
	check(set.Parse(os.Args[2:]))
	instance, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: *store, NoSigs: true})
	check(err)
	go instance.Start()
	if !instance.ReadyForConnections(readyWithin) {
		fail(fmt.Errorf("the server does not accept connections after %v", readyWithin))
	}
	connection, err := nats.Connect(instance.ClientURL())
	check(err)
	stream, err := jetstream.New(connection)
	check(err)
	config := jetstream.StreamConfig{Name: "bench", Subjects: []string{subject}, Storage: jetstream.FileStorage}
	_, err = stream.CreateStream(context.Background(), config)
	check(err)
	connection.Close()
	fmt.Println(instance.Addr())
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	<-stop
	instance.Shutdown()
}

// counts are the acknowledged publishes of one sender after the warm-up.
type counts struct {
	latenciesMs []float64
	failed      int
}

func publish(set *flag.FlagSet) {
	address := set.String("address", "", "host:port")
	inflight := set.Int("inflight", 1, "synchronous senders")
	pipeline := set.Int("pipeline", 0, "publish asynchronously with so many unanswered")
	size := set.Int("size", 1024, "body bytes")
	seconds := set.Float64("seconds", 5, "measured time")
	warm := set.Float64("warm", 2, "seconds before measuring")
	pid := set.Int("pid", 0, "server process")
	check(set.Parse(os.Args[2:]))
	connection, err := nats.Connect("nats://" + *address)
	check(err)
	defer connection.Close()
	body := make([]byte, *size)
	from := time.Now().Add(duration(*warm))
	until := from.Add(duration(*seconds))
	var before float64
	go func() { time.Sleep(time.Until(from)); before = cpuSeconds(*pid) }()
	found := make([]counts, max(*inflight, 1))
	var senders sync.WaitGroup
	for i := range found {
		stream, err := jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(max(*pipeline, 1)))
		check(err)
		senders.Add(1)
		go func() {
			defer senders.Done()
			if *pipeline > 0 {
				found[i] = pipelined(stream, body, from, until, *pipeline)
			} else {
				found[i] = oneByOne(stream, body, from, until)
			}
		}()
	}
	time.Sleep(time.Until(until))
	after := cpuSeconds(*pid)
	senders.Wait()
	report(found, *seconds, after-before, *pid > 0)
}

func oneByOne(stream jetstream.JetStream, body []byte, from, until time.Time) (found counts) {
	for began := time.Now(); began.Before(until); began = time.Now() {
		_, err := stream.Publish(context.Background(), subject, body)
		found.add(began, err, from, until)
	}
	return found
}

func pipelined(stream jetstream.JetStream, body []byte, from, until time.Time, limit int) (found counts) {
	type pending struct {
		began  time.Time
		answer jetstream.PubAckFuture
	}
	unanswered := make(chan pending, limit)
	go func() {
		defer close(unanswered)
		for began := time.Now(); began.Before(until); began = time.Now() {
			answer, err := stream.PublishAsync(subject, body)
			check(err)
			unanswered <- pending{began, answer}
		}
	}()
	for one := range unanswered {
		select {
		case <-one.answer.Ok():
			found.add(one.began, nil, from, until)
		case err := <-one.answer.Err():
			found.add(one.began, err, from, until)
		}
	}
	return found
}

func (c *counts) add(began time.Time, err error, from, until time.Time) {
	now := time.Now()
	if now.Before(from) || now.After(until) {
		return
	}
	if err != nil {
		c.failed++
		return
	}
	c.latenciesMs = append(c.latenciesMs, float64(now.Sub(began).Microseconds())/1000)
}

func report(found []counts, seconds, cpu float64, measured bool) {
	var latencies []float64
	failed := 0
	for _, one := range found {
		latencies = append(latencies, one.latenciesMs...)
		failed += one.failed
	}
	sort.Float64s(latencies)
	line := map[string]any{"messages": len(latencies), "errors": failed, "messages_per_s": float64(len(latencies)) / seconds,
		"p50_ms": percentile(latencies, 50), "p99_ms": percentile(latencies, 99)}
	if measured && len(latencies) > 0 {
		line["server_cpu_us_per_message"] = cpu * 1e6 / float64(len(latencies))
	}
	check(json.NewEncoder(os.Stdout).Encode(line))
}

func percentile(sorted []float64, percent float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(float64(len(sorted))*percent/100))]
}

// cpuSeconds returns the user and system time of a process.
func cpuSeconds(pid int) float64 {
	if pid == 0 {
		return 0
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	check(err)
	fields := strings.Fields(string(text)[strings.LastIndex(string(text), ")")+2:])
	user, err := strconv.ParseFloat(fields[11], 64)
	check(err)
	system, err := strconv.ParseFloat(fields[12], 64)
	check(err)
	return (user + system) / ticksPerSec
}

func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

func check(err error) {
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
