package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"slices"
)

type digest = [sha256.Size]byte

// none is the number of what a term or rule does not have.
const none int32 = -1

// term matches pods: those of a selection, or with an address in nets, or any; and of them only those that declare a port, if one is given.
type term struct{ pods, nets, declared int32 }

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

// terms numbers what rules match pods by.
type terms struct {
	pods     *podIndex
	nets     []ranges
	netIDs   map[string]int32 // by key
	netKeys  []string
	declared []declaredPort
	declIDs  map[declaredPort]int32
	all      []term
	ids      map[term]int32
	digests  []digest
	// bySelection, byDeclared and byNets are terms by what they need.
	bySelection [][]int32
	byDeclared  []int32 // any pod that declares a port
	byNets      []int32
}

func newTerms(namespaces map[string]map[string]string) *terms {
	return &terms{pods: newPodIndex(namespaces), netIDs: map[string]int32{}, declIDs: map[declaredPort]int32{}, ids: map[term]int32{}}
}

func (t *terms) add(x term) int32 {
	if id, ok := t.ids[x]; ok {
		return id
	}
	id := int32(len(t.all))
	t.ids[x] = id
	t.all, t.digests = append(t.all, x), append(t.digests, t.digest(x))
	switch {
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

// digest tells definitions apart, by content and not by numbers.
func (t *terms) digest(x term) digest {
	var b []byte
	if x.pods != none {
		s := t.pods.all[x.pods]
		b = appendText(append(b, 'p', boolByte(s.unknown)), s.pods.text())
	}
	if x.nets != none {
		b = appendText(append(b, 'n'), t.netKeys[x.nets])
	}
	if x.declared != none {
		d := t.declared[x.declared]
		b = binary.BigEndian.AppendUint16(appendText(append(b, 'd', d.protocol), d.name), d.port)
	}
	return sha256.Sum256(b)
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

// ofPod returns the terms that the pod matches by its labels and ports, in ascending order.
func (t *terms) ofPod(pod *Pod) (found []int32) {
	for _, s := range t.pods.of(pod) {
		for _, id := range t.bySelection[s] {
			if t.declares(pod, t.all[id].declared) {
				found = append(found, id)
			}
		}
	}
	for _, id := range t.byDeclared {
		if t.declares(pod, t.all[id].declared) {
			found = append(found, id)
		}
	}
	slices.Sort(found)
	return found
}

// ofAddress returns the terms that the pod matches because its address is inside of networks, in ascending order.
func (t *terms) ofAddress(pod *Pod, inside []bool) (found []int32) {
	for _, id := range t.byNets {
		if x := t.all[id]; inside[x.nets] && t.declares(pod, x.declared) {
			found = append(found, id)
		}
	}
	return found
}

func (t *terms) declares(pod *Pod, declared int32) bool {
	if declared == none {
		return true
	}
	d := t.declared[declared]
	return slices.Contains(pod.Ports, NamedPort{d.name, d.protocol, d.port})
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

// netsKey is the digest of ranges, as Ruleset has it.
func netsKey(rs ranges) string {
	var b []byte
	for _, r := range rs {
		for _, a := range []netip.Addr{r.First, r.Last} {
			b = append(append(b, byte(a.BitLen())), a.AsSlice()...)
		}
	}
	return key(b)
}

// key is long enough that nobody finds two contents with the same one.
func key(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:16])
}
