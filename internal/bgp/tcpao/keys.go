// Package tcpao signs TCP connections by the TCP Authentication Option (RFC 5925): keys as text, and on sockets.
package tcpao

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Keys are the master key tuples (RFC 5925 section 3.1) that a session with a peer may use, the preferred one first, as
// text of Parse: equal keys have the same text. It is empty without keys, and must not be logged or shown.
type Keys string

// key is one master key tuple. The other end must have the same secret, and the IDs with send and receive swapped.
type key struct {
	send, receive uint8
	algorithm     string // a key of algorithms
	secret        string
}

// maxSecret is the longest secret in bytes (TCP_AO_MAXKEYLEN).
const maxSecret = 80

// algorithm is an algorithm by the kernel's name.
type algorithm struct {
	name string
	mac  uint8 // bytes of the MAC in each segment
}

// cmac accepts secrets of 16 bytes only here: the kernel derives a key of 16 from others, and does not report the
// secret.
const (
	cmac      = "cmac(aes128)"
	cmacBytes = 16
)

// algorithms holds the algorithms of RFC 5926, and SHA-256, with a MAC of 96 bits for BIRD.
var algorithms = map[string]algorithm{
	"hmac-sha1-96":    {"hmac(sha1)", 12},
	"aes-128-cmac-96": {cmac, 12},
	"hmac-sha256-96":  {"hmac(sha256)", 12},
	"hmac-sha256-128": {"hmac(sha256)", 16},
}

// Parse reads keys, one in a line: ID ALGORITHM SECRET, where ID is SEND/RECEIVE if the two differ. It ignores empty
// lines and lines that begin with #. Errors contain nothing of the text, which may be a secret in the wrong place.
func Parse(text string) (Keys, error) {
	all, err := parse(text)
	if err == nil && len(all) == 0 {
		err = errors.New("there is no key: add a line ID ALGORITHM SECRET")
	}
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, k := range all {
		fmt.Fprintf(&b, "%d/%d %s %s\n", k.send, k.receive, k.algorithm, k.secret)
	}
	return Keys(b.String()), nil
}

func parse(text string) ([]key, error) {
	var all []key
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		k, err := parseKey(line)
		if err == nil && slices.ContainsFunc(all, k.overlaps) {
			err = errors.New("an earlier line has its send or receive ID: give each key IDs of its own")
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n+1, err)
		}
		all = append(all, k)
	}
	return all, nil
}

func parseKey(line string) (k key, err error) {
	ids, rest, _ := strings.Cut(line, " ")
	name, secret, _ := strings.Cut(strings.TrimSpace(rest), " ")
	send, receive, two := strings.Cut(ids, "/")
	if !two {
		receive = send
	}
	s, sErr := strconv.ParseUint(send, 10, 8)
	r, rErr := strconv.ParseUint(receive, 10, 8)
	k = key{uint8(s), uint8(r), name, strings.TrimSpace(secret)}
	switch {
	case sErr != nil || rErr != nil:
		return k, errors.New("it does not begin with an ID: use 0 to 255, or two as SEND/RECEIVE")
	case algorithms[name].mac == 0:
		return k, fmt.Errorf("its second word is no algorithm: use %s", strings.Join(slices.Sorted(maps.Keys(algorithms)), ", "))
	case algorithms[name].name == cmac && len(k.secret) != cmacBytes:
		return k, fmt.Errorf("its secret has %d bytes: %s takes %d", len(k.secret), name, cmacBytes)
	case k.secret == "" || len(k.secret) > maxSecret:
		return k, fmt.Errorf("its secret has %d bytes: use 1 to %d", len(k.secret), maxSecret)
	}
	return k, nil
}

// overlaps reports whether two keys cannot be on one connection.
func (k key) overlaps(other key) bool { return k.send == other.send || k.receive == other.receive }

// all returns the keys.
func (k Keys) all() []key {
	all, _ := parse(string(k))
	return all
}

// Symmetric reports whether the other end can have the same text: both IDs of each key are equal.
func (k Keys) Symmetric() bool {
	return !slices.ContainsFunc(k.all(), func(one key) bool { return one.send != one.receive })
}

// String shows no secrets.
func (k Keys) String() string { return fmt.Sprintf("%d keys", len(k.all())) }

// Rolls reports whether a connection with these keys can change to others: both have keys, and no ID changes its key.
func (k Keys) Rolls(to Keys) bool {
	if k == "" || to == "" {
		return false
	}
	for _, a := range k.all() {
		if slices.ContainsFunc(to.all(), func(b key) bool { return a != b && a.overlaps(b) }) {
			return false
		}
	}
	return true
}
