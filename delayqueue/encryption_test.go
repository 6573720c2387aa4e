package delayqueue

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/keyring"
)

func randomKey() []byte {
	key := make([]byte, keyring.KeyLen)
	_, _ = rand.Read(key) // never fails, by its documentation
	return key
}

func testSealer(tb testing.TB, queue string, keys Keyring) *sealer {
	tb.Helper()
	s, err := newSealer(queue, keys)
	require.NoError(tb, err)
	return s
}

func sealTest(tb testing.TB, s *sealer, plain string) []byte {
	tb.Helper()
	sealed, err := s.seal(kindPayload, sealedOf{id: "id", key: "key"}, []byte(plain))
	require.NoError(tb, err)
	return sealed
}

// assertHidden fails if text shows one of the secrets in a usual form.
func assertHidden(t *testing.T, text string, secrets ...[]byte) {
	t.Helper()
	for _, secret := range secrets {
		for _, form := range []string{
			string(secret), hex.EncodeToString(secret), strings.ToUpper(hex.EncodeToString(secret)),
			base64.StdEncoding.EncodeToString(secret), strings.Trim(fmt.Sprintf("%q", secret), `"`),
			strings.Trim(fmt.Sprintf("%d", secret), "[]"), strings.Trim(fmt.Sprintf("%o", secret), "[]"),
		} {
			assert.NotContains(t, text, form)
		}
	}
}

func TestEncryption_SealedDataIsOpenedAgain(t *testing.T) {
	for _, keyID := range []string{"k", strings.Repeat("k", keyring.MaxKeyIDLen)} {
		s := testSealer(t, "q", Keyring{Current: keyID, Keys: map[string][]byte{keyID: randomKey()}})
		for _, kind := range []string{kindPayload, kindResult, kindCause} {
			for _, plain := range [][]byte{{}, []byte("w"), bytes.Repeat([]byte("a secret "), 10_000)} {
				sealed, err := s.seal(kind, sealedOf{id: "of " + kind, key: ""}, plain)
				require.NoError(t, err)
				require.Len(t, sealed, len(plain)+s.overhead()-(keyring.MaxKeyIDLen-len(keyID)))
				require.NotContains(t, string(sealed), "secret")
				opened, err := s.open(kind, sealedOf{id: "of " + kind, key: ""}, sealed)
				require.NoError(t, err)
				require.Equal(t, plain, opened)
			}
		}
	}
}

func TestEncryption_SealingTwiceDiffers(t *testing.T) {
	s := testSealer(t, "q", Keyring{Current: "k", Keys: map[string][]byte{"k": randomKey()}})
	first := sealTest(t, s, "work")
	require.NotEqual(t, first, sealTest(t, s, "work"))
}

func TestEncryption_NoSealerLeavesDataAsItIs(t *testing.T) {
	var s *sealer
	for _, data := range [][]byte{nil, {}, []byte("work"), []byte(keyring.Magic)} {
		sealed, err := s.seal(kindPayload, sealedOf{id: "id", key: "key"}, data)
		require.NoError(t, err)
		require.Equal(t, data, sealed)
		opened, err := s.open(kindPayload, sealedOf{id: "id", key: "key"}, data)
		require.NoError(t, err)
		require.Equal(t, data, opened)
	}
	require.Zero(t, s.overhead())
}

func TestKeysRotate(t *testing.T) {
	first, second := randomKey(), randomKey()
	both := map[string][]byte{"1": first, "2": second}
	before := testSealer(t, "q", Keyring{Current: "1", Keys: map[string][]byte{"1": first}})
	during := testSealer(t, "q", Keyring{Current: "1", Keys: both})
	turned := testSealer(t, "q", Keyring{Current: "2", Keys: both})
	after := testSealer(t, "q", Keyring{Current: "2", Keys: map[string][]byte{"2": second}})

	opens := func(s *sealer, sealed []byte) {
		t.Helper()
		plain, err := s.open(kindPayload, sealedOf{id: "id", key: "key"}, sealed)
		require.NoError(t, err)
		require.Equal(t, "work", string(plain))
	}
	lacksKey := func(s *sealer, sealed []byte, id string) {
		t.Helper()
		_, err := s.open(kindPayload, sealedOf{id: "id", key: "key"}, sealed)
		require.ErrorIs(t, err, ErrSealed)
		require.ErrorIs(t, err, keyring.ErrUnknownKey)
		require.ErrorContains(t, err, fmt.Sprintf("add key %q", id))
	}
	for _, s := range []*sealer{before, during} {
		old := sealTest(t, s, "work")
		opens(before, old)
		opens(during, old)
		opens(turned, old)
		lacksKey(after, old, "1")
	}
	for _, s := range []*sealer{turned, after} {
		fresh := sealTest(t, s, "work")
		opens(during, fresh)
		opens(turned, fresh)
		opens(after, fresh)
		lacksKey(before, fresh, "2")
	}
}

