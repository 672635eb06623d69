// Moves partitions and elects leaders by the calls of sarama and kafka-go.
//
//	gomoves ADDRESS sarama|kafka-go alter TOPIC [[1,2],[2,3]]   null for a partition's cancels
//	gomoves ADDRESS sarama|kafka-go list|elect TOPIC PARTITIONS
//	gomoves ADDRESS sarama dirs TOPIC
//
// It prints the answer as one line of JSON; an error of a partition is its text there, and any
// other fails the program.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/IBM/sarama"
	kafka "github.com/segmentio/kafka-go"
)

type move struct {
	Replicas []int32 `json:"replicas"`
	Adding   []int32 `json:"adding"`
	Removing []int32 `json:"removing"`
}

// mover is one library's admin client. Errors are by partition, in words.
type mover interface {
	alter(topic string, targets [][]int32) error
	list(topic string, partitions []int32) (map[int32]move, error)
	elect(topic string, partitions []int32) (map[int32]string, error)
	dirs(topic string) (map[int32]int64, error)
}

func main() {
	answer, err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	line, _ := json.Marshal(answer)
	fmt.Println(string(line))
}

func run(address, library, command, topic string, rest []string) (any, error) {
	var client mover
	switch library {
	case "sarama":
		config := sarama.NewConfig()
		config.Version = sarama.V3_6_0_0
		admin, err := sarama.NewClusterAdmin([]string{address}, config)
		if err != nil {
			return nil, err
		}
		defer admin.Close()
		client = &ofSarama{admin}
	case "kafka-go":
		client = &ofKafkaGo{&kafka.Client{Addr: kafka.TCP(address), Timeout: 10 * time.Second}}
	default:
		return nil, fmt.Errorf("no library %q", library)
	}
	switch command {
	case "alter":
		var targets [][]int32
		if err := json.Unmarshal([]byte(rest[0]), &targets); err != nil {
			return nil, err
		}
		return nil, client.alter(topic, targets)
	case "dirs":
		return client.dirs(topic)
	}
	count, err := strconv.Atoi(rest[0])
	if err != nil {
		return nil, err
	}
	partitions := make([]int32, count)
	for n := range partitions {
		partitions[n] = int32(n)
	}
	if command == "list" {
		return client.list(topic, partitions)
	}
	return client.elect(topic, partitions)
}

type ofSarama struct{ admin sarama.ClusterAdmin }

func (s *ofSarama) alter(topic string, targets [][]int32) error {
	return s.admin.AlterPartitionReassignments(topic, targets)
}

func (s *ofSarama) list(topic string, partitions []int32) (map[int32]move, error) {
	answer, err := s.admin.ListPartitionReassignments(topic, partitions)
	found := map[int32]move{}
	for number, each := range answer[topic] {
		found[number] = move{each.Replicas, each.AddingReplicas, each.RemovingReplicas}
	}
	return found, err
}

func (s *ofSarama) elect(topic string, partitions []int32) (map[int32]string, error) {
	answer, err := s.admin.ElectLeaders(sarama.PreferredElection, map[string][]int32{topic: partitions})
	found := map[int32]string{}
	for number, each := range answer[topic] {
		found[number] = ""
		if each.ErrorCode != sarama.ErrNoError {
			found[number] = each.ErrorCode.Error()
		}
	}
	return found, err
}

func (s *ofSarama) dirs(topic string) (map[int32]int64, error) {
	brokers, _, err := s.admin.DescribeCluster()
	if err != nil {
		return nil, err
	}
	ids := []int32{}
	for _, each := range brokers {
		ids = append(ids, each.ID())
	}
	answer, err := s.admin.DescribeLogDirs(ids)
	sizes := map[int32]int64{}
	for broker, directories := range answer {
		for _, directory := range directories {
			for _, each := range directory.Topics {
				for _, partition := range each.Partitions {
					if each.Topic == topic {
						sizes[broker] += partition.Size
					}
				}
			}
		}
	}
	return sizes, err
}

type ofKafkaGo struct{ client *kafka.Client }

func (k *ofKafkaGo) alter(topic string, targets [][]int32) error {
	request := &kafka.AlterPartitionReassignmentsRequest{Topic: topic, Timeout: 10 * time.Second}
	for number, target := range targets {
		request.Assignments = append(request.Assignments, kafka.AlterPartitionReassignmentsRequestAssignment{
			PartitionID: number, BrokerIDs: ints(target)})
	}
	answer, err := k.client.AlterPartitionReassignments(context.Background(), request)
	if err != nil {
		return err
	}
	wrong := answer.Error
	for _, each := range answer.PartitionResults {
		wrong = errors.Join(wrong, each.Error)
	}
	return wrong
}

func (k *ofKafkaGo) list(topic string, partitions []int32) (map[int32]move, error) {
	answer, err := k.client.ListPartitionReassignments(context.Background(), &kafka.ListPartitionReassignmentsRequest{
		Topics:  map[string]kafka.ListPartitionReassignmentsRequestTopic{topic: {PartitionIndexes: ints(partitions)}},
		Timeout: 10 * time.Second})
	if err != nil {
		return nil, err
	}
	found := map[int32]move{}
	for _, each := range answer.Topics[topic].Partitions {
		found[int32(each.PartitionIndex)] = move{
			int32s(each.Replicas), int32s(each.AddingReplicas), int32s(each.RemovingReplicas)}
	}
	return found, answer.Error
}

func (k *ofKafkaGo) elect(topic string, partitions []int32) (map[int32]string, error) {
	answer, err := k.client.ElectLeaders(context.Background(), &kafka.ElectLeadersRequest{
		Topic: topic, Partitions: ints(partitions), Timeout: 10 * time.Second})
	if err != nil {
		return nil, err
	}
	found := map[int32]string{}
	for _, each := range answer.PartitionResults {
		found[int32(each.Partition)] = ""
		if each.Error != nil {
			found[int32(each.Partition)] = each.Error.Error()
		}
	}
	return found, answer.Error
}

func (k *ofKafkaGo) dirs(string) (map[int32]int64, error) {
	return nil, errors.New("kafka-go does not describe log directories")
}

func ints(given []int32) []int {
	found := make([]int, len(given))
	for n, each := range given {
		found[n] = int(each)
	}
	return found
}

func int32s(given []int) []int32 {
	found := make([]int32, len(given))
	for n, each := range given {
		found[n] = int32(each)
	}
	return found
}
