package agent

import (
	"fmt"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
)

// clearPatience exceeds the wait for a node with a key, and the time until the agent of a new node announces one.
var clearPatience = 2 * time.Minute

// clearNodes has since when packets to nodes are not encrypted although WireGuard is on.
type clearNodes map[clearNode]time.Time

type clearNode struct{ device, node string }

// follow updates the nodes and times. It returns a problem for each of the first nodes that are past clearPatience.
func (c *clearNodes) follow(reports []desired.CryptReport, required bool, now time.Time) (problems []error) {
	next, more := clearNodes{}, 0
	for _, r := range reports {
		for _, name := range r.Clear {
			n := clearNode{wireguard.Name(r.V6), name}
			since, known := (*c)[n]
			if !known {
				since = now
			}
			switch next[n] = since; {
			case now.Sub(since) < clearPatience:
			case len(problems) < mostListed:
				problems = append(problems, n.problem(r.V6, required))
			default:
				more++
			}
		}
	}
	if *c = next; more > 0 {
		problems = append(problems, desired.InSelf("NotEncrypted", fmt.Errorf("nor are packets to %d more nodes encrypted", more)))
	}
	return problems
}

// problem is about the other Node. The agents of all nodes report the same, so the text names none of them.
func (n clearNode) problem(v6, required bool) error {
	key, follows := api.AnnotationWireGuardKey, "are sent in the clear"
	if v6 {
		key = api.AnnotationWireGuardKeyV6
	}
	if required {
		follows = "are not sent"
	}
	err := fmt.Errorf("WireGuard is on (%s), and packets to its pods %s, as it has no key of its own in annotation "+
		"%s: see that its agent runs, that its kernel has WireGuard (modprobe wireguard), and that no FelixConfiguration node.%s turns it off",
		n.device, follows, key, n.node)
	return &desired.Problem{About: desired.NodeObject(n.node), Reason: "NotEncrypted", Err: err}
}
