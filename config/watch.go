package config

import (
	"context"
	"crypto/sha256"
	"time"

	"github.com/perkey-go/perkey/internal/strictyaml"
)

// defaultPoll is how often Watch looks at a file, unless it is told.
const defaultPoll = 5 * time.Second

// Watch loads the file at path whenever it has changed, and calls Reload. It blocks until ctx ends or the
// Runtime is shut down: run it on a goroutine of yours. It reads the file once in every; zero is 5 s. So
// it also sees a file that replaces another, as Kubernetes does. A file that changes between two reads is
// left until it does not, so that a half-written file is not loaded. Outcomes are logged: a new file in
// force at Info; a mistake, or a panic, at Error, once, while the old file stays in force. A file that Reload refuses
// is tried again, since what was parked may have run, after one read, then two, four and so on up to 60.
// A Watch that ends while it reloads logs nothing.
func (rt *Runtime) Watch(ctx context.Context, path string, every time.Duration) {
	if every <= 0 {
		every = defaultPoll
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	w := watch{runtime: rt, path: path, read: rt.File().sum}
	for {
		select {
		case <-ctx.Done():
			return
		case <-rt.closing.Done():
			return
		case <-ticker.C:
			w.look(ctx)
		}
	}
}

// watch is what Watch remembers of the file.
type watch struct {
	runtime *Runtime
	path    string
	read    [sha256.Size]byte // what was loaded last, right or wrong
	seen    [sha256.Size]byte // at the last look
	file    *File             // right, and not in force yet
	told    string            // why, as it was logged
	pause   int               // so many looks pass without a try
	left    int               // so many of them are still to come
}

// longestPause is 5 min, by default.
const longestPause = 60

func (w *watch) parse(ctx context.Context, data []byte) (f *File, err error) {
	defer func() { err = w.runtime.caught(ctx, w.path, recover(), err) }()
	return Parse(w.path, data)
}

func (w *watch) look(ctx context.Context) {
	data, err := readFile(w.path, strictyaml.MaxSize)
	now := sha256.Sum256(data)
	if err != nil {
		now = sha256.Sum256([]byte(err.Error()))
	}
	settled := now == w.seen
	w.seen = now
	switch {
	case !settled || now == w.read && w.file == nil:
		return
	case now != w.read:
		w.read, w.file, w.told, w.pause, w.left = now, nil, "", 0, 0
		if err == nil {
			w.file, err = w.parse(ctx, data)
		}
	}
	if w.left > 0 {
		w.left--
		return
	}
	if w.file != nil {
		err = w.runtime.reload(ctx, w.file)
		switch {
		case err == nil:
			w.file = nil
		case ctx.Err() != nil, w.runtime.closing.Err() != nil:
			return // Watch ends: the file is not refused
		}
		w.pause = min(max(1, 2*w.pause), longestPause)
		w.left = w.pause
	}
	if err != nil && err.Error() != w.told {
		w.told = err.Error()
		w.runtime.log().ErrorContext(ctx, "config: not reloaded: the old file stays in force", "file", w.path, "error", err)
		w.runtime.refused(ctx, w.path, err)
	}
}
