// Package overlay takes chance, threads and the clock out of Go's runtime: it writes an overlay for `go build -overlay` from the
// source of the toolchain that builds.
//
//   - All of the runtime's random numbers, which decide a select, a map's order and math/rand, come from one seeded state.
//   - A goroutine that becomes runnable changes places with one that waits to run, by the same state: each seed is another order.
//   - There is no system monitor: its thread takes the processor from whoever is in a system call.
//   - The process and its host have names that are always the same.
//   - A goroutine can be in a group, which those that it starts inherit, and those of [time.AfterFunc]. A group is stopped, goes on,
//     and has a wall clock of its own.
//
// With it, the build tag faketime, which has the clock jump to the next timer when nothing can run, CGO_ENABLED=0, GOMAXPROCS=1,
// GODEBUG=asyncpreemptoff=1,gcstoptheworld=2 and an environment that is always the same, a program without network does the same whenever
// it has the same seed.
package overlay

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Write writes the overlay to a folder, and returns the path for -overlay. more are further files that stand in place of others. It
// fails where the toolchain's runtime does not look as expected.
func Write(ctx context.Context, dir string, more map[string]string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOROOT: %w", err)
	}
	source := filepath.Join(strings.TrimSpace(string(out)), "src")
	replaced := maps.Clone(more)
	if replaced == nil {
		replaced = map[string]string{}
	}
	for _, f := range files {
		path := filepath.Join(source, f.path)
		text, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		changed, err := f.apply(string(text))
		if err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
		}
		copied := filepath.Join(dir, filepath.Base(f.path)+".txt")
		if err := os.WriteFile(copied, []byte(changed), 0o600); err != nil {
			return "", err
		}
		replaced[path] = copied
	}
	data, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, data, 0o600)
}

// file is a file of the toolchain with what is changed in it.
type file struct {
	path   string
	bodies map[string]string // by the line that begins a function
	texts  map[string]string
	more   string
}

func (f file) apply(text string) (string, error) {
	for begin, body := range f.bodies {
		before, rest, found := strings.Cut(text, begin)
		_, after, ends := strings.Cut(rest, "\n}\n")
		if !found || !ends {
			return "", fmt.Errorf("there is no %q", begin)
		}
		text = before + begin + body + "\n}\n" + after
	}
	for old, with := range f.texts {
		if n := strings.Count(text, old); n != 1 {
			return "", fmt.Errorf("%q is there %d times, and not once", old, n)
		}
		text = strings.Replace(text, old, with, 1)
	}
	return text + f.more, nil
}

