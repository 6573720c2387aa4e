package console

import (
	"slices"
	"strconv"
	"time"

	"github.com/perkey-go/perkey/ops"
)

// serverView is what a server says about itself.
type serverView struct {
	Addr, Version, Policy string
	Err                   error
	Used, Max             int64
	Clients, OpsPerSecond int64
	Replicas              int64
	Took                  time.Duration // of an answer: the median
}

func serverOf(s ops.Server) serverView {
	n := func(name string) int64 {
		i, _ := strconv.ParseInt(s.Info[name], 10, 64) // a field that is missing is 0
		return i
	}
	v := serverView{
		Addr: s.Addr, Err: s.Err, Version: s.Info["redis_version"], Policy: s.Info["maxmemory_policy"], Used: n("used_memory"), Max: n("maxmemory"),
		Clients: n("connected_clients"), OpsPerSecond: n("instantaneous_ops_per_sec"), Replicas: n("connected_slaves"),
	}
	if len(s.RoundTrips) > 0 {
		v.Took = slices.Sorted(slices.Values(s.RoundTrips))[len(s.RoundTrips)/2]
	}
	return v
}
