//go:build faketime

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/sim/plan"
)

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

var discard = slog.New(slog.DiscardHandler)

// The argument is a config in JSON. The report goes to descriptor 3: what a program with virtual time writes to 1 and 2 has headers.
func main() {
	var c plan.Config
	if err := json.Unmarshal([]byte(os.Args[1]), &c); err != nil {
		panic(err)
	}
	seedAll(c.Seed)
	go collect()
	log.SetOutput(io.Discard)
	slog.SetDefault(discard)
	redis.SetLogger(quiet{})
	w := newWorld(c)
	play, known := workloads[c.World]
	if !known {
		panic(fmt.Sprintf("there is no world %q", c.World))
	}
	play(w)
	w.tell()
}

// tell writes the report.
func (w *world) tell() {
	if err := json.NewEncoder(os.NewFile(3, "report")).Encode(w.finish()); err != nil {
		panic(err)
	}
}

var workloads = map[string]func(w *world){"locks": (*world).locks, "queue": (*world).queue, "web": (*world).web}
