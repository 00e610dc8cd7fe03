package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"slices"
)

type digest = [sha256.Size]byte

// none is the number of an absent part of a term or rule.
const none int32 = -1

// term matches pods of a selection, or all others if it is negated, with an address in nets, that declare a port and
// declare no absent ports, as far as these are given.
type term struct {
	pods, nets, declared, absent int32
	negated                      bool
	unsure                       bool // it also matches addresses that may be the pods'
}

var anyPod = term{pods: none, nets: none, declared: none, absent: none}

// declaredPort is a port with its name.
type declaredPort struct {
	name     string
	protocol uint8
	port     uint16
}

// declaredAt is a port that pods of a namespace declare.
type declaredAt struct {
	declaredPort
	namespace string
}

// terms numbers the conditions by which rules match pods.
type terms struct {
	pods     *podIndex
	nets     []ranges
	netIDs   map[string]int32 // by key
	netKeys  []string
	declared []declaredPort
	declIDs  map[declaredPort]int32
	absent   [][]declaredPort
	absIDs   map[string]int32
	all      []term
	ids      map[term]int32
	digests  []digest
	// bySelection, negated, byDeclared and byNets index terms by the condition to look them up with.
	bySelection [][]int32
	negated     []int32
	byDeclared  []int32 // any pod, by what it declares
	byNets      []int32 // any pod, by its address
}

func newTerms(d directory) *terms {
	return &terms{pods: newPodIndex(d), netIDs: map[string]int32{}, declIDs: map[declaredPort]int32{},
		absIDs: map[string]int32{}, ids: map[term]int32{}}
}

func (t *terms) add(x term) int32 {
	if id, ok := t.ids[x]; ok {
		return id
	}
	id := int32(len(t.all))
	t.ids[x] = id
	t.all, t.digests = append(t.all, x), append(t.digests, t.digest(x))
	switch {
	case x.negated:
		t.negated = append(t.negated, id)
	case x.pods != none:
		for len(t.bySelection) <= int(x.pods) {
			t.bySelection = append(t.bySelection, nil)
		}
		t.bySelection[x.pods] = append(t.bySelection[x.pods], id)
	case x.nets != none:
		t.byNets = append(t.byNets, id)
	default:
		t.byDeclared = append(t.byDeclared, id)
	}
	return id
}

// digest identifies a term by content, not by numbers.
func (t *terms) digest(x term) digest {
	var b []byte
	if x.pods != none {
		s := t.pods.all[x.pods]
		b = appendText(append(b, 'p', boolByte(s.unknown)), s.pods.identity())
	}
	if x.nets != none {
		b = appendText(append(b, 'n'), t.netKeys[x.nets])
	}
	if x.declared != none {
		d := t.declared[x.declared]
		b = d.append(append(b, 'd'))
	}
	if x.absent != none {
		b = appendText(append(b, 'a'), absentKey(t.absent[x.absent]))
	}
	if x.negated {
		b = append(b, '!')
	}
	// A selection's answer for unknown labels usually implies unsure; 'D' marks the exceptions.
	if x.unsure != (x.pods != none && t.pods.all[x.pods].unknown != x.negated) {
		b = append(b, 'D')
	}
	return sha256.Sum256(b)
}

func (d declaredPort) append(b []byte) []byte {
	return binary.BigEndian.AppendUint16(appendText(append(b, d.protocol), d.name), d.port)
}

func absentKey(ports []declaredPort) string {
	var b []byte
	for _, d := range ports {
		b = d.append(b)
	}
	return string(b)
}

func (t *terms) addNets(rs ranges) int32 {
	if len(rs) == 0 {
		return none
	}
	key := netsKey(rs)
	id, ok := t.netIDs[key]
	if !ok {
		id = int32(len(t.nets))
		t.netIDs[key] = id
		t.nets, t.netKeys = append(t.nets, rs), append(t.netKeys, key)
	}
	return id
}

func (t *terms) addDeclared(d declaredPort) int32 {
	id, ok := t.declIDs[d]
	if !ok {
		id = int32(len(t.declared))
		t.declIDs[d] = id
		t.declared = append(t.declared, d)
	}
	return id
}

// addAbsent returns the number of a set of ports that a pod must not declare.
func (t *terms) addAbsent(ports []declaredPort) int32 {
	if len(ports) == 0 {
		return none
	}
	key := absentKey(ports)
	id, ok := t.absIDs[key]
	if !ok {
		id = int32(len(t.absent))
		t.absIDs[key] = id
		t.absent = append(t.absent, ports)
	}
	return id
}

// ofPod returns the terms that the pod matches by its labels and ports, ascending. Terms with networks also need an
// address inside.
func (t *terms) ofPod(pod *Pod) (found []int32) {
	add := func(ids []int32) {
		for _, id := range ids {
			if t.declares(pod, &t.all[id]) {
				found = append(found, id)
			}
		}
	}
	selections := t.pods.of(pod)
	for _, s := range selections {
		if int(s) < len(t.bySelection) {
			add(t.bySelection[s])
		}
	}
	add(t.byDeclared)
	for _, id := range t.negated {
		if !slices.Contains(selections, t.all[id].pods) {
			add([]int32{id})
		}
	}
	slices.Sort(found)
	return found
}

// unsure returns the terms that match also an address that may be another pod's.
func (t *terms) unsure(ids []int32) (found []int32) {
	for _, id := range ids {
		if t.all[id].unsure {
			found = append(found, id)
		}
	}
	return found
}

// ofAddress returns the terms that the pod matches because its address is inside networks, ascending. unsure: it may be
// another pod's.
func (t *terms) ofAddress(pod *Pod, inside []bool, unsure bool) (found []int32) {
	for _, id := range t.byNets {
		if x := &t.all[id]; inside[x.nets] && t.declares(pod, x) && (x.unsure || !unsure) {
			found = append(found, id)
		}
	}
	return found
}

func (t *terms) declares(pod *Pod, x *term) bool {
	if x.declared != none && !pod.declares(t.declared[x.declared]) {
		return false
	}
	return x.absent == none || !slices.ContainsFunc(t.absent[x.absent], pod.declares)
}

func (p *Pod) declares(d declaredPort) bool {
	return slices.Contains(p.Ports, NamedPort{d.name, d.protocol, d.port})
}

func appendText(b []byte, text string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(text))), text...)
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// netsKey returns the key of ranges in Ruleset.Nets.
func netsKey(rs ranges) string {
	var b []byte
	for _, r := range rs {
		for _, a := range []netip.Addr{r.First, r.Last} {
			b = append(append(b, byte(a.BitLen())), a.AsSlice()...)
		}
	}
	return key(b)
}

// key returns a digest, long enough that no attacker finds two contents with one digest.
func key(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:16])
}
