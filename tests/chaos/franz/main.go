// A client of franz-go for histories: an idempotent producer to each partition of a topic, and a
// reader of all of them from their start. What both do and see goes to standard output as the
// events of tests/chaos/history.py. At the end of standard input it stops producing, waits for what
// is unanswered, and ends.
//
// Arguments: the brokers, the topic, the number of partitions, the name of the producer, the
// milliseconds between two records to a partition.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	valueBytes = 120
	batchBytes = 10_000 // the topic takes no batches that are much larger
)

var (
	output = bufio.NewWriter(os.Stdout)
	writes sync.Mutex
)

func note(name string, fields ...any) {
	line, err := json.Marshal(append([]any{name, float64(time.Now().UnixMicro()) / 1e6}, fields...))
	if err != nil {
		panic(err)
	}
	writes.Lock()
	defer writes.Unlock()
	output.Write(append(line, '\n'))
	output.Flush()
}

func valueOf(producer string, partition int32, number int) []byte {
	text := fmt.Sprintf("%s %d %d ", producer, partition, number)
	text += strings.Repeat(".", valueBytes-len(text))
	return []byte(fmt.Sprintf("%s%08x", text, crc32.ChecksumIEEE([]byte(text))))
}

func identity(value []byte) string {
	if len(value) < 8 {
		return "torn"
	}
	text, crc := value[:len(value)-8], string(value[len(value)-8:])
	if crc != fmt.Sprintf("%08x", crc32.ChecksumIEEE(text)) {
		return "torn"
	}
	return strings.Join(strings.SplitN(string(text), " ", 4)[:3], " ")
}

func outcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.InvalidRecord):
		return "refused"
	}
	return "unknown"
}

func produce(client *kgo.Client, topic string, partitions int32, name string, pause time.Duration, stop <-chan struct{}) {
	for number := 0; ; number++ {
		for partition := int32(0); partition < partitions; partition++ {
			p, n := partition, number
			note("sent", name, p, n)
			record := &kgo.Record{Topic: topic, Partition: p, Value: valueOf(name, p, n)}
			client.Produce(context.Background(), record, func(told *kgo.Record, err error) {
				text := ""
				if err != nil {
					text = err.Error()
				}
				note("answered", name, p, n, outcome(err), told.Offset, text)
			})
		}
		select {
		case <-stop:
			client.Flush(context.Background())
			return
		case <-time.After(pause):
		}
	}
}

func read(client *kgo.Client, name string, partitions int32, ctx context.Context) {
	for partition := int32(0); partition < partitions; partition++ {
		note("began", name, partition, 0)
	}
	for {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return
		}
		fetches.EachError(func(_ string, partition int32, err error) {
			var lost *kgo.ErrDataLoss
			if errors.As(err, &lost) || errors.Is(err, kerr.OffsetOutOfRange) {
				note("reset", name, partition, err.Error())
			}
		})
		fetches.EachRecord(func(record *kgo.Record) {
			note("read", name, record.Partition, record.Offset, identity(record.Value))
		})
	}
}

func client(brokers string, more ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(append(more,
		kgo.SeedBrokers(strings.Split(brokers, ",")...),
		kgo.MetadataMinAge(100*time.Millisecond),
		kgo.MetadataMaxAge(time.Second),
		kgo.DialTimeout(2*time.Second),
		kgo.RequestTimeoutOverhead(3*time.Second),
		kgo.RetryBackoffFn(func(int) time.Duration { return 100 * time.Millisecond }),
		kgo.RequestRetries(1<<30),
	)...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return made
}

func main() {
	brokers, topic, name := os.Args[1], os.Args[2], os.Args[4]
	partitions, _ := strconv.Atoi(os.Args[3])
	pauseMs, _ := strconv.Atoi(os.Args[5])
	producer := client(brokers,
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerBatchMaxBytes(batchBytes),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProduceRequestTimeout(3*time.Second),
		kgo.RecordDeliveryTimeout(10*time.Minute),
		kgo.RecordRetries(1<<30),
		kgo.UnknownTopicRetries(-1),
	)
	offsets := map[int32]kgo.Offset{}
	for partition := 0; partition < partitions; partition++ {
		offsets[int32(partition)] = kgo.NewOffset().At(0)
	}
	reader := client(brokers,
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: offsets}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchMaxWait(500*time.Millisecond),
	)
	ctx, cancel := context.WithCancel(context.Background())
	stop, done := make(chan struct{}), make(chan struct{})
	go read(reader, name+"-reader", int32(partitions), ctx)
	go func() {
		produce(producer, topic, int32(partitions), name, time.Duration(pauseMs)*time.Millisecond, stop)
		close(done)
	}()
	io.Copy(io.Discard, os.Stdin)
	close(stop)
	<-done
	cancel()
}
