package delayqueue

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestHistory_RefusesNothingAndGoesInOrder(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		require.NoError(t, playHistory(t, env))
	})
}

const historyBytes = 64 << 10 // of what ended, and of dead letters

// history is a queue whose history is full, and what was not as promised.
type history struct {
	t       *testing.T
	q       *Queue
	settled int
	begun   time.Time
}

// run stores a job, and ends its claim.
func (p *history) run(job Job, v outcome) (id string) {
	receipt, err := p.q.Enqueue(p.t.Context(), job)
	if err != nil {
		violate("%s is refused beside what ended: %v", job.ID, err)
	}
	p.settled++
	claims := claimTest(p.t, p.q, fmt.Sprint("token.", p.settled), 1)
	if len(claims) != 1 {
		violate("%s was not stored", receipt.ID)
	}
	require.True(p.t, settleTest(p.t, claims[0], v))
	return receipt.ID
}

// early reports whether nothing was stored a minute ago, even on a machine that is busy.
func (p *history) early() bool { return time.Since(p.begun) < 50*time.Second }

func (p *history) knows(id string) bool {
	_, err := p.q.Status(p.t.Context(), id)
	require.True(p.t, err == nil || errors.Is(err, ErrNotFound), err)
	return err == nil
}

// isGiven reports whether an id is known as one that a caller gave.
func (p *history) isGiven(id string) (given bool) {
	for i := range store.Buckets {
		given = given || p.q.rdb.HExists(p.t.Context(), p.q.manifests.partitions[0].Keys[store.KeyEnded+store.Buckets+i], id).Val()
	}
	return given
}

// keeps reports whether a dead letter is there, and not only its status.
func (p *history) keeps(id string) bool {
	_, err := p.q.Payload(p.t.Context(), id)
	require.True(p.t, err == nil || errors.Is(err, ErrNotFound), err)
	return err == nil
}

// dies makes a dead letter.
func (p *history) dies(id, name, principal string, size int) string {
	return p.run(Job{ID: id, Name: name, Principal: principal, Payload: make([]byte, size)}, outcome{end: store.Died, err: errors.New("no"), result: []byte("why")})
}

// playHistory fills the history of a queue, and returns what it should not have forgotten, or stored.
func playHistory(t *testing.T, env *redistest.Env, hooks ...redis.Hook) (err error) {
	t.Helper()
	defer played(&err)
	q := hookedQueue(t, env, "history", hooks, WithMaxBytes(2*historyBytes), WithMaxPayload(16<<10))
	p := &history{t: t, q: q, begun: time.Now()}
	for _, step := range []func(){p.again, p.ended, p.dead, p.names, p.crowd} {
		step()
	}
	return nil
}

// fits looks whether no more than this is stored beside what is open, but for a bucket.
func (p *history) fits(most int64) {
	s := statsTest(p.t, p.q)
	if s.Bytes > most+10<<10 {
		violate("the history takes %d bytes, and has %d", s.Bytes, most)
	}
}

func result(n int) outcome { return outcome{end: store.Finished, result: make([]byte, n)} }

// again has a caller give an id again that was forgotten before its result, once without room for another result.
func (p *history) again() {
	for _, size := range []int{1, 60 << 10} {
		for i, id := range []string{"", "again", "", ""} { // the first and the last one find what is over
			p.run(Job{ID: id}, result(2))
			require.NoError(p.t, p.q.PassEnded([]time.Duration{0, 25 * time.Minute, 37 * time.Minute, 0}[i]))
		}
		if p.knows("again") {
			violate("an id of a caller stays beside those of the queue")
		}
		p.run(Job{ID: "again"}, result(size))
		if got, err := p.q.Result(p.t.Context(), "again"); err == nil && len(got) != size || size == 1 && err != nil {
			violate("the result is that of an earlier message, or gone: %v", err)
		}
		require.NoError(p.t, p.q.PassEnded(3*time.Hour))
	}
}

