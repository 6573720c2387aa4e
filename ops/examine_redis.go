package ops

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/keytext"
)

// servers judges each primary.
func (f *findings) servers(fleet Fleet) {
	asked := f.facts.Servers
	switch {
	case errors.Is(asked.Err, errors.ErrUnsupported):
		f.unknown("away", "", "The state of the Redis servers cannot be read.", "INFO of each server.", asked.Err)
		return
	case asked.Err != nil:
		f.away("", asked.Err)
		return
	}
	if !known(f, asked, "away", "", "The state of the Redis servers", "") {
		return
	}
	for _, s := range asked.Value {
		if s.Err != nil {
			f.away(s.Addr, s.Err)
			continue
		}
		if s.Info != nil {
			f.memory(fleet, s)
			f.replicas(s)
			f.persistence(s)
		}
		f.latency(fleet, s)
		f.rights(s)
	}
}

func (f *findings) away(addr string, err error) {
	subject := "Redis"
	if addr != "" {
		subject = "Redis at " + addr
	}
	does := " does not answer."
	if _, said := errors.AsType[redis.Error](err); said {
		does = " denies the request."
	}
	f.add("away", SeverityAct, addr, subject+does, Evidence{"the error", keytext.Cut(safeError(err), maxDetail), "an answer within " + brief(serversTimeout)})
}

func (f *findings) memory(fleet Fleet, s Server) {
	limit, used := s.number("maxmemory"), s.number("used_memory")
	switch policy := s.Info["maxmemory_policy"]; policy {
	case "noeviction":
	case "":
		if warned := fleet.warned(core.WarnEviction); len(warned) > 0 {
			f.warned("eviction", SeverityAct, "Processes found a server that may evict the records of held keys.", warned, fleet)
			break
		}
		f.unknown("eviction", s.Addr, s.Addr+" does not report whether it may evict held keys.", "The setting maxmemory-policy: noeviction is right.", nil)
	default:
		most := "none, so it evicts nothing until there is one"
		if limit > 0 {
			most = strconv.FormatInt(limit, 10) + " bytes"
		}
		f.add("eviction", SeverityAct, s.Addr, s.Addr+" may evict the records of held keys.", Evidence{"maxmemory-policy", policy, "noeviction"},
			Evidence{"maxmemory", most, ""}, Evidence{"evicted so far", strconv.FormatInt(s.number("evicted_keys"), 10), "0"})
	}
	if limit > 0 && used >= limit*memoryFull/100 {
		f.add("memory", SeverityAct, s.Addr, fmt.Sprintf("%s uses %d %% of its memory.", s.Addr, 100*used/limit),
			Evidence{"used_memory", strconv.FormatInt(used, 10), fmt.Sprintf("less than %d %% of maxmemory, %d", memoryFull, limit)})
	}
}

func (f *findings) latency(fleet Fleet, s Server) {
	if len(s.RoundTrips) == 0 {
		return
	}
	median := slices.Sorted(slices.Values(s.RoundTrips))[len(s.RoundTrips)/2]
	if median <= slowAnswer {
		return
	}
	evidence := []Evidence{{"median of " + count(len(s.RoundTrips), "round trip", "round trips"), brief(median), "at most " + brief(slowAnswer)}, {"slowest", brief(slices.Max(s.RoundTrips)), ""}}
	if took := fleet.Snapshot().Renewals.Took; took.Count > 0 {
		evidence = append(evidence, Evidence{"mean of the processes' renewals", brief(took.Sum / time.Duration(took.Count)), ""})
	}
	f.add("latency", SeverityLook, s.Addr, s.Addr+" answers slowly, seen from here.", evidence...)
}

func (f *findings) replicas(s Server) {
	if s.Info["role"] == "slave" {
		f.add("read_only", SeverityAct, s.Addr, s.Addr+" is a replica, and takes no writes.", Evidence{"role", "slave", "master"})
		return
	}
	n, behind := 0, []string{}
	for ; s.Info[fmt.Sprint("slave", n)] != ""; n++ {
		fields := map[string]string{}
		for field := range strings.SplitSeq(s.Info[fmt.Sprint("slave", n)], ",") {
			name, value, _ := strings.Cut(field, "=")
			fields[name] = value
		}
		if lag, _ := strconv.Atoi(fields["lag"]); fields["state"] != "online" || lag > replicaLag {
			behind = append(behind, fmt.Sprintf("%s:%s %s, %s s", fields["ip"], fields["port"], fields["state"], fields["lag"]))
		}
	}
	if len(behind) > 0 {
		found := f.add("replicas", SeverityLook, s.Addr, fmt.Sprintf("%s of %s lag.", count(len(behind), "replica", "replicas"), s.Addr), examples("state and lag", behind))
		found.Evidence[0].Want = fmt.Sprintf("online, at most %d s", replicaLag)
	}
	told := false // by INFO all, but not by INFO
	for field := range s.Info {
		told = told || strings.HasPrefix(field, "cmdstat_")
	}
	if n == 0 || !told || s.Info["cmdstat_wait"] != "" || s.Info["min_slaves_good_slaves"] != "" {
		return
	}
	f.add("replicas", SeverityLook, s.Addr, s.Addr+" has replicas, and no call waits until they have its write.",
		Evidence{"replicas", strconv.Itoa(n), ""}, Evidence{"calls of WAIT", "0", "some, or min-replicas-to-write"})
}

func (f *findings) persistence(s Server) {
	const byHand = "The settings appendonly and save, or what the provider says of persistence."
	switch {
	case s.Info["aof_enabled"] == "1" || s.Save.Err == nil && (s.Save.At.IsZero() || s.Save.Value != ""):
	case s.Save.Err != nil:
		f.unknown("persistence", s.Addr, s.Addr+" does not report whether it writes snapshots to disk.", byHand, s.Save.Err)
	default:
		lost := "leases and Idempotency-Keys are lost when it restarts."
		if n := len(f.facts.Queues.Value); n > 0 {
			lost = "parked work, leases and Idempotency-Keys are lost when it restarts."
		}
		f.add("persistence", SeverityLook, s.Addr, s.Addr+" writes nothing to disk: "+lost,
			Evidence{"appendonly", "no", "yes"}, Evidence{"save", `""`, "a schedule, if not appendonly"})
	}
}

func (f *findings) rights(s Server) {
	const byHand = "ACL LOG, and ACL GETUSER of the services' user, beside the table of rights in docs/operations.md."
	if s.Rights.Err != nil {
		f.unknown("rights", s.Addr, s.Addr+" does not report what its user may do.", byHand, s.Rights.Err)
		return
	}
	missing := s.Rights.Value.Missing
	var evidence []Evidence
	for _, n := range needed {
		if rights := missing[n.use]; len(rights) > 0 && n.when(f.facts) {
			evidence = append(evidence, Evidence{"missing for " + n.use, strings.Join(rights, " "), "none"})
		}
	}
	if len(evidence) > 0 {
		f.add("rights", SeverityAct, s.Addr, fmt.Sprintf("User %q of %s lacks rights that services need.", s.Rights.Value.User, s.Addr), evidence...)
	}
}
