package bfd

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Bounds of a setting. Below minInterval a process that waits for its CPU would declare neighbours lost.
const (
	minInterval   = 50 * time.Millisecond
	maxInterval   = time.Minute
	maxMultiplier = 50
)

var errForm = errors.New("use how many packets may be lost and their interval, such as 3x300ms, and behind them, if packets are to be " +
	"authenticated, keyed-md5, meticulous-md5, keyed-sha1 or meticulous-sha1 with a key ID from 0 to 255, such as 3x300ms meticulous-sha1 1")

// Parse reads a setting: 3x300ms, or 3x300ms meticulous-sha1 1. WithKey adds the key.
func Parse(text string) (Config, error) {
	words := strings.Fields(text)
	if len(words) != 1 && len(words) != 3 {
		return Config{}, errForm
	}
	count, interval, _ := strings.Cut(words[0], "x")
	mult, errMult := strconv.ParseUint(count, 10, 8)
	every, errEvery := time.ParseDuration(interval)
	switch {
	case errMult != nil || errEvery != nil:
		return Config{}, errForm
	case mult == 0 || mult > maxMultiplier:
		return Config{}, fmt.Errorf("use 1 to %d packets, not %d", maxMultiplier, mult)
	case every < minInterval || every > maxInterval:
		return Config{}, fmt.Errorf("use an interval from %s to %s, not %s", minInterval, maxInterval, every)
	}
	c := Config{Interval: every, Multiplier: uint8(mult)}
	if len(words) == 1 {
		return c, nil
	}
	auth, err := parseAuth(words[1], words[2])
	c.Auth = auth
	return c, err
}

func parseAuth(name, id string) (Auth, error) {
	number, err := strconv.ParseUint(id, 10, 8)
	if err != nil {
		return Auth{}, errForm
	}
	for kind, known := range authNames {
		switch {
		case known != name:
		case kind == simple:
			return Auth{}, errors.New("a simple password passes in the clear, and is that of the BGP session: use meticulous-sha1")
		default:
			return Auth{Type: kind, KeyID: uint8(number)}, nil
		}
	}
	return Auth{}, errForm
}

// WithKey returns c with the password of the BGP session as its key, if it authenticates packets.
func (c Config) WithKey(password string) (Config, error) {
	switch most := c.Auth.Type.digestLen(); {
	case c.Auth.Type == NoAuth:
		return c, nil
	case password == "":
		return c, fmt.Errorf("%s needs a key, which is the password of the BGP session: set one", c.Auth.Type)
	case len(password) > most:
		return c, fmt.Errorf("its key, the password of the BGP session, has %d bytes, and %s takes %d: use a shorter password",
			len(password), c.Auth.Type, most)
	}
	c.Auth.Key = password
	return c, nil
}
