package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"
)

// Batch is what came of many worlds.
type Batch struct {
	Date, Commit, Go      string
	World                 string
	First, Worlds         uint64 // seeds
	Failed, Calls, Orders int
	Virtual, Processor    time.Duration
	Faults                map[string]int
}

// Add adds what came of further worlds.
func (b *Batch) Add(other Batch) {
	b.World, b.Go, b.Commit, b.Date = other.World, other.Go, other.Commit, max(b.Date, other.Date)
	b.Worlds += other.Worlds
	b.Failed += other.Failed
	b.Calls += other.Calls
	b.Orders += other.Orders
	b.Virtual += other.Virtual
	b.Processor += other.Processor
	if b.Faults == nil {
		b.Faults = map[string]int{}
	}
	for kind, n := range other.Faults {
		b.Faults[kind] += n
	}
}

// Mutant is what came of a mutant: in how many seeds it was found, 0 for in none; in which file or script it is; its name; what was broken.
type Mutant struct {
	Seeds             uint64
	Where, Name, What string
}

// ReadBatches reads a file of batches.
func ReadBatches(path string) (all []Batch, err error) {
	return all, readLines(path, func(line string) error {
		var b Batch
		err := json.Unmarshal([]byte(line), &b)
		all = append(all, b)
		return err
	})
}

// ReadMutants reads a file of mutants.
func ReadMutants(path string) (all []Mutant, err error) {
	return all, readLines(path, func(line string) error {
		fields := strings.SplitN(line, "\t", 4)
		if len(fields) < 4 {
			return fmt.Errorf("%q: want seeds, file, name and what was broken, with tabs between", line)
		}
		seeds, err := strconv.ParseUint(fields[0], 10, 64)
		all = append(all, Mutant{seeds, fields[1], fields[2], fields[3]})
		return err
	})
}

// readLines reads a file line by line. One that is not there has none.
func readLines(path string, each func(line string) error) error {
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for line := range strings.Lines(string(data)) {
		if err := each(strings.TrimSuffix(line, "\n")); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// Append appends a batch to a file.
func (b Batch) Append(path string) error {
	line, err := json.Marshal(b)
	if err != nil {
		return err
	}
	return appendLine(path, string(line))
}

// Append appends what came of a mutant to a file.
func (m Mutant) Append(path string) error {
	return appendLine(path, fmt.Sprintf("%d\t%s\t%s\t%s", m.Seeds, m.Where, m.Name, m.What))
}

func appendLine(path, line string) error {
	out, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = out.WriteString(line + "\n")
	return errors.Join(err, out.Close())
}
