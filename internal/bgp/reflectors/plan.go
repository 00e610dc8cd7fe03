package reflectors

import "time"

// Settings are the same on all nodes.
type Settings struct {
	// Above is how many nodes take part before there are reflectors; Count is how many there are to be. A mesh of 100
	// nodes is cheap, one of 500 is not; three reflectors bear the loss of one during the upgrade of another.
	Above, Count int
}

// below is how few nodes take part when there is a mesh again.
func (s Settings) below() int { return s.Above * 3 / 4 }

// View is a node's knowledge at one moment.
type View struct {
	// Self is its name.
	Self string
	Roll *Roll
	// Refusal says why it can take no part; empty if it can.
	Refusal string
	// Manual names a node that an operator made a route reflector; empty if there is none. Then nodes do not begin to
	// agree on others.
	Manual string
	// Unwilling says why it should not reflect, as it is about to leave; empty if it may.
	Unwilling string
	// Sessions are those with nodes that say that they reflect; what is not there is not established.
	Sessions map[string]Session
	// Shown reports whether reflectors have announced paths to a node, in each family in which it has blocks; nil is no.
	Shown func(node string) bool
	// Verdicts are the answers to Plan.Ask.
	Verdicts map[string]Verdict
}

// Session is how it stands between this node and another, in all families that both have.
type Session struct {
	Established bool
	// Complete: the other has sent its whole table.
	Complete bool
}

// Verdict is the state of a Node in the API.
type Verdict struct {
	// Dead: it is not ready, or gone.
	Dead bool
	At   time.Time
}

// Role is a node's role towards others.
type Role string

// Roles.
const (
	NoRole     Role = ""
	AsClient   Role = "client"
	AsReflects Role = "reflector"
)

// Plan is a node's role and its next actions.
type Plan struct {
	Role Role
	// Since is when it took the role.
	Since time.Time
	// Annotate is the value for its Node's annotation; empty: none.
	Annotate Word
	// On: there are enough nodes for reflectors. Else all have sessions with all.
	On bool
	// Roll is the roll that it was made from.
	Roll *Roll
	// Reflectors are the other nodes that say that they reflect, in their order. This node has sessions with them.
	Reflectors []string
	// Ask names Nodes that are to be read from the API, past its watches, before this node can know whether it is needed.
	Ask []string
	// Again is when the same view leads to another plan; zero: it does not.
	Again time.Time
	// Why is the reason for the role, or for having none, in words.
	Why string
	// Problem is a fault that an operator should correct; nil if none.
	Problem error

	mesh bool
	kept map[string]time.Time
	self Node
	lone Families // families without a reflector
}

// KeepMesh reports whether the mesh's session with a node is to be, or to stay. Of sessions between a reflector and any
// other node that takes part it says nothing: these are to be.
func (p *Plan) KeepMesh(node string) bool {
	if p.Role == NoRole || p.mesh {
		return true
	}
	other, ok := p.Roll.Get(node)
	if !ok {
		return true
	}
	if _, kept := p.kept[node]; kept {
		return true
	}
	return other.Families&p.self.Families&p.lone != 0
}

// Shape is the part of a plan that decides on sessions, in a form that can be compared.
type Shape struct {
	role Role
	mesh bool
	kept int
	roll *Roll
}

// Shape returns the plan's.
func (p *Plan) Shape() Shape { return Shape{p.Role, p.mesh, len(p.kept), p.Roll} }

// Kept is how many sessions of the mesh stay until reflectors are known to stand in for them: as long as there are any,
// what View.Shown tells is needed.
func (p *Plan) Kept() int { return len(p.kept) }
