package httplock

import (
	"errors"
	"fmt"
	"net/http"
)

// onBehalfOf returns the principal that a request is parked with, or why it is
// not to be parked.
func (m *Middleware) onBehalfOf(r *http.Request) (string, error) {
	switch {
	case m.principal != nil:
		principal, err := m.principal(r)
		if err != nil {
			return "", fmt.Errorf("httplock: the principal function failed: %w", err)
		}
		return principal, nil
	case !m.parkAnonymously && m.carriesCredentials(r):
		return "", errCredentials
	}
	return "", nil
}

// authorized asks whether a replay may still be run on its principal's behalf,
// and writes the response if it may not.
func (m *Middleware) authorized(replay *replay, x Exchange) bool {
	if m.reauthorize == nil {
		return true
	}
	err := m.reauthorize(x.Request, replay.principal)
	if err == nil {
		replay.authorized()
		return true
	}
	err = fmt.Errorf("httplock: %w: %w", errNotAuthorized, err)
	if errors.Is(err, ErrForbidden) {
		m.logger().InfoContext(x.Request.Context(), "httplock: replay refused", "name", x.Name, "id", replay.id, "error", err)
		replay.forbidden()
	} else {
		replay.refused("", err)
	}
	m.refuse(x, err, false)
	return false
}

// requireAuthorized is an error if a replay has come back to the guard that parked
// it, or to one in its place, and no guard was able to ask about its principal.
func requireAuthorized(replay *replay, key string) error {
	if replay == nil || replay.principal == "" || key != replay.key || replay.isAuthorized() {
		return nil
	}
	return errors.New("httplock: the request was parked on a principal's behalf, and the route has no WithPrincipal now")
}
