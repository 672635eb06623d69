// Sets, describes and removes quotas of one client id by the calls of sarama and kafka-go.
//
//	goquotas ADDRESS sarama|kafka-go
//
// It prints what was described after each step, one line of JSON each, and fails on any error.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/IBM/sarama"
	kafka "github.com/segmentio/kafka-go"
)

const produce, fetch = "producer_byte_rate", "consumer_byte_rate"

// quotas is one library's admin client, for one client id.
type quotas interface {
	set(key string, value float64) error
	unset(key string) error
	describe() (map[string]float64, error)
}

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(address, library string) error {
	var client quotas
	switch library {
	case "sarama":
		config := sarama.NewConfig()
		config.Version = sarama.V3_6_0_0
		admin, err := sarama.NewClusterAdmin([]string{address}, config)
		if err != nil {
			return err
		}
		defer admin.Close()
		client = &ofSarama{admin}
	case "kafka-go":
		client = &ofKafkaGo{&kafka.Client{Addr: kafka.TCP(address), Timeout: 10 * time.Second}}
	default:
		return fmt.Errorf("no library %q", library)
	}
	steps := []func() error{
		func() error { return client.set(produce, 1024) },
		func() error { return client.set(fetch, 2048) },
		func() error { return client.unset(produce) },
		func() error { return client.unset(fetch) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
		found, err := client.describe()
		if err != nil {
			return err
		}
		line, _ := json.Marshal(found)
		fmt.Println(string(line))
	}
	if err := client.set(produce, -1); err == nil {
		return errors.New("a quota below 0 was accepted")
	}
	return nil
}

type ofSarama struct{ admin sarama.ClusterAdmin }

func (s *ofSarama) entity() []sarama.QuotaEntityComponent {
	return []sarama.QuotaEntityComponent{{
		EntityType: sarama.QuotaEntityClientID, MatchType: sarama.QuotaMatchExact, Name: "sarama"}}
}

func (s *ofSarama) set(key string, value float64) error {
	return s.admin.AlterClientQuotas(s.entity(), sarama.ClientQuotasOp{Key: key, Value: value}, false)
}

func (s *ofSarama) unset(key string) error {
	return s.admin.AlterClientQuotas(s.entity(), sarama.ClientQuotasOp{Key: key, Remove: true}, false)
}

func (s *ofSarama) describe() (map[string]float64, error) {
	filter := sarama.QuotaFilterComponent{
		EntityType: sarama.QuotaEntityClientID, MatchType: sarama.QuotaMatchExact, Match: "sarama"}
	entries, err := s.admin.DescribeClientQuotas([]sarama.QuotaFilterComponent{filter}, true)
	found := map[string]float64{}
	for _, entry := range entries {
		for key, value := range entry.Values {
			found[key] = value
		}
	}
	return found, err
}

type ofKafkaGo struct{ client *kafka.Client }

func (k *ofKafkaGo) alter(op kafka.AlterClientQuotaOps) error {
	entity := kafka.AlterClientQuotaEntity{EntityType: "client-id", EntityName: "kafka-go"}
	answer, err := k.client.AlterClientQuotas(context.Background(), &kafka.AlterClientQuotasRequest{
		Entries: []kafka.AlterClientQuotaEntry{{
			Entities: []kafka.AlterClientQuotaEntity{entity}, Ops: []kafka.AlterClientQuotaOps{op}}}})
	if err != nil {
		return err
	}
	return answer.Entries[0].Error
}

func (k *ofKafkaGo) set(key string, value float64) error {
	return k.alter(kafka.AlterClientQuotaOps{Key: key, Value: value})
}

func (k *ofKafkaGo) unset(key string) error {
	return k.alter(kafka.AlterClientQuotaOps{Key: key, Remove: true})
}

func (k *ofKafkaGo) describe() (map[string]float64, error) {
	answer, err := k.client.DescribeClientQuotas(context.Background(), &kafka.DescribeClientQuotasRequest{
		Components: []kafka.DescribeClientQuotasRequestComponent{{
			EntityType: "client-id", MatchType: 0, Match: "kafka-go"}},
		Strict: true})
	if err != nil {
		return nil, err
	}
	found := map[string]float64{}
	for _, entry := range answer.Entries {
		for _, value := range entry.Values {
			found[value.Key] = value.Value
		}
	}
	return found, answer.Error
}
