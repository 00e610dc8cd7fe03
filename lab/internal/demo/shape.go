package demo

import (
	"regexp"
	"slices"
	"strings"
)

// replacement replaces a text that differs between runs.
type replacement struct {
	pattern *regexp.Regexp
	with    string
}

func replace(pattern, with string) replacement { return replacement{regexp.MustCompile(pattern), with} }

// replacements are tried in this order: long forms before the short ones that are parts of them.
var replacements = []replacement{
	replace(`,"status":\{"conditions":\[[^]]*\]\}`, ""), // of pools, in the agent's file: the controllers set it in their own time
	replace(`[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d \d{4}`, "TIME"),
	replace(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`, "TIME"),
	replace(`\b([0-9a-f]{2}:){5}[0-9a-f]{2}\b`, "MAC"),
	replace(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`, "UUID"),
	replace(`\b[0-9a-f]{64}\b`, "ID"),
	replace(`tortie-node-[a-z0-9]{5}\b`, "tortie-node-POD"),
	replace(`(tortie-kube-controllers)-[a-z0-9]+-[a-z0-9]{5}(\s+<none>)\s+\S+`, "$1-POD$2 NODE"), // on whichever node
	replace(`\b\d{1,3}-\d{1,3}-\d{1,3}-\d{1,3}-26\b`, "BLOCK"),
	replace(`\bfd[0-9a-f]{2}(:[0-9a-f]{1,4}){0,2}::/48\b`, "LOCAL/48"), // of the default IPv6 pool, chosen at random
	replace(`\b(\d{1,3}\.){3}\d{1,3}\b`, "IP"),
	replace(`\bIP:\d+\b`, "IP:PORT"),
	replace(`\b(\d+h)?(\d+m)?\d+(\.\d+)?(ns|µs|us|ms|s)\b|\b\d+(h|m)\d*(m|s)?\d*s?\b`, "TIME"),
	replace(`\b\d+(\.\d+)?/\d+(\.\d+)?/\d+(\.\d+)? ms\b`, "TIMES"),
	replace(`\bin \d+ s\b`, "in TIME"),
	replace(`(time|took)=\S+`, "$1=TIME"),
	replace(`time=[0-9.]+ ms`, "time=TIME"),
	replace(`@if\d+`, "@LINK"),
	replace(`^(\s*)\d+: `, "${1}N: "),
	replace(`\b(id|seq|resourceVersion:|length|generation:) "?\d+"?`, "$1 N"),
	replace(`(-rwxr-xr-x|-rw-------) .*?(\S+)$`, "$1 $2"), // sizes of files
	replace(`^(\s*)total \d+$`, "${1}total N"),
	replace(`^\s*(\d+ +){5}\d+ *$`, "COUNTERS"),
	// The rest of ip(8)'s text about a tunnel depends on its version and the kernel's.
	replace(`(link/ipip IP brd IP) .*`, "$1"),
	replace(`(ipip any remote any local any) .*`, "$1"),
	replace(`(tunl0@NONE: <NOARP,UP,LOWER_UP> mtu \d+) .*`, "$1"),
	replace(`v\d+\.\d+\.\d+\S*`, "VERSION"),
	replace(`WATCH \d+$`, "WATCH N"),
	replace(`\btimeout \d+ `, "timeout N "),
	replace(`\bpackets \d+ bytes \d+`, "packets N bytes N"),
	replace(`\bdenied \d+ packets\b`, "denied N packets"),
	replace(`map\[[^\]]*\]`, "map[...]"),
	replace(`\s+`, " "),
}

// Shape returns the common part of all transcripts of one demo: the text, the commands, and the kind of each line of
// output. Lines of one output are sorted, as many are in the order of the run's addresses, and each kind counts once: a
// container that was started twice on a slow machine makes no difference. The demo itself checks required counts.
func Shape(transcript string) []string {
	var shape, block []string
	flush := func() {
		slices.Sort(block)
		shape = append(shape, slices.Compact(block)...)
		block = nil
	}
	for line := range strings.Lines(transcript) {
		line = strings.TrimRight(line, "\n")
		output := strings.HasPrefix(line, "    ")
		normal := line
		for _, r := range replacements {
			normal = r.pattern.ReplaceAllString(normal, r.with)
		}
		normal = strings.TrimSpace(normal)
		switch {
		case output && !isCommand(normal):
			block = append(block, "    "+normal)
		default:
			flush()
			if normal != "" {
				shape = append(shape, normal)
			}
		}
	}
	flush()
	return shape
}

var command = regexp.MustCompile(`^(\$|master#|node1#|node2#) `)

func isCommand(line string) bool { return command.MatchString(line) }
