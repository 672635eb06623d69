// Reads a partition of a compacted topic with franz-go or kafka-go, from an offset or a time.
//
//	gocompacted ADDRESS TOPIC franz-go|kafka-go offset|time START
//
// It prints offset and key of each record up to the end offset, one line of JSON each, and last the
// offset at which the client would go on. START is an offset, or milliseconds of the epoch.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	kafka "github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
)

const patience = 40 * time.Second

func main() {
	address, topic, library, kind := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	start, err := strconv.ParseInt(os.Args[5], 10, 64)
	read := map[string]func(context.Context, string, string, string, int64) (int64, error){
		"franz-go": readByFranz, "kafka-go": readByKafkaGo}[library]
	if err == nil && read == nil {
		err = fmt.Errorf("no library %q", library)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var next int64
	if err == nil {
		next, err = read(ctx, address, topic, kind, start)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(next)
}

func show(offset int64, key []byte) {
	line, _ := json.Marshal([]any{offset, string(key)})
	fmt.Println(string(line))
}

func readByFranz(ctx context.Context, address, topic, kind string, start int64) (int64, error) {
	at := kgo.NewOffset().At(start)
	if kind == "time" {
		at = kgo.NewOffset().AfterMilli(start)
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(address),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: at}}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchMaxPartitionBytes(2000), // so that a fetch ends between the holes
	)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	for {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return 0, err
		}
		next, end := int64(-1), int64(0)
		fetches.EachPartition(func(part kgo.FetchTopicPartition) {
			end = part.HighWatermark
			for _, record := range part.Records {
				show(record.Offset, record.Key)
				next = record.Offset + 1
			}
		})
		if next >= end {
			return next, nil
		}
	}
}

func readByKafkaGo(ctx context.Context, address, topic, kind string, start int64) (int64, error) {
	leader, err := kafka.DialLeader(ctx, "tcp", address, topic, 0)
	if err != nil {
		return 0, err
	}
	defer leader.Close()
	end, err := leader.ReadLastOffset()
	if err != nil {
		return 0, err
	}
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{address}, Topic: topic, MinBytes: 1, MaxBytes: 20_000,
		MaxWait: 200 * time.Millisecond, MaxAttempts: 3})
	defer reader.Close()
	if kind == "time" {
		err = reader.SetOffsetAt(ctx, time.UnixMilli(start))
	} else {
		err = reader.SetOffset(start)
	}
	if err != nil {
		return 0, err
	}
	for reader.Offset() < end {
		record, err := reader.ReadMessage(ctx)
		if err != nil {
			return 0, err
		}
		show(record.Offset, record.Key)
	}
	return reader.Offset(), nil
}
