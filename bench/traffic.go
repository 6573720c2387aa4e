package main

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"time"
)

// traffic is what Redis does, per second.
type traffic struct {
	sent      float64 // commands that clients send, scripts among them
	scripts   float64
	inScripts float64 // commands that scripts call
}

// traffic watches for d. It asks for every command, which INFO cannot tell from
// those that scripts call; that slows Redis down, and suits a Redis that is not busy.
func (s *server) traffic(d time.Duration) (t traffic, err error) {
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		return t, fmt.Errorf("watch Redis: %w", err)
	}
	defer func() { _ = conn.Close() }()
	lines := bufio.NewReader(conn)
	if _, err := fmt.Fprint(conn, "MONITOR\r\n"); err != nil {
		return t, fmt.Errorf("watch Redis: %w", err)
	}
	if _, err := lines.ReadString('\n'); err != nil {
		return t, fmt.Errorf("watch Redis: %w", err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(d))
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			break // the time is up
		}
		// +1339518083.107412 [0 127.0.0.1:60866] "evalsha" "..."
		who, command, _ := strings.Cut(line, "] ")
		switch {
		case strings.HasSuffix(who, " lua"):
			t.inScripts++
			continue
		case strings.HasPrefix(strings.ToLower(command), `"eval`):
			t.scripts++
		}
		t.sent++
	}
	t.sent /= d.Seconds()
	t.scripts /= d.Seconds()
	t.inScripts /= d.Seconds()
	return t, nil
}
