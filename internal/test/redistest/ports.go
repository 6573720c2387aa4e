package redistest

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are taken below those that the kernel gives to outgoing connections, so that a server that was killed finds
// its port free again. The cluster bus of a server listens busOffset above it.
const (
	loopback  = "127.0.0.1"
	firstPort = 11000
	busOffset = 10000
	lastPort  = firstPort + busOffset - 1
)

var ports struct {
	sync.Mutex
	taken map[int]bool
}

// freePort returns a port that this test binary has not used before, and whose bus port is free too.
func freePort() (int, error) {
	ports.Lock()
	defer ports.Unlock()
	if ports.taken == nil {
		ports.taken = map[int]bool{}
	}
	for range 1000 {
		port := firstPort + rand.N(lastPort-firstPort+1)
		if ports.taken[port] || !free(port) || !free(port+busOffset) {
			continue
		}
		ports.taken[port] = true
		return port, nil
	}
	return 0, errors.New("redistest: no free port")
}

func free(port int) bool {
	ln, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(port)))
	if err != nil {
		return false
	}
	_ = ln.Close()
	return true
}
