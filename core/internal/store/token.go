package store

import (
	"crypto/rand"
	"encoding/hex"
	"strconv"
	"strings"
)

// An owner token names one attempt of a Locker to take a key: LIMIT:LOCKER.SECRET. Whoever knows it
// can release what it holds. The limit is how many may hold the key together with it.
const (
	Exclusive = 1
	Shared    = 0 // no limit
)

// Secret is a token's SECRET.
type Secret [secretDigits / 2]byte

// secretDigits is how many digits a SECRET has.
const secretDigits = 24

// TokenRoom is a capacity that nearly every token fits.
const TokenRoom = 96

// NewToken makes a token.
func NewToken(limit int, locker string) string {
	var secret Secret
	_, _ = rand.Read(secret[:]) // never fails, by its documentation
	return FormatToken(limit, locker, secret)
}

// FormatToken writes a token.
func FormatToken(limit int, locker string, secret Secret) string {
	return string(AppendToken(make([]byte, 0, TokenRoom), limit, locker, secret))
}

// AppendToken appends a token to b.
func AppendToken(b []byte, limit int, locker string, secret Secret) []byte {
	b = append(strconv.AppendInt(b, int64(limit), 10), ':')
	b = append(append(b, locker...), '.')
	return hex.AppendEncode(b, secret[:])
}

// SplitToken splits a token that FormatToken made.
func SplitToken(token string) (locker string, secret Secret) {
	_, rest, _ := strings.Cut(token, ":")
	locker, digits, _ := strings.Cut(rest, ".")
	_, _ = hex.Decode(secret[:], []byte(digits))
	return locker, secret
}

// LimitOf returns a token's limit.
func LimitOf(token string) int {
	digits, _, _ := strings.Cut(token, ":")
	n, _ := strconv.Atoi(digits)
	return n
}

// ValidToken reports whether token has the form of one that NewToken makes.
func ValidToken(token string) bool {
	digits, rest, _ := strings.Cut(token, ":")
	locker, secret, _ := strings.Cut(rest, ".")
	limit, err := strconv.Atoi(digits)
	return err == nil && strconv.Itoa(limit) == digits && limit >= 0 &&
		locker != "" && len(locker) <= maxLockerLen && strings.Trim(locker, lockerLetters) == "" &&
		len(secret) == secretDigits && strings.Trim(secret, "0123456789abcdef") == ""
}

// Named returns the form in which messages name a token: without the end of its secret.
func Named(token string) string { return token[:max(len(token)-hiddenDigits, 0)] }