func (p *history) ended() {
	made := p.run(Job{}, result(2000))
	var ids []string
	for range 230 { // more than a bucket has
		id := p.run(Job{}, outcome{end: store.Finished})
		ids = append(ids, id)
	}
	require.NoError(p.t, p.q.PassEnded(time.Minute))
	cancelled := got(p.q.Enqueue(p.t.Context(), Job{ID: "cancelled"}))
	require.NoError(p.t, p.q.Cancel(p.t.Context(), cancelled.ID))
	for i := range 60 {
		p.run(Job{ID: fmt.Sprint("given", i)}, result(2000))
	}
	if _, err := p.q.Result(p.t.Context(), made); err == nil {
		violate("the first result stays, and results have no room")
	}
	for _, id := range append(ids, made) {
		if !p.knows(id) {
			violate("an id went before results")
		}
	}
	if _, err := p.q.Result(p.t.Context(), "given59"); err != nil {
		violate("the last result is gone: %v", err)
	}
	p.run(Job{ID: "large"}, result(60<<10))
	if _, err := p.q.Result(p.t.Context(), "large"); err == nil {
		violate("a result is stored for which there is no room")
	}
	p.fits(historyBytes)
	last := p.run(Job{}, outcome{end: store.Finished})
	for range 700 {
		p.run(Job{}, outcome{end: store.Finished})
	}
	if p.early() && !p.knows(last) {
		violate("an id that the queue made is forgotten within a minute")
	}
	for range 5 { // nearly all that may be open
		if _, err := p.q.Enqueue(p.t.Context(), Job{Payload: make([]byte, 16<<10)}); err != nil {
			violate("ids that the queue made have the room of what is open: %v", err)
		}
	}
	got(p.q.CancelAll(p.t.Context(), Filter{}))
	for i := range 60 {
		if p.early() && !p.knows(fmt.Sprint("given", i)) {
			violate("given%d is forgotten within a minute", i)
		}
	}
	if p.early() && !p.isGiven(cancelled.ID) {
		violate("the id that was cancelled is not known as one that a caller gave")
	}
	for i := range 500 {
		p.run(Job{ID: fmt.Sprint("more", i)}, outcome{end: store.Finished})
	}
	p.q.retention = 2 * time.Hour // a deployment raises it
	p.q.store = newStore(p.q.rdb, p.q.manifests, p.q.reports)
	p.q.manifests.partitions = p.q.store.Partitions(1)
	p.q.manifests.known.Store(nil)
	p.run(Job{ID: "more"}, outcome{end: store.Finished})
	if p.early() && (!p.knows("more0") || !p.knows("given0")) {
		violate("ids of callers are forgotten within a minute")
	}
	require.NoError(p.t, p.q.PassEnded(time.Minute))
	p.run(Job{}, outcome{end: store.Finished})
	if p.knows(made) {
		violate("the first id that the queue made stays, and there is no room")
	}
	p.fits(3 * historyBytes / 2)
}

func (p *history) dead() {
	var others []string
	for _, of := range [][2]string{{"a", "ann"}, {"pay", "ann"}, {"ship", "mallory"}, {"", ""}, {"ship", "zoe"}} {
		id := p.dies("", of[0], of[1], 5000)
		others = append(others, id)
	}
	last := p.dies("first", "pay", "mallory", 5000)
	for range 30 {
		last = p.dies("", "pay", "mallory", 5000)
	}
	for i, id := range append(others, last) {
		if !p.keeps(id) {
			violate("a poisoner flushed the dead letter of another, %d", i)
		}
	}
	p.forgotten("first")
	p.fits(5 * historyBytes / 2)
	if err := p.q.Redrive(p.t.Context(), last, 0); err != nil {
		violate("cannot be redriven: %v", err)
	}
	for n := 0; ; n++ { // what is open fills its room, and then a dead letter has none there
		if _, err := p.q.Enqueue(p.t.Context(), Job{Principal: fmt.Sprint("p", n), Payload: make([]byte, 3000)}); err != nil {
			require.ErrorIs(p.t, err, ErrQueueFull)
			break
		}
	}
	if err := p.q.Redrive(p.t.Context(), others[0], 0); !errors.Is(err, ErrQueueFull) {
		violate("a dead letter is redriven into a full queue: %v", err)
	}
	n := got(p.q.CancelAll(p.t.Context(), Filter{}))
	require.Positive(p.t, n)
	p.purge()
}