func TestEncryption_SealedDataStaysWithItsMessage(t *testing.T) {
	keys := Keyring{Current: "k", Keys: map[string][]byte{"k": randomKey()}}
	s, other := testSealer(t, "q", keys), testSealer(t, "qq", keys)
	sealed := sealTest(t, s, "work")
	for name, open := range map[string]func() ([]byte, error){
		"queue": func() ([]byte, error) { return other.open(kindPayload, sealedOf{id: "id", key: "key"}, sealed) },
		"kind":  func() ([]byte, error) { return s.open(kindResult, sealedOf{id: "id", key: "key"}, sealed) },
		"id":    func() ([]byte, error) { return s.open(kindPayload, sealedOf{id: "di", key: "key"}, sealed) },
		"key":   func() ([]byte, error) { return s.open(kindPayload, sealedOf{id: "id", key: "yek"}, sealed) },
		"none":  func() ([]byte, error) { return s.open(kindPayload, sealedOf{id: "id", key: ""}, sealed) },
		"name":  func() ([]byte, error) { return s.open(kindPayload, sealedOf{id: "id", key: "key", name: "n"}, sealed) },
		"principal": func() ([]byte, error) {
			return s.open(kindPayload, sealedOf{id: "id", key: "key", principal: "p"}, sealed)
		},
		// The same bytes one after another, parted elsewhere.
		"parted": func() ([]byte, error) { return s.open(kindPayload, sealedOf{id: "idk", key: "ey"}, sealed) },
		"joined": func() ([]byte, error) { return s.open(kindPayload+"id", sealedOf{id: "", key: "key"}, sealed) },
		"under another key of the id": func() ([]byte, error) {
			return testSealer(t, "q", Keyring{Current: "k", Keys: map[string][]byte{"k": randomKey()}}).open(kindPayload, sealedOf{id: "id", key: "key"}, sealed)
		},
	} {
		t.Run(name, func(t *testing.T) {
			plain, err := open()
			require.ErrorIs(t, err, ErrSealed)
			require.NotErrorIs(t, err, keyring.ErrUnknownKey)
			require.ErrorContains(t, err, "of another record")
			require.Nil(t, plain)
		})
	}
}

func TestEncryption_DamagedDataIsRefused(t *testing.T) {
	key := randomKey()
	// "j" is one bit from "k": an id that became another known one is refused too.
	s := testSealer(t, "q", Keyring{Current: "k", Keys: map[string][]byte{"k": key, "j": randomKey()}})
	sealed := sealTest(t, s, "my secret")
	refused := func(stored []byte) {
		t.Helper()
		plain, err := s.open(kindPayload, sealedOf{id: "id", key: "key"}, stored)
		require.ErrorIs(t, err, ErrSealed)
		require.Nil(t, plain)
		assertHidden(t, err.Error(), key, []byte("my secret"))
	}
	for i := range sealed {
		for flip := 1; flip < 256; flip *= 2 {
			damaged := bytes.Clone(sealed)
			damaged[i] ^= byte(flip)
			refused(damaged)
		}
		refused(sealed[:i])
		refused(append(bytes.Clone(sealed[:i]), sealed[i+1:]...))
	}
	refused(append(bytes.Clone(sealed), 0))
	refused(append(bytes.Clone(sealed), sealed...))
}

func TestEncryption_PlainDataIsRefused(t *testing.T) {
	s := testSealer(t, "q", Keyring{Current: "k", Keys: map[string][]byte{"k": randomKey()}})
	for _, plain := range []string{"", "my secret", `{"amount":1}`, "\xff", "\xffp", keyring.Magic[1:], "\x00\x01\x02"} {
		_, err := s.open(kindPayload, sealedOf{id: "id", key: "key"}, []byte(plain))
		require.ErrorIs(t, err, ErrSealed)
		require.ErrorContains(t, err, "payload of message \"id\"")
		require.ErrorContains(t, err, "not sealed")
		require.NotContains(t, err.Error(), "my secret")
	}
	for stored, why := range map[string]string{
		keyring.Magic:                          "cut short",
		keyring.Magic + "\x01":                 "cut short",
		keyring.Magic + "\x01\x06secre":        "cut short",
		keyring.Magic + "\x02\x01k":            "version is 2",
		keyring.Magic + "\x01\x00":             "id is damaged",
		keyring.Magic + "\x01\x0amy secret!":   "id is damaged",
		keyring.Magic + "\x01\x01k":            "damaged",
		keyring.Magic + "\x01\x01kmy secret!!": "damaged",
	} {
		_, err := s.open(kindPayload, sealedOf{id: "id", key: "key"}, []byte(stored))
		require.ErrorIs(t, err, ErrSealed)
		require.ErrorContains(t, err, why)
		if !strings.Contains(why, "version") {
			require.ErrorContains(t, err, "find out who else writes to this Redis")
		}
		require.NotContains(t, err.Error(), "secre")
	}
}

