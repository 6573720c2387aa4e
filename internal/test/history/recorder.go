package history

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
)

// Recorder writes a history to a file, a line for each change of an op. What was
// written survives the death of its process. It is safe for concurrent use.
type Recorder struct {
	mu   sync.Mutex
	file *os.File
	err  error
}

// Create makes a Recorder on a new file.
func Create(path string) (*Recorder, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	return &Recorder{file: file}, nil
}

// Write writes down how far ops have got: each one once before its call, or what it did before its client was killed
// stays unseen, and once more at every change. In one write to the file, so that a kill leaves all of it or nothing.
func (r *Recorder) Write(ops ...*Op) {
	var lines []byte
	for _, op := range ops {
		line, err := json.Marshal(op)
		if err != nil {
			r.fail(err)
			return
		}
		lines = append(append(lines, line...), '\n')
	}
	r.mu.Lock()
	_, err := r.file.Write(lines)
	r.mu.Unlock()
	r.fail(err)
}

func (r *Recorder) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
	}
}

// Close closes the file, and returns the first error of all.
func (r *Recorder) Close() error {
	r.fail(r.file.Close())
	return r.err
}

// Read merges files of Recorders into one history, in the order of calls. The
// last line of an op is what became of it. A last line that was cut short is left
// out; any other that cannot be read is an error. A file that is not there is empty.
func Read(paths ...string) ([]Op, error) {
	latest := map[int64]Op{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // it was killed before it had begun
		}
		if err != nil {
			return nil, fmt.Errorf("history: %w", err)
		}
		for n := 1; ; n++ {
			line, rest, whole := bytes.Cut(data, []byte{'\n'})
			if !whole {
				break
			}
			var op Op
			if err := json.Unmarshal(line, &op); err != nil {
				return nil, fmt.Errorf("history: %s, line %d: %w", path, n, err)
			}
			latest[op.ID] = op
			data = rest
		}
	}
	ops := make([]Op, 0, len(latest))
	for _, op := range latest {
		ops = append(ops, op)
	}
	slices.SortFunc(ops, func(a, b Op) int { return cmp.Or(cmp.Compare(a.Call, b.Call), cmp.Compare(a.ID, b.ID)) })
	return ops, nil
}