// purge purges all dead letters, and looks for what is counted of them still.
func (p *history) purge() {
	got(p.q.PurgeAll(p.t.Context(), Filter{}))
	part := p.q.manifests.partitions[0]
	left := got(p.q.rdb.HGet(p.t.Context(), part.Keys[store.KeyCounts], "letters").Result())
	sums := got(p.q.rdb.Exists(p.t.Context(), part.Keys[store.KeyLoads], part.Keys[store.KeyLetters]).Result())
	if left != "0" || sums != 0 {
		violate("no dead letter is left, and %s bytes and %d sums of them are", left, sums)
	}
}

// names has many principals make dead letters of one name: they go, though a principal of another name has more than each.
func (p *history) names() {
	var others []string
	for range 3 {
		id := p.dies("", "ship", "zoe", 5000)
		others = append(others, id)
	}
	for i := range 20 {
		p.dies("", "pay", fmt.Sprint("p", i/2), 5000)
		for _, id := range others {
			if !p.keeps(id) {
				violate("many principals flushed the dead letter of another name")
			}
		}
	}
	p.purge()
}

// forgotten looks at a dead letter for which there was no room: how it ended is known, and no job gets its id.
func (p *history) forgotten(id string) {
	s, err := p.q.Status(p.t.Context(), id)
	if err != nil || p.keeps(id) || s.State != StateDead || s.Attempts != 1 || s.Name != "pay" || s.Principal != "mallory" || s.Cause != "" {
		violate("%s is not known as one that died: %+v, %v", id, s, err)
	}
	if !p.isGiven(id) {
		violate("%s is not known as an id that a caller gave", id)
	}
	if receipt, err := p.q.Enqueue(p.t.Context(), Job{ID: id}); err != nil || receipt.Stored {
		violate("the id of a dead letter is taken twice: %v", err)
	}
	require.ErrorIs(p.t, p.q.Redrive(p.t.Context(), id, 0), ErrNotFound)
	require.ErrorIs(p.t, p.q.Purge(p.t.Context(), id), ErrNotFound)
	require.ErrorIs(p.t, errOf(p.q.Result(p.t.Context(), id)), ErrNotFound)
}

// crowd has dead letters of many names, each larger than what anybody has of the name with most: of that the one who has most of it
// goes first.
func (p *history) crowd() {
	for i := range 10 {
		p.dies("", fmt.Sprint("name", i), "ann", 2000)
	}
	most := p.dies("", "pay", "mallory", 0)
	p.dies("", "pay", "mallory", 0)
	var others []string
	for i := 0; p.keeps(most); i++ {
		if others = append(others, p.dies("", "pay", fmt.Sprint("a", i), 0)); i > 200 {
			violate("dead letters have no bound")
		}
	}
	for _, id := range others {
		if !p.keeps(id) {
			violate("one who has less of the name went first")
		}
	}
	p.purge()
}

// Whose dead letters are may be lost: they stay, and no worker asks at once whether they go.
func TestHistory_LettersOfNobodyAreNotPolled(t *testing.T) {
	eachQueue(t, func(t *testing.T, q *Queue) {
		p := &history{t: t, q: q}
		for range 2 {
			p.dies("", "pay", "mallory", 0)
		}
		keys := q.manifests.partitions[0].Keys
		require.NoError(t, q.rdb.HSet(t.Context(), keys[store.KeyCounts], "letters", q.maxBytes).Err())
		require.NoError(t, q.rdb.Del(t.Context(), keys[store.KeyLoads], keys[store.KeyLetters]).Err())
		b := of(q.manifests.partitions[0].Claim(t.Context(), "another.1", time.Minute, 1))(t)
		require.Greater(t, b.Wait, time.Second)
		s := statsTest(t, q)
		require.EqualValues(t, 2, s.Dead)
	})
}