func TestEncryption_WhatRedisCannotHoldIsNotSealed(t *testing.T) {
	s := testSealer(t, "q", Keyring{Current: "k", Keys: map[string][]byte{"k": randomKey()}})
	_, err := s.seal(kindResult, sealedOf{id: "id", key: "key"}, make([]byte, maxSealed-keyring.Overhead+1))
	require.ErrorIs(t, err, ErrPayloadTooLarge)
}

func TestBadKeyrings(t *testing.T) {
	good := randomKey()
	long := append(randomKey(), 1)
	text := hex.EncodeToString(good)
	for name, keys := range map[string]Keyring{
		"zero":               {},
		"no keys":            {Current: "k"},
		"no current":         {Current: "", Keys: map[string][]byte{"k": good}},
		"unknown current":    {Current: "j", Keys: map[string][]byte{"k": good}},
		"a key as current":   {Current: string(good), Keys: map[string][]byte{"k": good}},
		"its text":           {Current: text, Keys: map[string][]byte{"k": good}},
		"nil key":            {Current: "k", Keys: map[string][]byte{"k": nil}},
		"AES-128":            {Current: "k", Keys: map[string][]byte{"k": good[:16]}},
		"short key":          {Current: "k", Keys: map[string][]byte{"k": good[:31]}},
		"long key":           {Current: "k", Keys: map[string][]byte{"k": long}},
		"text of a key":      {Current: "k", Keys: map[string][]byte{"k": []byte(text)}},
		"zero key":           {Current: "k", Keys: map[string][]byte{"k": make([]byte, keyring.KeyLen)}},
		"bad key beside":     {Current: "k", Keys: map[string][]byte{"k": good, "j": good[:5]}},
		"one key, two ids":   {Current: "k", Keys: map[string][]byte{"k": good, "j": good}},
		"empty id":           {Current: "k", Keys: map[string][]byte{"k": good, "": randomKey()}},
		"long id":            {Current: "k", Keys: map[string][]byte{"k": good, strings.Repeat("k", 33): randomKey()}},
		"space in id":        {Current: "a b", Keys: map[string][]byte{"a b": good}},
		"letter not in a-z":  {Current: "é", Keys: map[string][]byte{"é": good}},
		"not UTF-8":          {Current: "\xff", Keys: map[string][]byte{"\xff": good}},
		"key and id swapped": {Current: text, Keys: map[string][]byte{text: []byte("k")}},
	} {
		t.Run(name, func(t *testing.T) {
			err := WithEncryption(keys)(&settings{name: "q"})
			require.ErrorIs(t, err, core.ErrInvalidOption)
			require.ErrorContains(t, err, "WithEncryption")
			assertHidden(t, err.Error(), good, long, good[:5], []byte(text))
			assertHidden(t, keys.String(), good, long, []byte(text))
		})
	}
	for _, id := range []string{"k", "K.2_0-x", strings.Repeat("9", 32)} {
		require.NoError(t, keyring.Check(Keyring{Current: id, Keys: map[string][]byte{id: good}}))
	}
}

func TestWithEncryption_CopiesItsKeyring(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{})
	defer rdb.Close()
	key := randomKey()
	keys := Keyring{Current: "k", Keys: map[string][]byte{"k": bytes.Clone(key)}}
	option := WithEncryption(keys)
	clear(keys.Keys["k"])
	clear(keys.Keys)

	q, err := New(rdb, "ship", option)
	require.NoError(t, err)
	plain, err := testSealer(t, "ship", Keyring{Current: "k", Keys: map[string][]byte{"k": key}}).open(kindPayload, sealedOf{id: "id", key: "key"}, sealTest(t, q.sealer, "work"))
	require.NoError(t, err)
	require.Equal(t, "work", string(plain))

	q, err = New(rdb, "ship")
	require.NoError(t, err)
	require.Nil(t, q.sealer)
}

func TestEncryption_AKeyringDoesNotShowItsKeys(t *testing.T) {
	key := randomKey()
	keys := Keyring{Current: "k", Keys: map[string][]byte{"k": key}}
	require.Equal(t, "Keyring(current k, of 1)", keys.String())
	require.Equal(t, keys.String(), keys.GoString())
	holder := struct{ Keys Keyring }{keys}
	q := &Queue{settings: settings{name: "q"}}
	require.NoError(t, WithEncryption(keys)(&q.settings))
	for _, v := range []any{keys, &keys, holder, &holder, []Keyring{keys}, q, *q, q.sealer, *q.sealer} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o"} {
			assertHidden(t, fmt.Sprintf(verb, v), key)
		}
		var logged bytes.Buffer
		slog.New(slog.NewTextHandler(&logged, nil)).Info("", "v", v)
		slog.New(slog.NewJSONHandler(&logged, nil)).Info("", "v", v)
		assertHidden(t, logged.String(), key)
	}
	text, err := json.Marshal(holder)
	require.NoError(t, err)
	require.JSONEq(t, `{"Keys":"Keyring(current k, of 1)"}`, string(text))
}
