package sqltest

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/redistest"
)

// A process reads, is stopped until another one has its key and has read too, and goes on before that writes.
func TestStopped_BetweenReadAndWrite(t *testing.T) {
	for recipe, twice := range map[string]int{"apart": 0, "column": 0, "old": 1} {
		t.Run(recipe, func(t *testing.T) {
			eachDatabase(t, func(t *testing.T, db *database) {
				createShop(t, db, "42")
				redis := redistest.Real(t)
				config := payerConfig{
					Redis: redis.Addr, Prefix: redis.Prefix, Driver: db.driver, Source: db.source,
					Recipe: recipe, TTL: time.Second, Orders: []string{"42"}, Stepwise: true,
				}
				pauses := 2
				if recipe == "old" {
					pauses = 1 // it does not claim
				}
				untilRead := func() *payer {
					p := startPayer(t, config)
					for i := range pauses {
						if i > 0 {
							p.step(t)
						}
						require.Equal(t, "next", p.line(t))
					}
					return p
				}
				first := untilRead()
				first.signal(t, syscall.SIGSTOP)
				second := untilRead() // when the lease of the first is over
				first.signal(t, syscall.SIGCONT)
				first.step(t)
				require.Equal(t, tally{Paid: twice, Stale: 1 - twice, Lost: 1}, first.tally(t))
				second.step(t)
				require.Equal(t, 1, second.tally(t).Paid)
				require.Equal(t, audit{payments: 1 + twice, stale: twice, twice: twice}, auditDatabase(t, db))
			})
		})
	}
}

var stops = flag.Int("stops", 8, "how often each process is stopped for longer than its leases")

// Processes that ignore their contexts are stopped at any moment, for about as long as their leases last, or longer. It
// is long since it is one story.
func TestStopped_AtAnyMoment(t *testing.T) {
	for recipe := range recipes {
		t.Run(recipe, func(t *testing.T) {
			eachDatabase(t, func(t *testing.T, db *database) {
				const ttl = 300 * time.Millisecond
				orders := make([]string, 8)
				for i := range orders {
					orders[i] = fmt.Sprint("order:", i)
				}
				createShop(t, db, orders...)
				redis := redistest.Real(t)
				config := payerConfig{
					Redis: redis.Addr, Prefix: redis.Prefix, Driver: db.driver, Source: db.source,
					Recipe: recipe, TTL: ttl, Orders: orders, Workers: 6, Pause: ttl,
				}
				blocks := recipe == "transaction" && db.driver == "sqlite" // the whole database
				if blocks {
					config.Pause = ttl / 50
				}
				enough := func(stopped int) bool {
					if recipe != "old" || stopped < *stops {
						return stopped >= *stops
					}
					return auditDatabase(t, db).twice > 0 || stopped >= 20**stops
				}
				var tallies []tally
				comes := recipe == "apart" || recipe == "column" // a stale holder, to the database: with one transaction a newer one waits for it
				for round := 0; round == 0 || comes && sum(tallies).Stale == 0 && round < 10; round++ {
					payers := make([]*payer, 3)
					var stopping sync.WaitGroup
					for i := range payers {
						payers[i] = startPayer(t, config)
					}
					for i := range payers {
						require.Equal(t, "begun", payers[i].line(t))
						stopping.Go(func() {
							for stopped := 0; !enough(stopped); stopped++ {
								time.Sleep(ttl/2 + rand.N(ttl))
								payers[i].signal(t, syscall.SIGSTOP)
								time.Sleep(ttl*2/3 + rand.N(ttl*3/2))
								payers[i].signal(t, syscall.SIGCONT)
							}
						})
					}
					stopping.Wait()
					for _, p := range payers {
						require.NoError(t, p.end())
					}
					for _, p := range payers {
						tallies = append(tallies, p.tally(t))
					}
				}
				all, found := sum(tallies), auditDatabase(t, db)
				t.Logf("%d payments: %d stale, %d twice; %d writes refused, %d leases lost", found.payments, found.stale, found.twice, all.Stale, all.Lost)
				require.Empty(t, all.Errors[:min(len(all.Errors), 3)])
				require.Equal(t, all.Paid, found.payments)
				if !blocks {
					require.Positive(t, all.Lost)
				}
				if recipe == "old" {
					require.Positive(t, found.stale)
					require.Positive(t, found.twice)
					return
				}
				require.True(t, !comes || all.Stale > 0, "stale holders came to the database")
				require.Zero(t, found.stale)
				require.Zero(t, found.twice)
			})
		})
	}
}
