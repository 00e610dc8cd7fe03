package desired

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
)

// Problem is an error about one object of the API. Its text names the object.
type Problem struct {
	About  api.ObjectReference
	Reason string
	Err    error
}

// Error names the object.
func (p *Problem) Error() string {
	return fmt.Sprintf("%s %s: %v", p.About.Kind, p.About.Name, p.Err)
}

// Unwrap returns the error without the object.
func (p *Problem) Unwrap() error { return p.Err }

// reasons are the reasons of events about unusable objects.
var reasons = map[string]string{
	"IPPool": "InvalidPool", "BlockAffinity": "InvalidAffinity", "Node": "InvalidNode",
	"BGPConfiguration": "InvalidConfiguration", "FelixConfiguration": "InvalidConfiguration",
	"BGPPeer": "InvalidPeer", "BGPFilter": "InvalidFilter",
}

// InObject names the object that an error is about.
func InObject(t api.Type, m api.Meta, err error) error {
	about := api.ObjectReference{APIVersion: t.APIVersion(), Kind: t.Kind, Namespace: m.Namespace, Name: m.Name, UID: m.UID}
	if t.Kind == "Node" {
		about = NodeObject(m.Name)
	}
	return &Problem{about, reasons[t.Kind], err}
}

// Concern is an error about this node itself, with the reason of the event that reports it at once.
type Concern struct {
	Reason string
	Err    error
}

// Error returns the text of the cause.
func (c *Concern) Error() string { return c.Err.Error() }

// Unwrap returns the cause.
func (c *Concern) Unwrap() error { return c.Err }

// InSelf marks an error as one about this node that an operator must act on; nil stays nil.
func InSelf(reason string, err error) error {
	if err == nil {
		return nil
	}
	return &Concern{reason, err}
}

// NodeObject refers to a Node. Its UID is the name, as in the kubelet's events: kubectl describe looks for that too.
func NodeObject(name string) api.ObjectReference {
	return api.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: name}
}

// ProblemsOf returns err as a list; nil for nil.
func ProblemsOf(err error) []error {
	if err == nil {
		return nil
	}
	return []error{err}
}

// PeerObject refers to a BGPPeer, with its UID if that is known.
func (s *Snapshot) PeerObject(name string) api.ObjectReference {
	t := (*api.BGPPeer)(nil).ResourceType()
	return api.ObjectReference{APIVersion: t.APIVersion(), Kind: t.Kind, Name: name, UID: s.uidOf(t, name)}
}

// uidOf returns the UID of a BGPPeer or BGPFilter, by which kubectl describe finds its events; empty if it is not
// known.
func (s *Snapshot) uidOf(t api.Type, name string) string {
	switch t {
	case (*api.BGPPeer)(nil).ResourceType():
		for i := range s.peers.all {
			if s.peers.all[i].Name == name {
				return s.peers.all[i].UID
			}
		}
	case (*api.BGPFilter)(nil).ResourceType():
		for i := range s.peers.filters {
			if s.peers.filters[i].Name == name {
				return s.peers.filters[i].UID
			}
		}
	}
	return ""
}

// NameRemedy adds to an error of a kernel without IPIP the command that changes its pools to VXLAN.
func (s *Snapshot) NameRemedy(err error) error {
	var names []string
	for _, p := range s.Pools {
		if p.in(p.modes(), IPIPTunnel) {
			names = append(names, p.Name)
		}
	}
	if !errors.Is(err, ipip.ErrNoIPIP) || len(names) == 0 {
		return err
	}
	return fmt.Errorf("%w: to change to VXLAN on all nodes, run: kubectl patch %s %s --type=merge -p '%s'",
		err, s.group.Resource("ippools"), strings.Join(names, " "), `{"spec":{"ipipMode":"Never","vxlanMode":"Always"}}`)
}
