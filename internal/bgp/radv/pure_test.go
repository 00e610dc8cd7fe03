package radv

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/bgp/wire"
)

var (
	a     = netip.MustParseAddr("fe80::a")
	b     = netip.MustParseAddr("fe80::b")
	third = netip.MustParseAddr("fe80::c")
)

func TestParse(t *testing.T) {
	prefix := append([]byte{3, 4}, make([]byte, 30)...)
	layer := []byte{1, 1, 2, 0, 0, 0, 0, 1}
	global := netip.MustParseAddr("fd00::1")
	for name, m := range map[string]struct {
		b    []byte
		hops int
		from netip.Addr
		want kind
		err  error
	}{
		"advertisement":              {advertisement, 255, a, advertisementKind, nil},
		"with options":               {slices.Concat(advertisement, layer, prefix), 255, a, advertisementKind, nil},
		"solicitation":               {solicitation, 255, a, solicitationKind, nil},
		"solicitation from nothing":  {solicitation, 255, netip.IPv6Unspecified(), solicitationKind, nil},
		"solicitation with option":   {slices.Concat(solicitation, layer), 255, global, solicitationKind, nil},
		"empty":                      {nil, 255, a, 0, errShort},
		"short solicitation":         {solicitation[:7], 255, a, 0, errShort},
		"short advertisement":        {advertisement[:15], 255, a, 0, errShort},
		"neighbour advertisement":    {append([]byte{136}, advertisement[1:]...), 255, a, 0, errKind},
		"from far away":              {advertisement, 254, a, 0, errHops},
		"solicitation from far away": {solicitation, 64, a, 0, errHops},
		"code":                       {append([]byte{134, 1}, advertisement[2:]...), 255, a, 0, errCode},
		"global source":              {advertisement, 255, global, 0, errSource},
		"anycast source":             {advertisement, 255, netip.MustParseAddr("fe80::"), 0, errSource},
		"no source":                  {advertisement, 255, netip.Addr{}, 0, errSource},
		"mapped IPv4 source":         {advertisement, 255, netip.MustParseAddr("::ffff:169.254.1.1"), 0, errSource},
		"IPv4 source":                {advertisement, 255, netip.MustParseAddr("169.254.1.1"), 0, errSource},
		"option of length 0":         {slices.Concat(advertisement, []byte{1, 0, 0, 0, 0, 0, 0, 0}), 255, a, 0, errOptions},
		"option that is cut off":     {slices.Concat(advertisement, prefix[:31]), 255, a, 0, errOptions},
		"half an option's header":    {slices.Concat(solicitation, []byte{1}), 255, a, 0, errOptions},
	} {
		if got, err := parse(m.b, m.hops, m.from); got != m.want || !errors.Is(err, m.err) {
			t.Errorf("%s: %d, %v, want %d, %v", name, got, err, m.want, m.err)
		}
	}
}

// The messages sent are valid by RFC 4861, and set nothing on hosts.
func TestMessages(t *testing.T) {
	if want := []byte{134, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}; !bytes.Equal(advertisement, want) {
		t.Errorf("advertisement % x, want % x", advertisement, want)
	}
	if want := []byte{133, 0, 0, 0, 0, 0, 0, 0}; !bytes.Equal(solicitation, want) {
		t.Errorf("solicitation % x, want % x", solicitation, want)
	}
}

// FuzzParse reads messages of any kind: the accepted ones comply with RFC 4861.
func FuzzParse(f *testing.F) {
	f.Add(advertisement, 255, a.AsSlice())
	f.Add(slices.Concat(solicitation, []byte{1, 1, 2, 0, 0, 0, 0, 1}), 255, []byte{})
	f.Fuzz(func(t *testing.T, message []byte, hops int, from []byte) {
		source, _ := netip.AddrFromSlice(from)
		k, err := parse(message, hops, source)
		if err != nil {
			if k != 0 {
				t.Errorf("kind %d beside %v", k, err)
			}
			return
		}
		if hops != 255 || message[1] != 0 || kind(message[0]) != k || len(message)%8 != 0 && len(message) < solicitationSize {
			t.Errorf("took % x with hop limit %d", message, hops)
		}
		if k == advertisementKind &&
			(len(message) < advertisementSize || !source.IsLinkLocalUnicast() || source == wire.AnyRouter || source.Is4In6()) {
			t.Errorf("took an advertisement % x from %s", message, source)
		}
	})
}

// heard is an advertisement at some time after the beginning of a test.
type heard struct {
	at   time.Duration
	from netip.Addr
}

