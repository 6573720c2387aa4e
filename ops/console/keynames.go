package console

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/perkey-go/perkey/ops"
)

const minSecret = 32

// keyNames are what pages and addresses have in place of keys. nil: the keys themselves.
//
// A page has the beginning of a keyed hash. An address has the key sealed as SIV does, with the hash as the nonce of
// AES-CTR: the console needs no list of the keys that it has shown, and all replicas with one secret have the same addresses.
type keyNames struct {
	hash   []byte
	cipher cipher.Block
}

const (
	nonceLen = aes.BlockSize
	nameLen  = 8 // bytes of the hash that a page has
)

func newKeyNames(secret []byte) (*keyNames, error) {
	derive := func(use string) []byte {
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(use))
		return mac.Sum(nil)
	}
	block, err := aes.NewCipher(derive("seal"))
	return &keyNames{derive("hash"), block}, err
}

func (n *keyNames) nonce(key string) []byte {
	mac := hmac.New(sha256.New, n.hash)
	mac.Write([]byte(key))
	return mac.Sum(nil)[:nonceLen]
}

// name is what a page has of a key.
func (n *keyNames) name(key string) string {
	if n == nil {
		return key
	}
	return "#" + hex.EncodeToString(n.nonce(key)[:nameLen])
}

// param is what an address has of a key, or of the beginning of keys.
func (n *keyNames) param(key string) string {
	if n == nil || key == "" {
		return key
	}
	sealed := append(n.nonce(key), key...)
	cipher.NewCTR(n.cipher, sealed[:nonceLen]).XORKeyStream(sealed[nonceLen:], sealed[nonceLen:])
	return base64.RawURLEncoding.EncodeToString(sealed)
}

// of is the key of an address. One that the console did not make has none.
func (n *keyNames) of(param string) (string, error) {
	if n == nil || param == "" {
		return param, nil
	}
	sealed, err := base64.RawURLEncoding.DecodeString(param)
	if err == nil && len(sealed) > nonceLen {
		key := make([]byte, len(sealed)-nonceLen)
		cipher.NewCTR(n.cipher, sealed[:nonceLen]).XORKeyStream(key, sealed[nonceLen:])
		if hmac.Equal(n.nonce(string(key)), sealed[:nonceLen]) {
			return string(key), nil
		}
	}
	return "", &httpError{http.StatusBadRequest, "This address is not one that this console makes: enter the key in the box above."}
}

// url is where the page of a key is, relative to any page.
func (n *keyNames) url(key string) string { return link("key", "key", n.param(key)) }

// unlockURL is where a key is taken from its holder.
func (n *keyNames) unlockURL(key string, fence int64) string {
	return link("change", "do", string(ops.ActionUnlock), "key", n.param(key), "fence", strconv.FormatInt(fence, 10))
}

// quoted is a text in quotation marks, or one that was cut off, and the word before it. Errors and the audit name keys so, and
// shownWords are before what is shown.
var (
	quoted     = regexp.MustCompile(`(\w+[= ])?("(?:[^"\\]|\\.)*(?:"|\\?$))`)
	shownWords = []string{"queue ", "message ", "route ", "prefix ", "user ", "name=", "principal=", "cause="}
)

// hide is a text in which the console, or a package that tells it something, may have named a key.
func (n *keyNames) hide(key, text string) string {
	if n == nil {
		return text
	}
	text = quoted.ReplaceAllStringFunc(text, func(found string) string {
		parts := quoted.FindStringSubmatch(found)
		if slices.Contains(shownWords, parts[1]) {
			return found
		}
		if key, err := strconv.Unquote(parts[2]); err == nil {
			return parts[1] + n.name(key)
		}
		return parts[1] + "#"
	})
	if len(key) > 3 { // else it is a part of words
		text = strings.ReplaceAll(text, key, n.name(key))
	}
	return text
}

// find leads from a key, or the beginning of keys, that was sent in a form to the page that has it in its address.
func (c *console) find(page, field string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		w.Header().Set("Location", link(page, field, c.names.param(r.PostFormValue(field))))
		w.WriteHeader(http.StatusSeeOther)
	}
}