var files = []file{
	{
		path: "runtime/rand.go",
		bodies: map[string]string{
			// SplitMix64: G. L. Steele, D. Lea and C. H. Flood, Fast Splittable Pseudorandom Number Generators, 2014.
			"func rand() uint64 {": `
	simState += 0x9e3779b97f4a7c15
	z := simState
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	return z ^ (z >> 31)`,
			"func cheaprand() uint32 {": `
	return uint32(rand() >> 32)`,
		},
		texts: map[string]string{
			"\tif len(startupRand) >= 16 &&":       "\tseed[0] = 1\n\tif false && len(startupRand) >= 16 &&",
			"readRandom(seed[:]) != len(seed) || ": "",
			"\t\"internal/goarch\"\n":              "",
			"\t\"internal/runtime/math\"\n":        "",
			"\t_ \"unsafe\" // for go:linkname\n":  "",
		},
		more: groups,
	},
	{
		path: "runtime/proc.go",
		texts: map[string]string{
			"const haveSysmon = GOARCH != \"wasm\"": "const haveSysmon = false",
			"\t\tpp.runq[t%uint32(len(pp.runq))].set(gp)\n\t\tatomic.StoreRel(&pp.runqtail, t+1)": `		other := (h + cheaprandn(t-h+1)) % uint32(len(pp.runq))
		pp.runq[t%uint32(len(pp.runq))] = pp.runq[other]
		pp.runq[other].set(gp)
		atomic.StoreRel(&pp.runqtail, t+1)`,
			"\tif sched.disable.user && !schedEnabled(gp) {\n\t\t// Scheduling of this goroutine is disabled. Put": `	if s := (*simGroup)(gp.labels); s != nil && s.stopped {
		simHeld.pushBack(gp)
		goto top
	}

	if sched.disable.user && !schedEnabled(gp) {
		// Scheduling of this goroutine is disabled. Put`,
			// With a clock that jumps, all wait each time: the name of each one's function, which tells a system goroutine, took a tenth of all.
			"\tforEachG(func(gp *g) {\n\t\tif isSystemGoroutine(gp, false) {\n\t\t\treturn\n\t\t}\n\t\ts := readgstatus(gp)": "\tforEachG(func(gp *g) {\n\t\ts := readgstatus(gp)",
			"\t\t\tprint(\"runtime: checkdead: find g ": `			if l := (*simGroup)(gp.labels); s == _Grunnable && l != nil && l.stopped {
				grunning++
				return
			}
			print("runtime: checkdead: find g `,
		},
	},
	{
		path: "runtime/time_fake.go",
		texts: map[string]string{
			"\treturn faketime / 1e9, int32(faketime % 1e9), faketime\n": `	t := faketime
	if s := (*simGroup)(getg().labels); s != nil {
		t += s.skew
	}
	return t / 1e9, int32(t % 1e9), faketime
`,
		},
	},
	{ // a thread that waits for another one takes no random number
		path:  "runtime/lock_spinbit.go",
		texts: map[string]string{"cheaprandn(mutexTailWakePeriod) == 0": "false"},
	},
	{
		path:  "runtime/mprof.go",
		texts: map[string]string{"\tif cheaprandn(gTrackingPeriod) == 0 {\n\t\treturn nanotime()\n\t}\n": ""},
	},
	{ // page faults took as long as everything else: pages are large, and stay
		path: "runtime/mem_linux.go",
		bodies: map[string]string{
			"func sysUnusedOS(v unsafe.Pointer, n uintptr) {": "\n\tatomic.Load(&adviseUnused)",
			"func needZeroAfterSysUnusedOS() bool {":          "\n\treturn true",
		},
		texts: map[string]string{"\tsetVMAName(p, n, vmaName)\n\n\t// Disable huge": "\tsetVMAName(p, n, vmaName)\n\tsysHugePageOS(v, n)\n\n\t// Disable huge"},
	},
	{ // names of processes are in Redis, and the order of a map goes by its keys
		path:  "os/exec.go",
		texts: map[string]string{"func Getpid() int { return syscall.Getpid() }": "func Getpid() int { return 1 }"},
	},
	{
		path:  "os/sys.go",
		texts: map[string]string{"\treturn hostname()\n": "\treturn \"host\", nil\n"},
	},
	{
		path: "time/sleep.go",
		texts: map[string]string{
			"\treturn newTimer(when(d), 0, goFunc, f, nil)\n": `	group := simGet()
	return newTimer(when(d), 0, goFunc, func() { simSet(group); f() }, nil)
`,
		},
		more: `
//go:linkname simGet runtime.simGet
func simGet() unsafe.Pointer

//go:linkname simSet runtime.simSet
func simSet(unsafe.Pointer)
`,
	},
}

// groups is what the runtime has of groups. Which one a goroutine is in stands where the labels of profiles do.
const groups = `
var simState uint64 = 1

// simSeed sets the state of all random numbers of the runtime.
//
//go:linkname simSeed
func simSeed(seed uint64) { simState = seed }

type simGroup struct {
	stopped bool
	skew    int64
}

var (
	simGroups [256]simGroup
	simHeld   gQueue // runnable goroutines of stopped groups
)

// simJoin puts this goroutine, and those that it starts, into a group.
//
//go:linkname simJoin
func simJoin(n int) { getg().labels = unsafe.Pointer(&simGroups[n]) }

//go:linkname simGet
func simGet() unsafe.Pointer { return getg().labels }

//go:linkname simSet
func simSet(p unsafe.Pointer) { getg().labels = p }

// simSkew sets the wall clock of a group.
//
//go:linkname simSkew
func simSkew(n int, d int64) { simGroups[n].skew = d }

//go:linkname simStop
func simStop(n int) { simGroups[n].stopped = true }

//go:linkname simGo
func simGo(n int) {
	simGroups[n].stopped = false
	systemstack(func() {
		var held gQueue
		held, simHeld = simHeld, held
		pp := getg().m.p.ptr()
		for !held.empty() {
			gp := held.pop()
			if gp.labels == unsafe.Pointer(&simGroups[n]) {
				runqput(pp, gp, false)
			} else {
				simHeld.pushBack(gp)
			}
		}
	})
}
`