// every returns a series of advertisements.
func every(gap time.Duration, from netip.Addr, begin, end time.Duration) (all []heard) {
	for at := begin; at <= end; at += gap {
		all = append(all, heard{at, from})
	}
	return all
}

func TestFind(t *testing.T) {
	const s, m = time.Second, time.Minute
	for name, c := range map[string]struct {
		heard []heard
		at    time.Duration
		want  finding
	}{
		"none":                           {nil, 0, finding{}},
		"one":                            {[]heard{{0, a}}, s, finding{router: a}},
		"one, long ago":                  {[]heard{{0, a}}, 24 * 60 * m, finding{router: a}},
		"two":                            {[]heard{{0, a}, {5 * s, b}}, 5 * s, finding{a, b}},
		"two, in the other order":        {[]heard{{0, b}, {5 * s, a}, {6 * s, a}}, 6 * s, finding{b, a}},
		"another, after 39 s of silence": {slices.Concat(every(10*s, a, 0, m), every(10*s, b, 70*s, 2*m)), m + 39*s, finding{a, b}},
		"another, after 41 s of silence": {slices.Concat(every(10*s, a, 0, m), every(10*s, b, 70*s, 2*m)), m + 41*s, finding{router: b}},
		"the first one again":            {[]heard{{0, a}, {m, b}, {50 * m, a}}, 50*m + s, finding{router: a}},
		"both silent":                    {[]heard{{0, a}, {s, b}}, 60 * m, finding{router: b}},
		"seldom ones":                    {slices.Concat(every(10*m, a, 0, 30*m), every(10*m, b, 5*m, 35*m)), 38 * m, finding{a, b}},
		"interrupted, then swapped": {slices.Concat(every(10*s, a, 0, m), every(10*s, a, 21*m, 23*m), []heard{{24 * m, b}}),
			24 * m, finding{router: b}},
		"a third beside two":                {[]heard{{0, a}, {s, b}, {2 * s, third}}, 2 * s, finding{a, b}},
		"a third in the place of the first": {slices.Concat([]heard{{0, a}}, every(10*s, b, s, m), []heard{{m, third}}), m, finding{b, third}},
	} {
		begin := time.Now()
		slices.SortStableFunc(c.heard, func(x, y heard) int { return int(x.at - y.at) })
		var routers table
		for _, h := range c.heard {
			if h.at <= c.at {
				routers.hear(h.from, begin.Add(h.at))
			}
		}
		if got := routers.find(begin.Add(c.at)); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// A sender with many addresses uses no memory, and does not change the result with each message.
func TestManySenders(t *testing.T) {
	now := time.Now()
	routers := table{{addr: a, heard: now}}
	changes, last := 0, routers.find(now)
	for i := range 100000 {
		now = now.Add(time.Millisecond)
		routers.hear(netip.AddrFrom16([16]byte{0xfe, 0x80, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)}), now)
		if f := routers.find(now); f != last {
			changes, last = changes+1, f
		}
	}
	if len(routers) > maxRouters || changes > 10 {
		t.Errorf("%d routers, %d changes in 100 s", len(routers), changes)
	}
}

func TestSchedule(t *testing.T) {
	begin := time.Now()
	var s schedule
	s.begin(begin)
	var at []time.Duration
	for i := range 6 {
		at = append(at, s.due.Sub(begin))
		s.advertised(s.due, float64(i%2)) // alternating between the least and nearly the longest interval
	}
	want := []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second, 3*time.Second + maxInterval,
		3*time.Second + maxInterval + minInterval}
	if !slices.Equal(at, want) {
		t.Errorf("advertisements at %s, want %s", at, want)
	}
}

func TestSolicited(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		sent, due time.Duration // before and after now
		random    float64
		want      time.Duration
	}{
		"soon":                 {9 * time.Second, 5 * time.Second, 0.5, 250 * time.Millisecond},
		"not too often":        {time.Second, 5 * time.Second, 0.5, 2 * time.Second},
		"one is due before":    {9 * time.Second, 100 * time.Millisecond, 0.9, 100 * time.Millisecond},
		"one of the first was": {time.Second, time.Second, 0.9, time.Second},
	} {
		s := schedule{sent: now.Add(-c.sent), due: now.Add(c.due)}
		for range 3 { // more of them change nothing
			s.solicited(now, c.random)
		}
		if got := s.due.Sub(now); got != c.want {
			t.Errorf("%s: due in %s, want %s", name, got, c.want)
		}
	}
}
