package main

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
	"net/netip"
	"os"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/perkey-go/perkey/ops"
	"github.com/perkey-go/perkey/ops/console"
)

// authorize is that of console.Options.
type authorize = func(r *http.Request, do ops.Action) (who string, err error)

// authorizer is how the console learns who sends a request; nil: it does not.
func authorizer(c *cli.Command, loopback bool) (authorize, error) {
	file, proxies, header := c.String(flagUsers), c.StringSlice(flagProxy), c.String(flagUserHeader)
	switch {
	case (len(proxies) > 0) != (header != ""):
		return nil, usagef("--proxy and --user-header: give both")
	case file != "" && len(proxies) > 0:
		return nil, usagef("--users and --proxy: give one of them")
	case file != "" && !loopback:
		return nil, usagef("--users: only on a loopback address: tokens would be sent in the clear")
	case file != "":
		return usersIn(file)
	case len(proxies) > 0:
		return behind(proxies, header)
	case !loopback:
		return nil, usagef("--listen %s: it is not a loopback address: give --proxy and --user-header, or whoever reaches it sees everything", quote(c.String(flagListen)))
	}
	return nil, nil
}

var (
	errNoPayloads = errors.New("this console shows no payloads")
	errNobody     = errors.New("it is not known who sends it")
)

// behind believes a header of requests that come from one of some addresses.
func behind(proxies []string, header string) (authorize, error) {
	var from []netip.Prefix
	for _, text := range proxies {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			ip, err := netip.ParseAddr(text)
			if err != nil {
				return nil, usagef("--proxy %s: expected an address such as 10.0.0.5, or a network such as 10.0.0.0/28", quote(text))
			}
			network = netip.PrefixFrom(ip, ip.BitLen())
		}
		from = append(from, network)
	}
	return func(r *http.Request, do ops.Action) (string, error) {
		if do == console.Payloads {
			return "", errNoPayloads
		}
		sender, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil {
			return "", errNobody
		}
		for _, network := range from {
			// Two of them: the proxy lets its client's through.
			if names := r.Header.Values(header); network.Contains(sender.Addr().Unmap().WithZone("")) && len(names) == 1 && isName(names[0]) {
				return names[0], nil
			}
		}
		return "", errNobody
	}, nil
}

// minToken is too long to be guessed.
const minToken = 32

// usersIn asks browsers for a name and a token of a file.
func usersIn(file string) (authorize, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, usagef("--users: %v", err)
	}
	tokens, n := map[string][sha256.Size]byte{}, 0
	for line := range strings.Lines(string(text)) {
		n++
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if len(words) != 2 || len(words[1]) < minToken || !isName(words[0]) || strings.Contains(words[0], ":") {
			return nil, usagef("--users: %s:%d: expected a name without a colon, and a token of %d characters or more, as openssl rand -hex 32 makes one", quote(file), n, minToken)
		}
		if _, twice := tokens[words[0]]; twice {
			return nil, usagef("--users: %s:%d: the name is there twice", quote(file), n)
		}
		tokens[words[0]] = sha256.Sum256([]byte(words[1]))
	}
	if len(tokens) == 0 {
		return nil, usagef("--users: %s has no name in it", quote(file))
	}
	return func(r *http.Request, do ops.Action) (string, error) {
		name, token, _ := r.BasicAuth()
		sum, want := sha256.Sum256([]byte(token)), tokens[name]
		if subtle.ConstantTimeCompare(sum[:], want[:]) != 1 {
			return "", &console.LoginError{Challenge: `Basic realm="perkey", charset="UTF-8"`}
		}
		if do == console.Payloads {
			return "", errNoPayloads
		}
		return name, nil
	}, nil
}

// isName reports whether a name can be shown and audited as it is.
func isName(s string) bool { return s != "" && len(s) <= 200 && printable(s) == s }
