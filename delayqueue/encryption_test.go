package delayqueue

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
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

// sealedTest is what sealTest's data belongs to.
var sealedTest = sealedOf{id: "id", key: "key"}

func sealTest(tb testing.TB, s *sealer, plain string) []byte {
	tb.Helper()
	sealed, err := s.seal(kindPayload, sealedTest, []byte(plain))
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

// keyringOf is a keyring with one key, "k".
func keyringOf(key []byte) Keyring { return Keyring{Current: "k", Keys: map[string][]byte{"k": key}} }

func TestEncryption_SealedDataIsOpenedAgain(t *testing.T) {
	for _, keyID := range []string{"k", strings.Repeat("k", keyring.MaxKeyIDLen)} {
		s := testSealer(t, "q", Keyring{Current: keyID, Keys: map[string][]byte{keyID: randomKey()}})
		once, again := sealTest(t, s, "work"), sealTest(t, s, "work")
		require.NotEqual(t, once, again)
		for _, kind := range []string{kindPayload, kindResult, kindCause} {
			for _, plain := range [][]byte{{}, []byte("w"), bytes.Repeat([]byte("a secret "), 10_000)} {
				sealed := of(s.seal(kind, sealedOf{id: "of " + kind}, plain))(t)
				require.Len(t, sealed, len(plain)+s.overhead()-(keyring.MaxKeyIDLen-len(keyID)))
				require.NotContains(t, string(sealed), "secret")
				opened := of(s.open(kind, sealedOf{id: "of " + kind}, sealed))(t)
				require.Equal(t, plain, opened)
			}
		}
		require.ErrorIs(t, errOf(s.seal(kindResult, sealedTest, make([]byte, maxSealed-keyring.Overhead+1))), ErrPayloadTooLarge, "redis cannot hold it")
	}
}

func TestEncryption_NoSealerLeavesDataAsItIs(t *testing.T) {
	var s *sealer
	for _, data := range [][]byte{nil, {}, []byte("work"), []byte(keyring.Magic)} {
		sealed := of(s.seal(kindPayload, sealedTest, data))(t)
		require.Equal(t, data, sealed)
		opened := of(s.open(kindPayload, sealedTest, data))(t)
		require.Equal(t, data, opened)
	}
	require.Zero(t, s.overhead())
}

func TestKeysRotate(t *testing.T) {
	first, second := randomKey(), randomKey()
	both := map[string][]byte{"1": first, "2": second}
	stages := []*sealer{ // before, during and after
		testSealer(t, "q", Keyring{Current: "1", Keys: map[string][]byte{"1": first}}), testSealer(t, "q", Keyring{Current: "1", Keys: both}),
		testSealer(t, "q", Keyring{Current: "2", Keys: both}), testSealer(t, "q", Keyring{Current: "2", Keys: map[string][]byte{"2": second}}),
	}
	for i, seals := range stages {
		sealed := sealTest(t, seals, "work")
		for j, opens := range stages {
			plain, err := opens.open(kindPayload, sealedTest, sealed)
			switch old := i < 2; {
			case old && j == 3, !old && j == 0:
				require.ErrorIs(t, err, ErrSealed)
				require.ErrorIs(t, err, keyring.ErrUnknownKey)
				require.ErrorContains(t, err, fmt.Sprintf("add key %q", map[bool]string{true: "1", false: "2"}[old]))
			default:
				require.NoError(t, err)
				require.Equal(t, "work", string(plain))
			}
		}
	}
}

func TestEncryption_SealedDataStaysWithItsMessage(t *testing.T) {
	keys := keyringOf(randomKey())
	s := testSealer(t, "q", keys)
	sealed := sealTest(t, s, "work")
	for name, c := range map[string]struct {
		s    *sealer
		kind string
		of   sealedOf
	}{
		"queue":     {testSealer(t, "qq", keys), kindPayload, sealedTest},
		"kind":      {s, kindResult, sealedTest},
		"id":        {s, kindPayload, sealedOf{id: "di", key: "key"}},
		"key":       {s, kindPayload, sealedOf{id: "id", key: "yek"}},
		"none":      {s, kindPayload, sealedOf{id: "id"}},
		"name":      {s, kindPayload, sealedOf{id: "id", key: "key", name: "n"}},
		"principal": {s, kindPayload, sealedOf{id: "id", key: "key", principal: "p"}},
		// The same bytes one after another, parted elsewhere.
		"parted":                      {s, kindPayload, sealedOf{id: "idk", key: "ey"}},
		"joined":                      {s, kindPayload + "id", sealedOf{key: "key"}},
		"under another key of the id": {testSealer(t, "q", keyringOf(randomKey())), kindPayload, sealedTest},
	} {
		plain, err := c.s.open(c.kind, c.of, sealed)
		require.ErrorIs(t, err, ErrSealed, name)
		require.NotErrorIs(t, err, keyring.ErrUnknownKey, name)
		require.ErrorContains(t, err, "of another record", name)
		require.Nil(t, plain, name)
	}
}

func TestEncryption_DamagedDataIsRefused(t *testing.T) {
	key := randomKey()
	// "j" is one bit from "k": an id that became another known one is refused too.
	s := testSealer(t, "q", Keyring{Current: "k", Keys: map[string][]byte{"k": key, "j": randomKey()}})
	sealed := sealTest(t, s, "my secret")
	refused := func(stored ...[]byte) {
		t.Helper()
		plain, err := s.open(kindPayload, sealedTest, slices.Concat(stored...))
		require.ErrorIs(t, err, ErrSealed)
		require.Nil(t, plain)
		assertHidden(t, err.Error(), key, []byte("my secret"))
	}
	for i := range sealed {
		for flip := 1; flip < 256; flip *= 2 {
			refused(sealed[:i], []byte{sealed[i] ^ byte(flip)}, sealed[i+1:])
		}
		refused(sealed[:i])
		refused(sealed[:i], sealed[i+1:])
	}
	refused(sealed, []byte{0})
	refused(sealed, sealed)
}

func TestEncryption_PlainDataIsRefused(t *testing.T) {
	s := testSealer(t, "q", keyringOf(randomKey()))
	for stored, why := range map[string]string{
		"": "not sealed", "my secret": "not sealed", `{"amount":1}`: "not sealed", "\xff": "not sealed", "\xffp": "not sealed",
		keyring.Magic[1:]: "not sealed", "\x00\x01\x02": "not sealed",
		keyring.Magic:                          "cut short",
		keyring.Magic + "\x01":                 "cut short",
		keyring.Magic + "\x01\x06secre":        "cut short",
		keyring.Magic + "\x02\x01k":            "version is 2",
		keyring.Magic + "\x01\x00":             "id is damaged",
		keyring.Magic + "\x01\x0amy secret!":   "id is damaged",
		keyring.Magic + "\x01\x01k":            "damaged",
		keyring.Magic + "\x01\x01kmy secret!!": "damaged",
	} {
		_, err := s.open(kindPayload, sealedTest, []byte(stored))
		require.ErrorIs(t, err, ErrSealed)
		require.ErrorContains(t, err, "payload of message \"id\"")
		require.ErrorContains(t, err, why)
		if strings.HasPrefix(stored, keyring.Magic) && why != "version is 2" {
			require.ErrorContains(t, err, "find out who else writes to this Redis")
		}
		require.NotContains(t, err.Error(), "secre")
	}
}

func TestBadKeyrings(t *testing.T) {
	good := randomKey()
	long := append(randomKey(), 1)
	text := hex.EncodeToString(good)
	for name, keys := range map[string]Keyring{
		"zero":               {},
		"no keys":            {Current: "k"},
		"no current":         {Keys: map[string][]byte{"k": good}},
		"unknown current":    {Current: "j", Keys: map[string][]byte{"k": good}},
		"a key as current":   {Current: string(good), Keys: map[string][]byte{"k": good}},
		"its text":           {Current: text, Keys: map[string][]byte{"k": good}},
		"nil key":            keyringOf(nil),
		"AES-128":            keyringOf(good[:16]),
		"short key":          keyringOf(good[:31]),
		"long key":           keyringOf(long),
		"text of a key":      keyringOf([]byte(text)),
		"zero key":           keyringOf(make([]byte, keyring.KeyLen)),
		"bad key beside":     {Current: "k", Keys: map[string][]byte{"k": good, "j": good[:5]}},
		"one key, two ids":   {Current: "k", Keys: map[string][]byte{"k": good, "j": good}},
		"empty id":           {Current: "k", Keys: map[string][]byte{"k": good, "": randomKey()}},
		"long id":            {Current: "k", Keys: map[string][]byte{"k": good, strings.Repeat("k", 33): randomKey()}},
		"space in id":        {Current: "a b", Keys: map[string][]byte{"a b": good}},
		"letter not in a-z":  {Current: "é", Keys: map[string][]byte{"é": good}},
		"not UTF-8":          {Current: "\xff", Keys: map[string][]byte{"\xff": good}},
		"key and id swapped": {Current: text, Keys: map[string][]byte{text: []byte("k")}},
	} {
		err := WithEncryption(keys)(&settings{name: "q"})
		require.ErrorIs(t, err, core.ErrInvalidOption, name)
		require.ErrorContains(t, err, "WithEncryption", name)
		assertHidden(t, err.Error(), good, long, good[:5], []byte(text))
		assertHidden(t, keys.String(), good, long, []byte(text))
	}
	for _, id := range []string{"k", "K.2_0-x", strings.Repeat("9", 32)} {
		require.NoError(t, keyring.Check(Keyring{Current: id, Keys: map[string][]byte{id: good}}))
	}
}

func TestWithEncryption_CopiesItsKeyring(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{})
	defer rdb.Close()
	key := randomKey()
	keys := keyringOf(bytes.Clone(key))
	option := WithEncryption(keys)
	clear(keys.Keys["k"])
	clear(keys.Keys)
	q := of(New(rdb, "ship", option))(t)
	plain := of(testSealer(t, "ship", keyringOf(key)).open(kindPayload, sealedTest, sealTest(t, q.sealer, "work")))(t)
	require.Equal(t, "work", string(plain))
}

func TestEncryption_AKeyringDoesNotShowItsKeys(t *testing.T) {
	key := randomKey()
	keys := keyringOf(key)
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
	text := of(json.Marshal(holder))(t)
	require.JSONEq(t, `{"Keys":"Keyring(current k, of 1)"}`, string(text))
}
