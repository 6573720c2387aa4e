package sqltest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/sqlfence"
)

// payerVar makes this test binary a process that pays: a payerConfig.
const payerVar = "PERKEY_TEST_PAYER"

type payerConfig struct {
	Redis, Prefix, Driver, Source string
	Recipe                        string
	TTL                           time.Duration
	Orders                        []string
	Workers                       int           // each pays again and again, until standard input ends; "begun" is said
	Pause                         time.Duration // how long a worker stands between two steps, at most
	Stepwise                      bool          // one payment, with a line said and one awaited before each step
}

// tally is what a process says at its end.
type tally struct {
	Paid, Stale, Lost int
	Unavailable       int // asked for a key, and was stopped
	Errors            []string
}

// runPayer pays under leases as a handler that ignores its ctx does.
func runPayer() {
	var config payerConfig
	if err := json.Unmarshal([]byte(os.Getenv(payerVar)), &config); err != nil {
		fmt.Println(err)
		return
	}
	if err := config.run(); err != nil {
		fmt.Println(err)
	}
}

func (c payerConfig) run() error {
	rdb := redis.NewClient(&redis.Options{Addr: c.Redis})
	locker, err := core.New(rdb, core.WithPrefix(c.Prefix), core.WithTTL(c.TTL))
	if err != nil {
		return err
	}
	db, err := openDatabase(c.Driver, c.Source)
	if err != nil {
		return err
	}
	input := bufio.NewReader(os.Stdin)
	if c.Stepwise {
		var t tally
		t.pay(locker, db, recipes[c.Recipe], c.Orders[0], func() {
			fmt.Println("next")
			_, _ = input.ReadString('\n')
		})
		return json.NewEncoder(os.Stdout).Encode(t)
	}
	var begun sync.Once
	stop := make(chan struct{})
	go func() {
		_, _ = input.ReadString('\n')
		close(stop)
	}()
	var (
		workers sync.WaitGroup
		tallies = make([]tally, c.Workers)
	)
	for i := range tallies {
		workers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					tallies[i].pay(locker, db, recipes[c.Recipe], c.Orders[rand.N(len(c.Orders))], func() {
						begun.Do(func() { fmt.Println("begun") })
						time.Sleep(rand.N(c.Pause))
					})
				}
			}
		})
	}
	workers.Wait()
	return json.NewEncoder(os.Stdout).Encode(sum(tallies))
}

func (t *tally) pay(locker *core.Locker, db *database, recipe recipe, order string, pause func()) {
	deaf := context.Background()
	lease, err := locker.Acquire(deaf, order)
	if errors.Is(err, core.ErrUnavailable) {
		t.Unavailable++
		return
	}
	if err != nil {
		t.Errors = append(t.Errors, err.Error())
		return
	}
	switch err := recipe(deaf, db, lease, order, pause); {
	case err == nil:
		t.Paid++
	case errors.Is(err, sqlfence.ErrStale):
		t.Stale++
	default:
		t.Errors = append(t.Errors, err.Error())
	}
	switch err := lease.Release(deaf); {
	case errors.Is(err, core.ErrLeaseLost):
		t.Lost++
	case err != nil && !errors.Is(err, core.ErrUnavailable):
		t.Errors = append(t.Errors, err.Error())
	}
}

func sum(tallies []tally) (all tally) {
	for _, t := range tallies {
		all.Paid += t.Paid
		all.Stale += t.Stale
		all.Lost += t.Lost
		all.Unavailable += t.Unavailable
		all.Errors = append(all.Errors, t.Errors...)
	}
	return all
}

// payer is such a process.
type payer struct {
	cmd  *exec.Cmd
	in   *bufio.Writer
	end  func() error
	out  *bufio.Scanner
	done chan struct{}
}

func startPayer(t *testing.T, c payerConfig) *payer {
	t.Helper()
	config, err := json.Marshal(c)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), payerVar+"="+string(config))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	// Not StdoutPipe: it is closed when the process ends, read or not.
	read, write, err := os.Pipe()
	require.NoError(t, err)
	cmd.Stdout = write
	p := &payer{cmd: cmd, in: bufio.NewWriter(in), end: in.Close, out: bufio.NewScanner(read)}
	p.done, err = redistest.Spawn(cmd)
	require.NoError(t, err)
	require.NoError(t, write.Close())
	p.out.Buffer(nil, 1<<20)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.done
		_ = read.Close()
	})
	return p
}

// line is the next that the process says.
func (p *payer) line(t *testing.T) string {
	t.Helper()
	require.True(t, p.out.Scan(), "the process says something")
	return p.out.Text()
}

// step lets a stepwise process go on.
func (p *payer) step(t *testing.T) {
	t.Helper()
	_, err := p.in.WriteString("go on\n")
	require.NoError(t, err)
	require.NoError(t, p.in.Flush())
}

// tally is what the process says at its end.
func (p *payer) tally(t *testing.T) (its tally) {
	t.Helper()
	text := p.line(t)
	require.NoError(t, json.NewDecoder(strings.NewReader(text)).Decode(&its), text)
	return its
}

func (p *payer) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	assert.NoError(t, p.cmd.Process.Signal(s))
}
